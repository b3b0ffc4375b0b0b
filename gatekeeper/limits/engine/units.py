"""Seconds in the public interface, whole nanoseconds inside; checks of numbers that callers pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])
K = TypeVar("K")

SECOND_NS = 1_000_000_000
MICROSECOND_NS = 1_000


def to_ns(period: float | timedelta, name: str = "period") -> int:
    """Returns `period` (seconds) in whole nanoseconds, rounded to the nearest. `name` is for the message.

    Raises TypeError for another type, and ValueError unless the result is at least one nanosecond.
    """
    if isinstance(period, timedelta):
        ns = period // timedelta(microseconds=1) * MICROSECOND_NS
    elif not _is_number(period):
        raise TypeError(f"{name}: expected seconds as a number, such as 60, or a timedelta, got {period!r}")
    elif math.isfinite(period):
        ns = round(period * SECOND_NS)
    else:
        ns = 0
    if ns < 1:
        raise ValueError(f"{name}: expected seconds above 0, got {period!r}")
    return ns


def wait_to_ns(duration: float | None, name: str) -> int | None:
    """Returns a longest wait (seconds) in whole nanoseconds; None, for any wait, stays None.

    Raises TypeError for another type, and ValueError for a negative or infinite duration.
    """
    if duration is None:
        return None
    if not _is_number(duration):
        raise TypeError(f"{name}: expected seconds as a number, or None for any time, got {duration!r}")
    if not 0 <= duration < math.inf:
        raise ValueError(f"{name}: expected seconds from 0, or None for any time, got {duration!r}")
    return round(duration * SECOND_NS)


def whole_number(number: int, name: str, least: int = 1) -> int:
    """Returns `number`. Raises ValueError unless it is an int of at least `least`."""
    if type(number) is not int or number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {number!r}")
    return number


def require_callable(function: C, name: str) -> C:
    """Returns `function`. Raises TypeError unless it can be called."""
    if not callable(function):
        raise TypeError(f"{name}: expected a function, got {function!r:.80}")
    return function


def require_key(key: K) -> K:
    """Returns `key`. Raises TypeError unless it is text, or a tuple of text and whole numbers."""
    if isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(part, str | int) for part in key)):
        return key
    raise TypeError(f"key: expected text, or a tuple of text and whole numbers, got {key!r:.80}")


def require_text(text: str, name: str) -> str:
    """Returns `text`. Raises TypeError unless it is a str."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected text, got {text!r:.80}")
    return text


def require_bool(flag: bool, name: str) -> bool:
    """Returns `flag`. Raises TypeError unless it is True or False."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name}: expected True or False, got {flag!r:.80}")
    return flag


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_seconds(ns: int) -> float:
    """Returns `ns` as seconds: the nearest float, which is exact to the nanosecond up to a hundred days."""
    return ns / SECOND_NS


@lru_cache(maxsize=256)  # each refusal contains its period
def format_seconds(ns: int) -> str:
    """Returns `ns` as text for messages.

    >>> format_seconds(10_000_000_000), format_seconds(1_500_000_000)
    ('10 s', '1.5 s')
    """
    whole_s, fraction_ns = divmod(ns, SECOND_NS)
    return f"{whole_s}.{fraction_ns:09d}".rstrip("0").rstrip(".") + " s"


def reject_burst(burst: int | None) -> None:
    """Raises ValueError for a burst, on behalf of limiters without one."""
    if burst is not None:
        raise ValueError(f"burst: this limiter has none, got {burst!r}")
