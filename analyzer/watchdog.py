"""Ends the process when its loop hangs, so that the supervisor (systemd, Kubernetes, ...) starts it again.

A call into a client library that never returns cannot be ended in any other way. (kafka-python, for example,
loops in the `poll()` that follows one which met a damaged batch.) Counts and offsets are stored together, so
ending the process at any moment costs nothing but reading a few records again.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

TICK_S = 1.0
WARN_AFTER_S = 20.0
# Longer than any loop: time-outs bound every call that a loop makes, and a turn's budget what it computes.
END_AFTER_S = 45.0
# A loop that uses less in a second waits in a call, which at most wakes up now and then. So below a hundredth
# of a core a slow process is taken for one that hangs.
WAITING_CPU_S = 0.01


class Watchdog:
    """Checks every second whether the loop has completed since, and what it has done otherwise.

    A second that it spent waiting counts as a second, one that it spent computing as the CPU time it was
    given: with a twentieth of a core a loop that computes may take twenty times as long. One that computes
    without an end hangs, too.

    It counts its own ticks instead of reading a clock: a process that was stopped for an hour and continues
    does not hang.
    """

    def __init__(
        self,
        loop_completed_s: Callable[[], float | None],
        wait: Callable[[float], bool],
        end_process: Callable[[], None],
        problems: Callable[[], Mapping[str, str]] = dict,
        cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`loop_completed_s` returns when the loop last completed. `wait(seconds)` pauses and returns whether
        to stop watching. `problems` are logged by name when the loop hangs: the loop itself cannot. `cpu_s`
        is the CPU time of the threads that the loop consists of."""
        self._loop_completed_s = loop_completed_s
        self._wait = wait
        self._end_process = end_process
        self._problems = problems
        self._cpu_s = cpu_s

    def run(self) -> None:
        """Watches until `wait` says to stop, or until the loop hangs and the process is ended."""
        stalled_s, last_s, cpu_s = 0.0, self._loop_completed_s(), self._cpu_s()
        is_warned = False
        while not self._wait(TICK_S):
            before_s, cpu_s = cpu_s, self._cpu_s()
            if (completed_s := self._loop_completed_s()) != last_s:
                stalled_s, last_s, is_warned = 0.0, completed_s, False
                continue
            stalled_s += stalled_in_tick_s(cpu_s - before_s)
            if stalled_s >= WARN_AFTER_S and not is_warned:
                is_warned = True
                for name, problem in self._problems().items():
                    log.error("%s: %s", name, problem)
                log.error("the loop has not completed for %.0f s:\n%s", stalled_s, thread_stacks())
            if stalled_s >= END_AFTER_S:
                stacks = thread_stacks()
                log.critical("the loop has hung for %.0f s: ending the process:\n%s", stalled_s, stacks)
                self._end_process()
                return

    def start(self) -> None:
        """Runs the watchdog in a daemon thread."""
        threading.Thread(target=self.run, daemon=True, name="watchdog").start()


def stalled_in_tick_s(used_s: float) -> float:
    """Returns how much of a tick counts as stalled, in which the loop used `used_s` of CPU time.

    >>> stalled_in_tick_s(0.0), stalled_in_tick_s(0.05), stalled_in_tick_s(1.8)
    (1.0, 0.05, 1.0)
    """
    return TICK_S if used_s < WAITING_CPU_S else min(TICK_S, used_s)


def thread_stacks() -> str:
    """Returns the stack of every thread except the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
