"""Notices that the thread of the poller does not run although requests are served.

Some servers give the threads of an application no time between two requests: uWSGI without `enable-threads`,
an event loop of gevent that a request keeps busy. Others fork without Python's hooks, so that the thread
exists in the parent alone. The view then grows old while everything looks well. It is noticed in three
places, and `Gate.allow` pays for none:

    at the start   uWSGI says whether it runs threads
    the poller     began several polls in a row much later than it planned
    a request      at a guard, or one that may have a lock, finds the poller overdue, and so does a later one
"""

from __future__ import annotations

import logging
import os
import sys
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatekeeper.clock import Clock

log = logging.getLogger("gatekeeper")

LATE_S = 2.0  # behind its plan, a poller is overdue; a machine that is merely busy delays it by less
LATE_POLLS = 3  # in a row

UWSGI = "uWSGI runs no threads: start it with --enable-threads (in a file: enable-threads = true)"
GEVENT = (
    "a request keeps the event loop of gevent busy, or gevent.monkey.patch_all() came after the gate was "
    "started: call it first, and let long requests yield"
)
ANY_SERVER = (
    "the server gives the threads of the application no time: turn its threads on, or use workers that have "
    "threads"
)


def threads_obstacle() -> str:
    """Returns why the threads of this process do not run, as far as its server says so; otherwise ""."""
    uwsgi = sys.modules.get("uwsgi")  # exists inside uWSGI alone
    has_threads = bool(getattr(uwsgi, "has_threads", True)) or getattr(uwsgi, "loop", None) == b"gevent"
    return "" if uwsgi is None or has_threads else UWSGI


def is_before_workers() -> bool:
    """Whether this is the process that uWSGI forks its workers from.

    A thread that runs there while it forks leaves the interpreter of the workers damaged: without
    `enable-threads` their first thread waits forever, with it a worker does not end.
    """
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and uwsgi.worker_id() == 0


def likely_cause() -> str:
    """Returns the most likely cause for a poller that does not run, with what to do."""
    if obstacle := threads_obstacle():
        return obstacle
    return GEVENT if "gevent" in sys.modules else ANY_SERVER


class PollerWatch:
    """Watch over the poller of one gate: when it is due, and whether it runs.

    Attributes:
        is_stalled: Whether the poller does not run as it should; the gate is not healthy then.
    """

    __slots__ = (
        "_clock", "_due_s", "_is_reported", "_late_polls", "_obstacle", "_overdue_since", "_pid", "is_stalled"
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_reported = False
        self.reset()

    def reset(self) -> None:
        """Begins again: in a forked process, or after `close`."""
        self._pid = os.getpid()
        self._due_s = inf  # uptime at which the poller will run again at the latest
        self._late_polls = 0
        self._overdue_since = inf, inf  # that uptime when a request first found it passed, and when that was
        self._obstacle = ""
        self.is_stalled = False

    def started(self) -> None:
        """Asks the server whether threads run, before the poller's thread is started."""
        self._obstacle = threads_obstacle()
        if self._obstacle:
            self._note_stalled()

    # -- the poller's thread -------------------------------------------------------------------

    def began(self, longest_s: float) -> None:
        """Notes that a poll begins, which takes `longest_s` seconds at most."""
        now_s = self._clock.uptime_s()
        self._late_polls = self._late_polls + 1 if now_s > self._due_s + LATE_S else 0
        self._due_s = now_s + longest_s
        if self._late_polls >= LATE_POLLS:
            self._note_stalled()
        elif not self._late_polls and not self._obstacle:
            self.is_stalled = False

    def ended(self, wait_s: float) -> None:
        """Notes that a poll has ended, and that the next one begins after `wait_s` seconds."""
        self._due_s = self._clock.uptime_s() + wait_s

    # -- requests ------------------------------------------------------------------------------

    @property
    def is_overdue(self) -> bool:
        """Whether the poller should have run by now."""
        return self._clock.uptime_s() > self._due_s + LATE_S

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one in which the poller was started."""
        return os.getpid() != self._pid

    def note_overdue(self) -> None:
        """Notes that a request found the poller overdue.

        One request says little: the process may have been stopped as a whole. A second one does, after a time
        in which the poller could have run.
        """
        now_s, (due_s, since_s) = self._clock.uptime_s(), self._overdue_since
        if due_s != self._due_s:
            self._overdue_since = self._due_s, now_s
        elif now_s - since_s >= LATE_S:
            self._note_stalled()

    def _note_stalled(self) -> None:
        self.is_stalled = True
        if not self._is_reported:
            self._is_reported = True  # once in a process: it will not change by itself
            log.warning("the gate learns of locks late, because its poller does not run: %s", likely_cause())
