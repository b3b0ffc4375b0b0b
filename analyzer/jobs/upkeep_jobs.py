"""The jobs of the warden: each second what concerns locks, and each minute what keeps the tables small.

Of all analyzers one holds the lease and works as the warden; the others find the lease taken and do
nothing. Gates end a lock by their own clock. Ending it here only makes the table and the feed agree with
that, so a late or missing warden refuses no caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from analyzer.core.counting.meters import DAY_S
from analyzer.core.judging.earned_notices import LOG_LINE, Notice
from analyzer.jobs.job_runner import Job
from gatekeeper.model import Change, Set

log = logging.getLogger(__name__)

LEASE = "warden"
LOCKS_EVERY_S = 1.0


class Upkeep(Protocol):
    """The statements of the jobs. Each call is bounded and may be repeated; each raises StoreAway."""

    def end_locks(self) -> Sequence[Change]:
        """Ends locks that are due and returns the changes, up to a bound."""

    def judge_waiting(self) -> tuple[int, Sequence[Change], Sequence[Notice]]:
        """Judges totals that had to wait; returns how many, the locks set and the notices raised."""

    def change_overrides(self) -> tuple[int, Sequence[Change]]:
        """Begins and ends overrides, up to a bound; returns how many, and the locks set and cleared."""

    def apply_facts(self) -> tuple[int, Sequence[Change]]:
        """Applies facts that records state; returns of how many callers, and the locks set and cleared."""

    def refill_totals(self) -> tuple[int, Sequence[Change], Sequence[Notice]]:
        """Completes totals of callers whose windows have changed; returns as `judge_waiting` does."""

    def empty_slots(self) -> int:
        """Empties the slots of the next generation; returns 1 if there were any, else 0."""

    def prune(self) -> int:
        """Deletes expired rows and returns how many, up to a bound."""

    def continue_activation(self) -> int:
        """Brings totals and locks nearer to agreement with the plan; returns the rows read, up to a bound."""

    def move_old(self) -> int:
        """Moves rows of an earlier version into the buckets and returns how many, up to a bound."""

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old buckets into wider ones and returns how many rows that removed, up to a bound."""

    def fold(self, requests_max: int, minutes_kept_s: int) -> int:
        """Joins the rows of rarely seen callers and returns how many, up to a bound."""

    def delete_days(self, days_kept_s: int) -> int:
        """Deletes the oldest days and returns how many rows, up to a bound."""

    def repair_totals(self) -> int:
        """Corrects totals that do not equal the buckets and returns how many; 0 while it rests."""

    def prove_day(self) -> int:
        """Compares a past day with what was counted; 0 when no day is left. Raises CountsDiffer."""


class Retention(NamedTuple):
    """Ages at which buckets become wider or are deleted, in seconds; and which callers are folded."""

    minutes_s: int = 40 * DAY_S  # longer than the age at which a record is too late to be counted
    quarters_s: int = 400 * DAY_S
    days_s: int = 1_830 * DAY_S
    fold_requests: int = 5


def lock_jobs(
    upkeep: Upkeep,
    report: Callable[[Sequence[Change]], None],
    report_notices: Callable[[Sequence[Notice]], None] = lambda _: None,
) -> list[Job]:
    """Returns the jobs whose delay is seen at gates; changes of locks are passed to `report`."""

    def end_locks() -> int:
        changes = upkeep.end_locks()
        report(changes)
        for change in changes:
            who, policy = change.at.key or "everyone", change.at.policy
            if isinstance(change, Set):
                log.info("the lock of %s by %s lasts until %s", who, policy, change.lock.until)
            else:
                log.info("unlocked %s: its lock by %s has ended", who, policy)
        return sum(not isinstance(change, Set) for change in changes)

    def judged(step: Callable[[], tuple[int, Sequence[Change], Sequence[Notice]]]) -> int:
        number, changes, notices = step()
        report(changes)
        report_notices(notices)
        for notice in notices:
            log.info(LOG_LINE, notice.at.key or "everyone", notice.at.policy, notice.detail)
        return number

    def changed(step: Callable[[], tuple[int, Sequence[Change]]]) -> int:
        number, changes = step()
        report(changes)
        return number

    return [
        Job("end-locks", end_locks, LOCKS_EVERY_S),
        Job("judge-waiting", lambda: judged(upkeep.judge_waiting), LOCKS_EVERY_S),
        Job("change-overrides", lambda: changed(upkeep.change_overrides), LOCKS_EVERY_S),
        Job("apply-facts", lambda: changed(upkeep.apply_facts), LOCKS_EVERY_S),
        Job("refill-totals", lambda: judged(upkeep.refill_totals), LOCKS_EVERY_S),
        Job("activation", upkeep.continue_activation, LOCKS_EVERY_S),
    ]


def upkeep_jobs(upkeep: Upkeep, kept: Retention) -> list[Job]:
    """Returns the jobs that keep the tables small."""
    return [
        Job("prune", upkeep.prune),
        Job("empty-slots", upkeep.empty_slots),
        Job("repair-totals", upkeep.repair_totals),
        Job("move-old", upkeep.move_old),
        Job("roll-up", lambda: upkeep.roll_up(kept.minutes_s, kept.quarters_s)),
        Job("fold", lambda: upkeep.fold(kept.fold_requests, kept.minutes_s)),
        Job("delete-days", lambda: upkeep.delete_days(kept.days_s)),
        Job("prove-day", upkeep.prove_day),
    ]
