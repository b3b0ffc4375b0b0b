"""Takes records from requests and gives them to a sink: bounded, in the background, never in the way."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from gatekeeper.clock import Clock, PeriodicTask
from gatekeeper.requestlog.log_record import LogEntry, LogLine, line_of
from gatekeeper.telemetry.atomic_counts import AtomicCounts

log = logging.getLogger("gatekeeper")

GATHER_S = 0.02  # a record waits so long at most while others come, which are then written together
IDLE_S = 0.2  # ... and so long when none came for a while
RETRY_S, RETRY_S_MAX = 0.1, 5.0  # a sink that fails is tried again, and soon after it is well again
LINES_MAX = 1_000  # written at once
RESTART_EVERY_S = 1.0  # a thread that dies at once must not cost each request another one
COMPLAIN_EVERY_S = 60.0
CLOSE_S = 5.0


class WriteOutcome(NamedTuple):
    """What became of lines. `taken` of those just given, from the first, are the sink's now; `written` and
    `lost`, of all it has ever taken, are those that it has learnt about since it was asked last."""

    taken: int = 0
    written: int = 0
    lost: int = 0
    trouble: str = ""  # why it is not all of them


class LogSink(Protocol):
    """Where lines go. Only one thread at a time calls it."""

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        """Take as many of `lines` as there is room for, perhaps of none. May block for some seconds, for
        nobody waits for it. Raises nothing that can be foreseen."""

    def close(self) -> None:
        """Give back what is held; a later `write` begins again."""

    def forked(self) -> None:
        """This is a child: drop, without touching it, what is shared with the parent."""


class BackgroundWriter:
    """A queue of at most `buffer` records, and a thread that empties it into `sink`.

    The thread begins with the first record, in whatever process that is, and again should it have ended.
    """

    def __init__(self, sink: LogSink, *, buffer: int, clock: Clock) -> None:
        if buffer < 1:
            raise ValueError(f"buffer: expected at least 1 record, got {buffer}")
        self._sink = sink
        self._buffer = buffer
        self._clock = clock
        self._begin_anew()
        _writers.add(self)

    def _begin_anew(self) -> None:
        """At birth, and in a forked child: there the parent writes what is its own."""
        self._queue: deque[LogEntry] = deque()
        self._lines: list[LogLine] = []  # taken from the queue, and not by the sink
        self._held = 0  # by the sink, which does not know yet what becomes of them
        self._turned_away = AtomicCounts()  # for want of room
        self._lost = 0
        self.written = 0
        self._trouble = ""
        self._pause_s = GATHER_S
        self._dropped = 0  # as it was at the last turn
        self._dropped_s = -inf
        self._complain_s = -inf
        self._complained_of = 0
        self._origin = os.urandom(8).hex()
        self._number = count(1)
        self._running: PeriodicTask | None = None
        self._restart_s = -inf
        self._starting = threading.Lock()
        self._turning = threading.Lock()  # one at a time talks to the sink
        self._counting = threading.Lock()  # for those who look, never for requests

    # -- requests ------------------------------------------------------------------------------

    def put(self, entry: LogEntry) -> None:
        """Have this written. Never blocks; without room it is dropped, and counted."""
        if len(self._queue) >= self._buffer:
            self._turned_away.add()
        else:
            self._queue.append(entry)
        if self._running is None or not self._running.alive:
            self._revive()

    def _revive(self) -> None:
        if self._clock.uptime_s() < self._restart_s or not self._starting.acquire(blocking=False):
            return
        try:
            if self._running is None or not self._running.alive:
                self._restart_s = self._clock.uptime_s() + RESTART_EVERY_S
                self._running = self._clock.run(self._turn, "gatelock request log")
        except RuntimeError as error:  # no thread to be had, or the interpreter is going down
            log.warning("the request log's thread cannot be started: %s", error)
        finally:
            self._starting.release()

    # -- whoever looks -------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Records that are neither written nor dropped yet."""
        return len(self._queue) + len(self._lines) + self._held

    @property
    def dropped(self) -> int:
        """Records that nobody will find in the log: there was no room for them, or the sink lost them."""
        with self._counting:
            return self._turned_away.read() + self._lost

    @property
    def healthy(self) -> bool:
        """Whether records are being written, and none was dropped for a minute."""
        alive = self._running is None or self._running.alive
        recently = self._clock.uptime_s() - self._dropped_s < COMPLAIN_EVERY_S
        return alive and not self._trouble and not recently and len(self._queue) < self._buffer

    def flush(self, timeout: float) -> bool:
        """Write what waits, in this thread; whether nothing waits any more after at most so many seconds,
        plus what the sink takes for its last attempt."""
        deadline_s = self._clock.uptime_s() + timeout
        while True:
            left_s = deadline_s - self._clock.uptime_s()
            if left_s < 0 or not self._turning.acquire(timeout=left_s):
                return False
            try:  # not before: what the thread has in its hands is still on its way
                pause_s = self._write() if self.waiting else 0.0
                if not self.waiting:
                    return True
            finally:
                self._turning.release()
            self._clock.wait(threading.Event(), min(max(pause_s, GATHER_S), left_s + GATHER_S))

    def close(self, timeout: float) -> None:
        """Write what waits, as far as that can be done in time, and end the thread. A later record starts
        it again."""
        with self._starting:
            running, self._running = self._running, None
        if not self.flush(timeout):
            log.warning("request log: closed with %d records unwritten: %s", self.waiting, self._trouble)
        if running is not None:
            running.stop(GATHER_S)
        if self._turning.acquire(blocking=False):
            try:
                self._sink.close()
            finally:
                self._turning.release()

    # -- the thread ----------------------------------------------------------------------------

    def _turn(self) -> float:
        with self._turning:
            return self._write()

    def _write(self) -> float:
        """Move what waits to the sink; the seconds until it should be done again."""
        came = self._take()
        try:
            outcome = self._sink.write(self._lines)
        except Exception as error:  # a fault of the sink's must not end the log
            log.debug("the request log's sink failed", exc_info=True)
            outcome = WriteOutcome(trouble=repr(error))
        # What has two places for a moment is counted twice; in none it would seem to be lost.
        self._lost += outcome.lost
        self.written += outcome.written
        self._held += outcome.taken - outcome.written - outcome.lost
        del self._lines[: outcome.taken]
        self._trouble = outcome.trouble
        self._complain()
        self._pause_s = self._next_pause_s(came, outcome)
        return self._pause_s

    def _take(self) -> int:
        """Turn records into lines; how many."""
        came = min(len(self._queue), LINES_MAX - len(self._lines))
        for _ in range(came):
            entry = self._queue[0]
            try:
                self._lines.append(line_of(entry, f"{self._origin}-{next(self._number):x}"))
            except Exception:  # one that cannot be written must not keep the others from it
                self._lost += 1
                log.debug("a record cannot be written: %r", entry, exc_info=True)
            self._queue.popleft()
        return came

    def _next_pause_s(self, came: int, outcome: WriteOutcome) -> float:
        if outcome.taken and len(self._queue) >= LINES_MAX:
            return 0.0
        if outcome.taken or outcome.written or (came and not outcome.trouble):
            return GATHER_S
        if outcome.trouble and not self._held:
            return min(RETRY_S_MAX, max(RETRY_S, 2 * self._pause_s))
        # What a sink holds may be answered any moment, and to ask for that costs nothing.
        return min(IDLE_S, max(GATHER_S, 2 * self._pause_s))

    def _complain(self) -> None:
        """Say that records were dropped, or cannot be written: a line a minute."""
        now_s, dropped = self._clock.uptime_s(), self.dropped
        if dropped > self._dropped:
            self._dropped, self._dropped_s = dropped, now_s
        news = dropped - self._complained_of
        if (news or self._trouble) and now_s >= self._complain_s:
            log.warning(
                "request log: %d records dropped since it was last said, %d wait: %s",
                news,
                self.waiting,
                self._trouble or "they came faster than they could be written",
            )
            self._complain_s, self._complained_of = now_s + COMPLAIN_EVERY_S, dropped


# A child of fork has only the thread that forked, and a copy of what its parent will write.
_writers: weakref.WeakSet[BackgroundWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._begin_anew()
        writer._sink.forked()


def _at_exit() -> None:
    for writer in list(_writers):
        writer.close(CLOSE_S)


def run_first_at_exit() -> None:
    """Be called at the end of the process before what others have registered until now."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


os.register_at_fork(after_in_child=_after_fork)
run_first_at_exit()
