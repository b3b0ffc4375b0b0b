"""Seconds in the public interface, whole nanoseconds inside; checks of numbers that callers pass."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import lru_cache

SECOND_NS = 1_000_000_000
MICROSECOND_NS = 1_000


def to_ns(period: float | timedelta, name: str = "period") -> int:
    """Returns `period` (seconds) in whole nanoseconds, rounded to the nearest. `name` is for the message.

    Raises ValueError unless the result is at least one nanosecond.
    """
    if isinstance(period, timedelta):
        ns = period // timedelta(microseconds=1) * MICROSECOND_NS
    elif math.isfinite(period):
        ns = round(period * SECOND_NS)
    else:
        ns = 0
    if ns < 1:
        raise ValueError(f"{name}: expected seconds above 0, got {period!r}")
    return ns


def wait_to_ns(duration: float | None, name: str) -> int | None:
    """Returns a longest wait (seconds) in whole nanoseconds; None, for any wait, stays None.

    Raises ValueError for a negative or infinite duration.
    """
    if duration is None:
        return None
    if not 0 <= duration < math.inf:
        raise ValueError(f"{name}: expected seconds from 0, or None for any time, got {duration!r}")
    return round(duration * SECOND_NS)


def whole_number(number: int, name: str, least: int = 1) -> int:
    """Returns `number`. Raises ValueError unless it is an int of at least `least`."""
    if type(number) is not int or number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {number!r}")
    return number


def to_seconds(ns: int) -> float:
    """Returns `ns` as seconds: the nearest float, which is exact to the nanosecond up to a hundred days."""
    return ns / SECOND_NS


@lru_cache(maxsize=256)  # each refusal contains its period
def format_seconds(ns: int) -> str:
    """Returns `ns` as text for messages.

    >>> format_seconds(10_000_000_000), format_seconds(1_500_000_000)
    ('10 s', '1.5 s')
    """
    whole_s, rest = divmod(ns, SECOND_NS)
    return f"{whole_s}.{rest:09d}".rstrip("0").rstrip(".") + " s"


def reject_burst(burst: int | None) -> None:
    """Raises ValueError for a burst, on behalf of limiters without one."""
    if burst is not None:
        raise ValueError(f"burst: this limiter has none, got {burst!r}")
