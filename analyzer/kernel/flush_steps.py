"""The durations of the steps of a flush, measured in its thread for metrics and traces after the commit."""

from __future__ import annotations

import time
from collections.abc import Callable

# Of a flush, in this order. What a flush has nothing of is a short step, never a missing one.
STEPS = (
    "offsets", "plan", "verdicts", "totals", "buckets", "shared-totals", "judge", "publish", "commit"
)  # fmt: skip


class StepTimes:
    """The durations of consecutive steps: each begins where the one before has ended.

    Args:
        uptime_s: A clock for durations, in seconds.

    Example:
        >>> steps = StepTimes(iter([1.0, 1.5, 1.75]).__next__)
        >>> steps.ended("offsets")
        >>> steps.ended("commit")
        >>> steps.seconds
        {'offsets': 0.5, 'commit': 0.25}
    """

    __slots__ = ("_last_s", "_uptime_s", "seconds")

    def __init__(self, uptime_s: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}  # by step, in order
        self._uptime_s = uptime_s
        self._last_s = uptime_s()

    def ended(self, step: str) -> None:
        """Ends a step, which began when the one before ended; a step that ends twice has the sum."""
        now_s = self._uptime_s()
        self.seconds[step] = self.seconds.get(step, 0.0) + now_s - self._last_s
        self._last_s = now_s


NO_STEPS = StepTimes(lambda: 0.0)
