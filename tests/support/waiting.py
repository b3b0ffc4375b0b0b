"""Bounded waits for a condition, for tests of real servers."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 20.0
LOOK_EVERY_S = 0.01


def wait_until(
    condition: Callable[[], object],
    within_s: float = PATIENCE_S,
    message: Callable[[], object] = lambda: "the condition was not met in time",
) -> None:
    """Returns when `condition` is true; fails with `message` when it is not within `within_s` seconds."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, message()
        time.sleep(LOOK_EVERY_S)
