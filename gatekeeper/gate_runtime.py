"""The runtime of a gate:

the thread of its poller, from the first start through crashes and forks to `close`.
"""

from __future__ import annotations

import functools
import logging
import threading
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from gatekeeper import lifecycle
from gatekeeper.clock import PeriodicTask
from gatekeeper.feed.poller import GateKnowledge, Poller, longest_fetch
from gatekeeper.gate_options import is_switched_off, make_slow_locks
from gatekeeper.poller_watch import PollerWatch, is_before_workers
from gatekeeper.startup import StartupWait
from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.fast_path import FastPath, FastPathSwitch, Mode, build_fast_path
from gatekeeper.view.sharded_table import LockTable, release

if TYPE_CHECKING:
    from collections.abc import Callable

    from gatekeeper.callbacks import ChangeCallbacks
    from gatekeeper.gate_options import GateOptions
    from gatekeeper.model import StatusSink
    from gatekeeper.telemetry.gate_counts import GateCounts
    from gatekeeper.telemetry.gate_status import StatusRecorder
    from gatekeeper.view.precedence import SlowLimit

log = logging.getLogger("gatekeeper")

RESTART_EVERY_S = 1.0  # so that a poller that always crashes does not cost each request a thread
CLOSE_S = 2.0  # how long `close` waits for a poll that is running


class NotRunning:
    """The task of a gate that is not polling."""

    alive = False

    def stop(self, timeout: float) -> None:
        """Does nothing."""


NOT_RUNNING: PeriodicTask = NotRunning()


class GateRuntime:
    """Runs the poller of one gate, and publishes its knowledge to the requests of the gate.

    Attributes:
        knowledge: The view, with its age.
        is_off: Whether GATEKEEPER=off was set at the last poll.
        slow_locks: The token buckets of locks that slow; None before the first such lock.
        startup: The wait of guards for the first answer.
        status: What is recorded for reports; None before the first one in this process.
        counts: What is counted for metrics; None before they are asked for.
        task: The poller's thread.
        watch: Whether that thread runs.
    """

    def __init__(
        self,
        options: GateOptions,
        set_fast_path: Callable[[FastPath], object],
        callbacks: ChangeCallbacks[Any],
    ) -> None:
        self.knowledge = GateKnowledge()
        self.counts: GateCounts | None = None
        self.slow_locks: SlowLimit | None = None
        self._options = options
        self._callbacks = callbacks
        self._switch = FastPathSwitch(set_fast_path)
        self._started_s: float | None = None  # uptime at the first start
        self.watch = PollerWatch(options.clock)
        self.startup = StartupWait(options.startup_wait_s, options.clock, self._start_for_request)
        self._reset_threads()
        lifecycle.register(self, after_fork=GateRuntime._after_fork, at_exit=GateRuntime.close)

    def _reset_threads(self) -> None:
        self.is_off = is_switched_off()
        self.status: StatusRecorder | None = None  # of this process alone
        if self.counts is not None:
            self.counts = type(self.counts)()  # the parent's counts are the parent's
        self.task = NOT_RUNNING
        self._poller: Poller | None = None
        self._has_answered = threading.Event()
        self.startup.reset(self._has_answered)
        self._restart_s = -inf  # the earliest uptime of the next start

    def _after_fork(self) -> None:
        self.watch.reset()
        self._reset_threads()
        self._switch.reset_after_fork()
        self._callbacks.reset_threads()

    # -- for requests: none of these waits -----------------------------------------------------

    def restart(self) -> None:
        """Starts the poller, unless the gate is closed, another thread starts it, or it was just started."""
        switch = self._switch
        if (
            switch.mode is Mode.CLOSED
            or self._options.clock.uptime_s() < self._restart_s
            or not switch.mutex.acquire(blocking=False)
        ):
            return
        try:
            self._start_poller()
        except RuntimeError as error:  # no thread is available, or the interpreter is shutting down
            log.warning("the poller cannot be started: %s", error)
        finally:
            switch.mutex.release()

    def _start_for_request(self) -> bool:
        """Starts the poller as `restart` does; returns whether its first answer is worth a wait."""
        if not self.task.alive:
            self.restart()
        return not self.is_off and self._switch.mode is not Mode.CLOSED

    def look_at_poller(self) -> None:
        """Notices a poller that does not run although requests are served. Reads the clock."""
        watch = self.watch
        if not watch.is_overdue:
            return
        if watch.is_forked:  # by a server that does not call Python's hooks
            lifecycle.after_fork()
            return
        watch.note_overdue()
        options, switch = self._options, self._switch
        is_stale = options.clock.uptime_s() >= self.trusted_until_s(self.knowledge)
        if is_stale and options.on_stale != "allow" and switch.mutex.acquire(blocking=False):
            try:
                switch.expire()
            finally:
                switch.mutex.release()

    def finish_sampling(self) -> None:
        """Returns requests to the fast path after the last caller of a sample."""
        mutex = self._switch.mutex
        if mutex.acquire(blocking=False):  # otherwise the next poll does it
            try:
                self._switch.finish_sampling()
            finally:
                mutex.release()

    def trusted_until_s(self, knowledge: GateKnowledge) -> float:
        """Uptime until which callers without a lock pass in any case."""
        started_s = self._options.clock.uptime_s() if self._started_s is None else self._started_s
        return max(knowledge.confirmed_s, started_s) + self._options.stale_after_s

    # -- for the application -------------------------------------------------------------------

    def switched_off_by(self) -> Literal["", "process", "fleet"]:
        """The off switch that is in force, if any: GATEKEEPER=off, or a suspension of the whole fleet."""
        if self.is_off:
            return "process"
        return "fleet" if self.knowledge.view.is_suspended(self._options.clock.wall_ns()) else ""

    def counting(self) -> GateCounts:
        """Returns what is counted for metrics; the first call begins to count."""
        if self.counts is None:
            from gatekeeper.telemetry.gate_counts import GateCounts  # not needed by most processes

            self.counts = GateCounts()
        return self.counts

    @property
    def is_started(self) -> bool:
        """Whether a poller was started and not closed since."""
        return self.task is not NOT_RUNNING

    def start(self) -> None:
        """Starts the poller. Does nothing if it runs. Raises RuntimeError when no thread can be started."""
        with self._switch.mutex:
            self._switch.start()
            self._start_poller()

    def wait_for_answer(self, timeout: float) -> bool:
        """Whether the source has answered, now or within `timeout` seconds."""
        return self._options.clock.wait(self._has_answered, timeout if self.is_started else 0.0)

    def close(self) -> None:
        """Stops polling, saves the view, and releases what the source and the callbacks hold."""
        with self._switch.mutex:
            self._switch.close()
            task, poller = self.task, self._poller
            self.task, self._poller = NOT_RUNNING, None
            self.watch.reset()
        if poller is not None:
            task.stop(0.0)
            self._options.source.close()  # ends a long poll
            task.stop(CLOSE_S)
            poller.finish()
            self._callbacks.close(CLOSE_S)
        self._options.source.close()

    def _start_poller(self) -> None:
        if self.task.alive:
            return
        self.watch.started()
        if is_before_workers():
            return  # the first request of each worker starts it
        options, now_s = self._options, self._options.clock.uptime_s()
        self._restart_s = now_s + RESTART_EVERY_S
        if self._started_s is None:
            self._started_s = now_s
        self._poller = Poller(
            options.source,
            options.clock,
            self.knowledge,
            pace_max_s=options.stale_after_s / 2,
            view_file=options.view_file,
        )
        step = functools.partial(self._step, self._poller)
        self.task = options.clock.run(step, f"gatelock {options.name}".strip())

    # -- the poller's thread -------------------------------------------------------------------

    def _step(self, poller: Poller) -> float:
        """Polls once; returns seconds until the next poll."""
        self.watch.began(longest_fetch(self._options.source))
        try:
            self.is_off = is_switched_off()
            if self._options.status_sink is not None and not poller.failures:
                self._report_status(poller, self._options.status_sink)
            self._prepare_for(longest_fetch(self._options.source), poller)
            wait_s = poller.step()
            if self.slow_locks is not None:
                self.slow_locks.prune()
            elif poller.known.view.slows:
                self.slow_locks = make_slow_locks(self._options.clock)
            replaced: list[LockTable] = list(self.knowledge.view.tables.values())
            with self._switch.mutex:
                if poller is self._poller:
                    self._publish(poller.known, wait_s)
            self._release(replaced)
            if self.counts is not None and poller.poll is not None:
                self.counts.add_poll(poller.poll.seconds, has_failed=poller.poll.update is None)
            stale_in_s = self.trusted_until_s(poller.known) - self._options.clock.uptime_s()
            wait_s = min(wait_s, self._callbacks.notify(poller.known.view.at, stale_in_s))
            self.watch.ended(wait_s)
            return wait_s
        except BaseException:
            with self._switch.mutex:
                if poller is self._poller:
                    self._switch.crash()
            log.exception("the poller of the lock feed crashed; the next request restarts it")
            raise

    def _prepare_for(self, longest_s: float, poller: Poller) -> None:
        """Puts requests on the slow path if the view may become stale during the next `longest_s` seconds."""
        fetch_end_s = self._options.clock.uptime_s() + longest_s
        if self._options.on_stale != "allow" and fetch_end_s >= self.trusted_until_s(self.knowledge):
            with self._switch.mutex:
                if poller is self._poller:
                    self._switch.settle(Mode.STALE, is_sampling=self._is_sampling)

    def _publish(self, knowledge: GateKnowledge, wait_s: float) -> None:
        """Has requests decided by the knowledge from the poll that has just ended."""
        self.knowledge = knowledge
        until_s = self._options.clock.uptime_s() + wait_s
        if self.is_off:
            self._switch.settle(Mode.OFF, is_sampling=self._is_sampling)
        elif self._options.on_stale != "allow" and (
            self.watch.is_stalled or until_s >= self.trusted_until_s(knowledge)
        ):
            # Where the poller does not run, each request compares the age of the view itself.
            self._switch.settle(Mode.STALE, is_sampling=self._is_sampling)
        else:
            self._switch.settle(Mode.READY, build_fast_path(knowledge.view), is_sampling=self._is_sampling)
        # Last: a request that waits for the answer must be decided by it.
        if knowledge.view.at is not None:
            self._has_answered.set()

    @property
    def _is_sampling(self) -> bool:
        return self.status is not None and self.status.is_sampling

    def _release(self, replaced: list[LockTable]) -> None:
        """Frees entries that only the replaced tables refer to."""
        for _ in with_pauses(release(replaced, self.knowledge.view.tables.values())):
            pass

    def _report_status(self, poller: Poller, sink: StatusSink) -> None:
        """Reports the gate's status if it is due, and then samples callers for the next report."""
        now_s, knowledge = self._options.clock.uptime_s(), self.knowledge
        if knowledge.view.at is None:
            return
        if self.status is None:
            from gatekeeper.telemetry.gate_status import StatusRecorder  # not needed by most processes

            options = self._options
            self.status = StatusRecorder(options.name, options.stale_after_s, now_s, options.values)
        if self.status.is_due(now_s):
            self._prepare_for(longest_fetch(sink), poller)
            mode = self.switched_off_by() or ("shadow" if self._options.shadow else "")
            self.status.report(sink, now_s, knowledge, mode)
            with self._switch.mutex:
                if poller is self._poller:
                    self._switch.start_sampling()
