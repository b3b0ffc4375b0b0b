"""Bounded waits for a condition, for tests of real servers."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 20.0
EVERY_S = 0.01


def wait_until(
    condition: Callable[[], object],
    within_s: float = PATIENCE_S,
    message: Callable[[], object] = lambda: "the condition was not met in time",
    *,
    every_s: float = EVERY_S,
) -> None:
    """Returns when `condition` is true, asked each `every_s` seconds.

    Fails with `message` when it is not true within `within_s` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, message()
        time.sleep(every_s)
