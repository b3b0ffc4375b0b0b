"""Ends the process when its loop hangs, so that whoever started it does so again.

Offsets and counts are stored together: that costs nothing but reading a little again. A client's call that
never comes back cannot be ended in any other way (kafka-python runs in circles in the `poll()` after one
that met a damaged batch).
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
END_AFTER_S = 45.0  # longer than any turn: those are bound by the time-outs of what they ask


class Watchdog:
    """Looks every second whether the loop has turned since. Not by the clock: a process that was stopped for
    an hour and goes on does not hang."""

    def __init__(
        self,
        loop_completed_s: Callable[[], float | None],
        wait: Callable[[float], bool],
        end: Callable[[], None],
        problems: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`loop_completed_s` gives the last loop, `wait(seconds)` that it is to stop; `end` ends us.
        `problems` are told by name when it hangs: the loop cannot tell them any more."""
        self._loop_completed_s = loop_completed_s
        self._wait = wait
        self._end = end
        self._problems = problems

    def run(self) -> None:
        """Until told to stop, or until the loop hangs."""
        quiet_s, seen_s = 0.0, self._loop_completed_s()
        while not self._wait(TICK_S):
            if (loop_completed_s := self._loop_completed_s()) != seen_s:
                quiet_s, seen_s = 0.0, loop_completed_s
                continue
            quiet_s += TICK_S
            if quiet_s == WARN_AFTER_S:
                for name, why in self._problems().items():
                    log.error("%s: %s", name, why)
                log.error("the loop has not turned for %.0f s:\n%s", quiet_s, stacks())
            if quiet_s >= END_AFTER_S:
                log.critical("the loop hangs for %.0f s: ending the process:\n%s", quiet_s, stacks())
                self._end()
                return

    def start(self) -> None:
        threading.Thread(target=self.run, daemon=True, name="watchdog").start()


def stacks() -> str:
    """What every thread is at, but this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
