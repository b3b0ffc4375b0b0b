"""The poller: fetches from the source, applies the answer to the view, and schedules the next fetch."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from gatekeeper.clock import Clock
from gatekeeper.model import Cursor, LockSource, SourceError, Update
from gatekeeper.view.lock_tuples import EPOCH
from gatekeeper.view.lock_view import EMPTY, LockView, ViewOutOfStep, apply, with_locks, without_ended

if TYPE_CHECKING:
    from gatekeeper.feed.saved_view import ViewFile

log = logging.getLogger("gatekeeper")

PACE_MIN_S = 0.05  # the least pause, so that a wrong answer cannot make a fleet overload its server
PACE_WAITED_S = 0.01  # the least pause after a long poll, where the server itself sets the pace
PACE_S = 0.4  # until a server has set one
RETRY_AFTER_SPREAD = 0.5  # random addition to Retry-After, as a share of it, so that gates spread out
CEILING_S = 10.0  # the longest pause after failures; a source that recovers is noticed within it
PRUNE_EVERY_S = 1.0  # ended locks apply to no request; removing them only frees memory


class GateKnowledge(NamedTuple):
    """The knowledge of a gate at one moment. Replaced as a whole.

    Attributes:
        view: The locks.
        confirmed_s: Uptime at the start of the poll that the view is from.
        behind: Seconds that the analyzers were behind the log.
        clock_skew: Seconds that this machine's clock is ahead of the source's.
    """

    view: LockView = EMPTY
    confirmed_s: float = -inf
    behind: float = 0.0
    clock_skew: float = 0.0


class Poll(NamedTuple):
    """One poll that has ended.

    Attributes:
        seconds: How long it took, without the server's wait for news.
        update: The answer, which the view has; None: it failed.
    """

    seconds: float
    update: Update | None


def next_delay(pace_s: float, failures: int, jitter: float) -> float:
    """Seconds until the next poll, after `failures` in a row; `jitter` is random, in [0, 1).

    Without failures the pace, plus or minus a tenth, so that gates which start together do not stay in step.
    After failures an exponential back-off up to CEILING_S with half of it random, so that gates which failed
    together do not return together.
    """
    if not failures:
        return pace_s * (0.9 + 0.2 * jitter)
    backed_off_s = pace_s * 2.0 ** min(failures, 16)  # 16 doublings reach the ceiling from the shortest pace
    return min(CEILING_S, backed_off_s) * (0.5 + 0.5 * jitter)


def longest_fetch(source: object) -> float:
    """Seconds that a fetch may take; infinite for a source without the attribute `longest`."""
    return float(getattr(source, "longest", inf))


class Poller:
    """A series of polls. Its owner calls `step` again when the seconds that it returned have passed.

    `known` is replaced, never changed. No exception of a source ends the polling.
    """

    def __init__(
        self,
        source: LockSource,
        clock: Clock,
        knowledge: GateKnowledge,
        *,
        pace_max_s: float,
        view_file: ViewFile | None,
    ) -> None:
        self.known = knowledge
        self.failures = 0  # in a row
        self.poll: Poll | None = None  # of the last step, if it has polled
        self._source = source
        self._clock = clock
        self._pace_max_s = pace_max_s
        self._pace_s = min(PACE_S, pace_max_s)
        self._retry_after_s = 0.0  # requested by the source with its last failure
        self._since: Cursor | None = None  # None first: the view may come from another source
        self._fetch_s = self._prune_s = clock.uptime_s()
        self._pruned_ns = 0  # the latest wall time by which ended locks were removed
        self._view_file = view_file
        self._loads_view = view_file is not None and knowledge.view is EMPTY

    def step(self) -> float:
        """Does what is due; returns seconds until something will be due again."""
        self.poll = None
        if self._loads_view:
            self._load_view()
            return 0.0  # publish the saved view before the first fetch, which may take long
        if self._clock.uptime_s() >= self._fetch_s:
            self._fetch()
            self._save_view()
        self._prune()
        due_s = min(self._fetch_s, max(self._prune_s, self._next_end_s()))
        return max(0.0, due_s - self._clock.uptime_s())

    def finish(self) -> None:
        """Saves the view for the next start."""
        self._save_view(at_once=True)

    def _fetch(self) -> None:
        began_s, began_ns = self._clock.uptime_s(), self._clock.wall_ns()
        self._retry_after_s = 0.0
        confirmed: Update | None = None
        # The wall clock went back: locks that were removed as ended may be in force again.
        if began_ns < self._pruned_ns:
            self._since, self._pruned_ns = None, 0
        try:
            update = self._source.fetch(self._since)
            self._confirm(apply(self.known.view, update), update, began_s, began_ns)
            self._since = update.at
            confirmed = update
        except ViewOutOfStep as error:
            self._since = None
            self._fail(error)
        except SourceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a bug in a source must not end the polling
            self._fail(error, with_trace=True)
        waited_s = 0.0 if confirmed is None else max(0.0, confirmed.waited)
        self.poll = Poll(max(0.0, self._clock.uptime_s() - began_s - waited_s), confirmed)
        jitter = self._clock.random()
        pause_s = next_delay(self._pace_s, self.failures, jitter)
        # Never before the time that the source asked for, and not together with all the others.
        retry_after_s = min(self._retry_after_s * (1.0 + RETRY_AFTER_SPREAD * jitter), self._pace_max_s)
        self._fetch_s = self._clock.uptime_s() + max(pause_s, retry_after_s)

    def _confirm(self, view: LockView, update: Update, began_s: float, began_ns: int) -> None:
        if self.failures:
            log.info("the lock feed answers again, after %d failures", self.failures)
        for word in view.ignored.keys() - self.known.view.ignored.keys():
            log.warning("the lock feed uses %r, which this gatekeeper does not know and ignores", word)
        self.failures = 0
        least_s = PACE_WAITED_S if update.waited >= PACE_MIN_S else PACE_MIN_S
        # In this order NaN, which compares as neither more nor less, becomes the least pace.
        self._pace_s = min(self._pace_max_s, max(least_s, update.next_poll))
        # The server's wait in a long poll is not part of the delay of request or response. A negative
        # `waited` means that another process requested this answer earlier.
        waited_s = min(update.waited, self._clock.uptime_s() - began_s)
        waited_until_ns = began_ns + round(waited_s * 1e9)
        midway_ns = waited_until_ns if waited_s < 0 else (waited_until_ns + self._clock.wall_ns()) // 2
        skew = midway_ns / 1e9 - update.now.timestamp()
        self.known = GateKnowledge(view, began_s + waited_s, update.behind, skew)

    def _fail(self, error: Exception, *, with_trace: bool = False) -> None:
        self.failures += 1
        self._retry_after_s = float(getattr(error, "retry_after", 0.0))
        # Logged once; the gate's age shows how long it lasts.
        if self.failures == 1:
            log.warning("the lock feed does not answer: %s", error, exc_info=error if with_trace else None)

    def _prune(self) -> None:
        now_s = self._clock.uptime_s()
        if now_s >= self._prune_s:
            now_ns = self._clock.wall_ns()
            view = without_ended(self.known.view, now_ns)
            if view is not self.known.view:
                self._pruned_ns = max(self._pruned_ns, now_ns)
                self.known = self.known._replace(view=view)
                self._prune_s = now_s + PRUNE_EVERY_S

    def _next_end_s(self) -> float:
        return self._clock.uptime_s() + (self.known.view.next_end_ns - self._clock.wall_ns()) / 1e9

    def _load_view(self) -> None:
        self._loads_view = False
        saved = self._view_file and self._view_file.load(self._wall_time())
        if saved:
            age_s = max(0.0, (self._wall_time() - saved.confirmed).total_seconds())
            self.known = GateKnowledge(with_locks(EMPTY, saved.locks), self._clock.uptime_s() - age_s)

    def _save_view(self, *, at_once: bool = False) -> None:
        # A view that was only loaded has no cursor, and keeps the age that it has on disk.
        if self._view_file and self.known.view.at:
            now_s = self._clock.uptime_s()
            confirmed = self._wall_time() - timedelta(seconds=now_s - self.known.confirmed_s)
            self._view_file.save(self.known.view, confirmed, now_s, at_once=at_once)

    def _wall_time(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._clock.wall_ns() // 1000)
