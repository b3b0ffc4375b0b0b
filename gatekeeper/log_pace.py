"""Log lines that requests cause, one in a second of each kind: clients do not decide how much is logged."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

EVERY_S = 1.0


class LogPace:
    """The pace of one kind of lines. Has no lock, which a fork could leave taken: threads may lose a count.

    Example:
        >>> pace = LogPace(uptime_s=iter([7.0, 7.1, 7.2, 8.0]).__next__)
        >>> [pace.next_line() for _ in range(4)]
        ['', None, None, ' (and 2 more since the line before)']
    """

    __slots__ = ("_left_out", "_next_s", "_uptime_s")

    def __init__(self, uptime_s: Callable[[], float] = time.monotonic) -> None:
        self._uptime_s = uptime_s
        self._next_s = -inf
        self._left_out = 0

    def next_line(self) -> str | None:
        """Returns what to add to the line about to be logged; None if it is to be left out, and counted."""
        now_s = self._uptime_s()
        if now_s < self._next_s:
            self._left_out += 1
            return None
        self._next_s = now_s + EVERY_S
        more, self._left_out = more_suffix(self._left_out), 0
        return more


def more_suffix(count: int) -> str:
    """Returns the end of a line which stands for `count` others as well."""
    return f" (and {count:,} more since the line before)" if count else ""
