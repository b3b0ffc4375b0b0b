"""Moves records from requests to a sink: a bounded queue, and one thread per process.

A request only appends to a deque; it never waits for the sink, and it takes no mutex that the thread holds.
When the queue is full the record is dropped and counted. Each record is at any moment counted as written,
dropped or waiting; while it moves it may briefly count twice, but never as none of them.
"""

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

from gatekeeper import lifecycle
from gatekeeper.clock import Clock, PeriodicTask
from gatekeeper.requestlog.log_record import LogEntry, LogLine, encode_line
from gatekeeper.telemetry.atomic_counts import AtomicCounts

log = logging.getLogger("gatekeeper")

GATHER_S = 0.02  # a record waits at most this long for others, so that they are written together
IDLE_S = 0.2  # the longest such wait, after a while without records
# Back-off after a failure of the sink; the maximum bounds the delay after its recovery.
RETRY_S, RETRY_S_MAX = 0.1, 5.0
LINES_MAX = 1_000  # per write
RESTART_EVERY_S = 1.0  # bounds the threads that are started when each of them dies at once
WARN_EVERY_S = 60.0
CLOSE_S = 5.0


class WriteOutcome(NamedTuple):
    """Result of a write: how many lines the sink has taken, written and lost.

    The first `taken` of the given lines now belong to the sink. `written` and `lost` count the lines, of all
    that the sink has ever taken, whose outcome it has learnt since the previous call.
    """

    taken: int = 0
    written: int = 0
    lost: int = 0
    trouble: str = ""  # why it did not take or write all of them


class LogSink(Protocol):
    """Destination of lines. Only one thread at a time calls it."""

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        """Takes as many of `lines` as it has room for, possibly none.

        May block for some seconds, because no request waits for it. Reports foreseeable errors in the outcome
        instead of raising.
        """

    def close(self) -> None:
        """Releases what the sink holds; a later `write` opens it again."""

    def forked(self) -> None:
        """Drops what is shared with the parent, without using it. Called in a forked child."""


class BackgroundWriter:
    """A queue of at most `buffer` records, and a thread that empties it into `sink`.

    In each process the first record starts the thread. A later record starts it again if it has ended.
    """

    def __init__(self, sink: LogSink, *, buffer: int, clock: Clock) -> None:
        if buffer < 1:
            raise ValueError(f"buffer: expected at least 1 record, got {buffer}")
        self._sink = sink
        self._buffer = buffer
        self._clock = clock
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        """Sets an empty state: for the constructor, and for a child, whose parent writes the records."""
        self._queue: deque[LogEntry] = deque()
        self._lines: list[LogLine] = []  # encoded, not taken by the sink yet
        self._in_sink = 0  # taken by the sink, outcome unknown
        self._overflow = AtomicCounts()  # dropped because the queue was full
        self._lost = 0
        self.written = 0
        self._trouble = ""
        self._pause_s = GATHER_S
        self._dropped_before = 0  # at the previous write
        self._dropped_s = -inf
        self._warn_s = -inf
        self._dropped_warned = 0  # at the previous warning
        self._origin = os.urandom(8).hex()
        self._number = count(1)
        self._task: PeriodicTask | None = None
        self._restart_s = -inf
        self._start_mutex = threading.Lock()
        self._sink_mutex = threading.Lock()  # held while the sink is called
        self._count_mutex = threading.Lock()  # for readers of `dropped`, never for requests

    # -- called by requests --------------------------------------------------------------------

    def put(self, entry: LogEntry) -> None:
        """Queues a record. Never blocks; if the queue is full the record is dropped and counted."""
        if len(self._queue) >= self._buffer:
            self._overflow.add()
        else:
            self._queue.append(entry)
        if self._task is None or not self._task.alive:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._clock.uptime_s() < self._restart_s or not self._start_mutex.acquire(blocking=False):
            return
        try:
            if self._task is None or not self._task.alive:
                self._restart_s = self._clock.uptime_s() + RESTART_EVERY_S
                self._task = self._clock.run(self._run_once, "gatelock request log")
        except RuntimeError as error:  # no more threads, or the interpreter shuts down
            log.warning("request log: its thread cannot be started: %s", error)
        finally:
            self._start_mutex.release()

    # -- state and control ---------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Records that are neither written nor dropped yet."""
        return len(self._queue) + len(self._lines) + self._in_sink

    @property
    def dropped(self) -> int:
        """Records that are missing in the log: the queue was full, or the sink lost them."""
        with self._count_mutex:
            return self._overflow.read() + self._lost

    @property
    def healthy(self) -> bool:
        """Whether records are being written, and none was dropped in the last minute."""
        is_alive = self._task is None or self._task.alive
        has_dropped = self._clock.uptime_s() - self._dropped_s < WARN_EVERY_S
        return is_alive and not self._trouble and not has_dropped and len(self._queue) < self._buffer

    def flush(self, timeout: float) -> bool:
        """Writes waiting records in this thread; returns whether none is left.

        Args:
            timeout: Seconds, plus the time of the sink's last attempt.
        """
        deadline_s = self._clock.uptime_s() + timeout
        while True:
            left_s = deadline_s - self._clock.uptime_s()
            if left_s < 0 or not self._sink_mutex.acquire(timeout=left_s):
                return False
            try:  # `waiting` is read under the mutex: lines in the thread's current call still count
                pause_s = self._write() if self.waiting else 0.0
                if not self.waiting:
                    return True
            finally:
                self._sink_mutex.release()
            self._clock.wait(threading.Event(), min(max(pause_s, GATHER_S), left_s + GATHER_S))

    def close(self, timeout: float) -> None:
        """Writes waiting records, for at most `timeout` seconds, and ends the thread.

        A later record starts it again.
        """
        with self._start_mutex:
            task, self._task = self._task, None
        if not self.flush(timeout):
            log.warning("request log: closed with %d records unwritten: %s", self.waiting, self._trouble)
        if task is not None:
            task.stop(GATHER_S)
        if self._sink_mutex.acquire(blocking=False):
            try:
                self._sink.close()
            finally:
                self._sink_mutex.release()

    # -- the thread ----------------------------------------------------------------------------

    def _run_once(self) -> float:
        with self._sink_mutex:
            return self._write()

    def _write(self) -> float:
        """Moves waiting records to the sink; returns the seconds until the next call."""
        encoded = self._encode()
        try:
            outcome = self._sink.write(self._lines)
        except Exception as error:  # a bug of the sink must not end the log
            log.debug("request log: the sink failed", exc_info=True)
            outcome = WriteOutcome(trouble=repr(error))
        # Added before it is removed: counting a record twice for a moment is better than seeming to lose it.
        self._lost += outcome.lost
        self.written += outcome.written
        self._in_sink += outcome.taken - outcome.written - outcome.lost
        del self._lines[: outcome.taken]
        self._trouble = outcome.trouble
        self._warn()
        self._pause_s = self._next_pause_s(encoded, outcome)
        return self._pause_s

    def _encode(self) -> int:
        """Turns queued records into lines; returns their number."""
        records = min(len(self._queue), LINES_MAX - len(self._lines))
        for _ in range(records):
            entry = self._queue[0]
            try:
                self._lines.append(encode_line(entry, f"{self._origin}-{next(self._number):x}"))
            except Exception:  # a record that cannot be encoded must not block the others
                self._lost += 1
                log.debug("request log: a record cannot be encoded: %r", entry, exc_info=True)
            self._queue.popleft()
        return records

    def _next_pause_s(self, encoded: int, outcome: WriteOutcome) -> float:
        if outcome.taken and len(self._queue) >= LINES_MAX:
            return 0.0
        if outcome.taken or outcome.written or (encoded and not outcome.trouble):
            return GATHER_S
        if outcome.trouble and not self._in_sink:
            return min(RETRY_S_MAX, max(RETRY_S, 2 * self._pause_s))
        # The outcome of lines in the sink may arrive at any moment, and polling for it is cheap.
        return min(IDLE_S, max(GATHER_S, 2 * self._pause_s))

    def _warn(self) -> None:
        """Logs, at most once a minute, that records were dropped or cannot be written."""
        now_s, dropped = self._clock.uptime_s(), self.dropped
        if dropped > self._dropped_before:
            self._dropped_before, self._dropped_s = dropped, now_s
        dropped_since = dropped - self._dropped_warned
        if (dropped_since or self._trouble) and now_s >= self._warn_s:
            log.warning(
                "request log: %d records dropped since the previous warning, %d waiting: %s",
                dropped_since,
                self.waiting,
                self._trouble or "requests came faster than records could be written",
            )
            self._warn_s, self._dropped_warned = now_s + WARN_EVERY_S, dropped


# A forked child has only the thread that forked, and a copy of the records that its parent will write.
_writers: weakref.WeakSet[BackgroundWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._reset()
        writer._sink.forked()


def _at_exit() -> None:
    for writer in list(_writers):
        writer.close(CLOSE_S)


def run_first_at_exit() -> None:
    """Registers the exit hook of the writers again, so that it runs before all hooks registered until now."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


lifecycle.on_fork(_after_fork)
run_first_at_exit()
