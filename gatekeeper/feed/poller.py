"""Keeps what a gate knows up to date: asks the source, applies the answer, says when to ask again."""

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

PACE_MIN_S = 0.05  # whatever a server says: a fleet must not be told to hammer
PACE_WAITED_S = 0.01  # ... unless it has kept us waiting for the last answer, and so sets the pace itself
PACE_S = 0.4  # until a server has said anything
LATER_SPREAD = 0.5  # of the time after which a server that is busy wants to be asked again
CEILING_S = 10.0  # between two attempts at a source that is away; it is noticed soon after it is back
PRUNE_EVERY_S = 1.0  # an ended lock refuses nobody, pruned or not; this only bounds the work


class GateKnowledge(NamedTuple):
    """All that a gate knows at one moment; swapped whole."""

    view: LockView = EMPTY
    confirmed_s: float = -inf  # uptime when the question was asked that the view answers
    behind: float = 0.0
    clock_skew: float = 0.0


def next_delay(pace_s: float, failures: int, luck: float) -> float:
    """Seconds until the next poll, after so many failures in a row; `luck` is in [0, 1).

    The pace give or take a tenth, so that gates which were started together do not stay together.
    After failures twice as long each time, up to a ceiling, and from half to whole of that, so that
    those which failed together do not come back together.
    """
    if not failures:
        return pace_s * (0.9 + 0.2 * luck)
    backed_off_s = pace_s * 2.0 ** min(failures, 16)  # enough to reach the ceiling from the least pace
    return min(CEILING_S, backed_off_s) * (0.5 + 0.5 * luck)


def longest_fetch(source: object) -> float:
    """Seconds that a fetch may take; infinite where the source does not say."""
    return float(getattr(source, "longest", inf))


class Poller:
    """One series of polls. `known` is replaced, never changed; whoever drives it calls `turn`.

    Nothing that a source does, short of ending the thread, ends the polling.
    """

    def __init__(
        self,
        source: LockSource,
        clock: Clock,
        known: GateKnowledge,
        *,
        pace_max_s: float,
        shelf: ViewFile | None,
    ) -> None:
        self.known = known
        self.failures = 0  # in a row
        self._source = source
        self._clock = clock
        self._pace_max_s = pace_max_s
        self._pace_s = min(PACE_S, pace_max_s)
        self._later_s = 0.0  # what the source itself asks for, beyond our own pause
        self._since: Cursor | None = None  # at first everything: the view may come from another source
        self._ask_s = self._prune_s = clock.uptime_s()
        self._pruned_ns = 0  # by the wall clock, when an ended lock was last forgotten
        self._shelf = shelf
        self._recalls = shelf is not None and known.view is EMPTY

    def turn(self) -> float:
        """Do what is due; the seconds until something will be again."""
        if self._recalls:
            self._recall()
            return 0.0  # it counts at once: the source may be away, and take its time to say so
        if self._clock.uptime_s() >= self._ask_s:
            self._ask()
            self._keep()
        self._prune()
        due_s = min(self._ask_s, max(self._prune_s, self._next_end_s()))
        return max(0.0, due_s - self._clock.uptime_s())

    def finish(self) -> None:
        """Keep the last view for the next start."""
        self._keep(at_once=True)

    def _ask(self) -> None:
        asked_s, asked_ns = self._clock.uptime_s(), self._clock.wall_ns()
        self._later_s = 0.0
        if asked_ns < self._pruned_ns:  # the clock was wrong then: what had not ended must be learnt again
            self._since, self._pruned_ns = None, 0
        try:
            update = self._source.fetch(self._since)
            self._confirmed(apply(self.known.view, update), update, asked_s, asked_ns)
            self._since = update.at
        except ViewOutOfStep as error:
            self._since = None
            self._failed(error)
        except SourceError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a fault of the source's must not end the polling
            self._failed(error, with_trace=True)
        luck = self._clock.random()
        pause_s = next_delay(self._pace_s, self.failures, luck)
        # Never sooner than it says, and not together with everybody else who was sent away.
        later_s = min(self._later_s * (1.0 + LATER_SPREAD * luck), self._pace_max_s)
        self._ask_s = self._clock.uptime_s() + max(pause_s, later_s)

    def _confirmed(self, view: LockView, update: Update, asked_s: float, asked_ns: int) -> None:
        if self.failures:
            log.info("the lock feed answers again, after %d failures", self.failures)
        for word in view.ignored.keys() - self.known.view.ignored.keys():
            log.warning("the lock feed uses %r, which this gatekeeper does not know and passes over", word)
        self.failures = 0
        least_s = PACE_WAITED_S if update.waited >= PACE_MIN_S else PACE_MIN_S
        # In this order NaN, which is neither more nor less, becomes the least pace instead of never.
        self._pace_s = min(self._pace_max_s, max(least_s, update.next_poll))
        # What the source waited for news lies between question and answer, and is neither's delay. Below 0
        # it heard of this earlier, from somebody who had asked.
        waited_s = min(update.waited, self._clock.uptime_s() - asked_s)
        begun_ns = asked_ns + round(waited_s * 1e9)
        midway_ns = begun_ns if waited_s < 0 else (begun_ns + self._clock.wall_ns()) // 2
        skew = midway_ns / 1e9 - update.now.timestamp()
        self.known = GateKnowledge(view, asked_s + waited_s, update.behind, skew)

    def _failed(self, error: Exception, *, with_trace: bool = False) -> None:
        self.failures += 1
        self._later_s = float(getattr(error, "retry_after", 0.0))  # a server that says when, is asked then
        if self.failures == 1:  # the gate's age says how long it goes on; a line for each poll would not
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

    def _recall(self) -> None:
        self._recalls = False
        found = self._shelf and self._shelf.recall(self._wall())
        if found:
            age_s = max(0.0, (self._wall() - found.confirmed).total_seconds())
            self.known = GateKnowledge(with_locks(EMPTY, found.locks), self._clock.uptime_s() - age_s)

    def _keep(self, *, at_once: bool = False) -> None:
        if self._shelf and self.known.view.at:  # what was only recalled stays as old as it is
            now_s = self._clock.uptime_s()
            confirmed = self._wall() - timedelta(seconds=now_s - self.known.confirmed_s)
            self._shelf.keep(self.known.view, confirmed, now_s, at_once=at_once)

    def _wall(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._clock.wall_ns() // 1000)
