"""Seconds outside, whole nanoseconds inside."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import lru_cache

SECOND_NS = 1_000_000_000
MICROSECOND_NS = 1_000


def to_ns(period: float | timedelta, name: str = "period") -> int:
    """`period` in whole nanoseconds, the nearest. Raises ValueError unless that is at least one."""
    if isinstance(period, timedelta):
        ns = period // timedelta(microseconds=1) * MICROSECOND_NS
    elif math.isfinite(period):
        ns = round(period * SECOND_NS)
    else:
        ns = 0
    if ns < 1:
        raise ValueError(f"{name}: expected seconds above 0, got {period!r}")
    return ns


def whole_number(number: int, name: str, least: int = 1) -> int:
    """`number` itself. Raises ValueError unless it is an int of at least `least`."""
    if type(number) is not int or number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {number!r}")
    return number


def to_seconds(ns: int) -> float:
    """`ns` as seconds: the nearest float, which names the same nanosecond for a hundred days."""
    return ns / SECOND_NS


@lru_cache(maxsize=256)  # each refusal says its period
def format_seconds(ns: int) -> str:
    """`ns` for a person.

    >>> format_seconds(10_000_000_000), format_seconds(1_500_000_000)
    ('10 s', '1.5 s')
    """
    whole_s, rest = divmod(ns, SECOND_NS)
    return f"{whole_s}.{rest:09d}".rstrip("0").rstrip(".") + " s"


def reject_burst(burst: int | None) -> None:
    """Raises ValueError when a limiter that has no burst is given one."""
    if burst is not None:
        raise ValueError(f"burst: this limiter has none, got {burst!r}")
