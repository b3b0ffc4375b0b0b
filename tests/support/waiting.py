"""Bounded waits for a condition, for tests with real servers and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 20.0
EVERY_S = 0.01
# A condition may ask a server, which then computes as long as the test: it gets a fifth of the time at most.
PAUSE_TIMES, PAUSE_S_MAX = 4, 0.25
T = TypeVar("T")


class NotInTime(AssertionError):
    """A wait ended in vain: the machine is slow, or what was waited for never comes."""


def wait_until(
    condition: Callable[[], object],
    within_s: float = PATIENCE_S,
    message: Callable[[], object] = lambda: "the condition was not met in time",
    *,
    every_s: float | None = None,
) -> None:
    """Returns when `condition` is true, which is checked each `every_s` seconds; None: as often as it may.

    Fails with `message` when it is not true within `within_s` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        ended_s = time.monotonic()
        if ended_s >= deadline_s:
            raise NotInTime(message())
        time.sleep(pause_s(ended_s - began_s) if every_s is None else every_s)


def wait_for(get: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """Returns the first true value that `get` returns; fails when there is none within `within_s` seconds."""
    deadline_s = time.monotonic() + within_s
    while True:
        began_s = time.monotonic()
        if found := get():
            return found
        ended_s = time.monotonic()
        if ended_s >= deadline_s:
            raise NotInTime("no value came in time")
        time.sleep(pause_s(ended_s - began_s))


def pause_s(took_s: float) -> float:
    """Returns how long to pause after a check that took so long.

    >>> pause_s(0.001), pause_s(0.02), pause_s(2.0)
    (0.01, 0.08, 0.25)
    """
    return max(EVERY_S, min(PAUSE_TIMES * took_s, PAUSE_S_MAX))
