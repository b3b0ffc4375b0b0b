"""Clocks of the CPU time of single threads, which any thread may read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

CpuClock = Callable[[], float]


def own_cpu_clock() -> CpuClock:
    """Returns a clock of the calling thread's CPU time, in seconds; it stands at 0 once the thread has ended.

    Where threads have no clocks (macOS) it is the clock of the whole process.
    """
    clock_id_by_thread = getattr(time, "pthread_getcpuclockid", None)
    if clock_id_by_thread is None:
        return time.process_time
    # Asked for in the thread itself: with the id of a thread that has ended the call is undefined.
    clock_id = clock_id_by_thread(threading.get_ident())

    def cpu_s() -> float:
        try:
            return time.clock_gettime(clock_id)
        except OSError:
            return 0.0

    return cpu_s


class WorkClock:
    """The CPU time of the threads that count and store, in seconds.

    Example:
        >>> clock = WorkClock()
        >>> clock.add(lambda: 1.5)
        >>> clock.add(lambda: 0.25)
        >>> clock()
        1.75
    """

    def __init__(self) -> None:
        self._clocks: list[CpuClock] = []

    def add(self, clock: CpuClock) -> None:
        """Adds the clock of one thread."""
        self._clocks.append(clock)

    def __call__(self) -> float:
        return sum(clock() for clock in list(self._clocks))
