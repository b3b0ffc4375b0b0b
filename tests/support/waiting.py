"""Bounded waits for a condition, for tests with real servers and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 20.0
EVERY_S = 0.01
T = TypeVar("T")


class NotInTime(AssertionError):
    """A wait ended in vain: the machine is slow, or what was waited for never comes."""


def wait_until(
    condition: Callable[[], object],
    within_s: float = PATIENCE_S,
    message: Callable[[], object] = lambda: "the condition was not met in time",
    *,
    every_s: float = EVERY_S,
) -> None:
    """Returns when `condition` is true, which is checked each `every_s` seconds.

    Fails with `message` when it is not true within `within_s` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise NotInTime(message())
        time.sleep(every_s)


def wait_for(get: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """Returns the first true value that `get` returns; fails when there is none within `within_s` seconds."""
    deadline_s = time.monotonic() + within_s
    while not (found := get()):
        if time.monotonic() >= deadline_s:
            raise NotInTime("no value came in time")
        time.sleep(EVERY_S)
    return found
