"""The jobs: of the warden, each second, what concerns locks; and by a schedule what keeps the tables small.

Of all analyzers one holds the lease and works as the warden; the others find the lease taken and do
nothing. Gates end a lock by their own clock. Ending it here only makes the table and the feed agree with
that, so a late or missing warden refuses no caller. Each scheduled job has a separate lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from analyzer.judging.judge import Judged, JudgedRows
from analyzer.judging.judgement_log import log_judged
from analyzer.kernel.jobs.job_schedules import DAY_S, Schedule
from analyzer.kernel.kept_ages import Retention
from analyzer.maintenance.job_runner import Job
from analyzer.maintenance.scheduled_jobs import ScheduledJob

LEASE = "warden"
LOCKS_EVERY_S = 1.0


class Upkeep(Protocol):
    """The statements of the jobs. Each call is bounded and may be repeated; each raises StoreAway."""

    def end_locks(self) -> JudgedRows:
        """Ends locks that are due, up to a bound, and extends those that last; counts those that ended."""

    def judge_waiting(self) -> JudgedRows:
        """Judges totals that had to wait, up to a bound."""

    def change_overrides(self) -> JudgedRows:
        """Begins and ends overrides, up to a bound, and judges their series."""

    def apply_facts(self) -> JudgedRows:
        """Applies facts that records state, up to a bound, and judges their callers."""

    def apply_brakes(self) -> JudgedRows:
        """Turns locks of braked policies to shadow, up to a bound."""

    def refill_totals(self) -> JudgedRows:
        """Completes and judges totals of callers whose windows have changed, up to a bound."""

    def empty_slots(self) -> int:
        """Empties the slots of the next generation; returns 1 if there were any, else 0."""

    @property
    def pruned(self) -> Collection[str]:
        """The names of the jobs that delete what is beyond its retention."""

    def prune(self, kept: Retention, jobs: Collection[str]) -> int:
        """Deletes the expired rows of some jobs and returns how many, up to a bound."""

    def continue_activation(self) -> JudgedRows:
        """Brings totals and locks nearer to agreement with the plan, up to a bound of rows that it reads."""

    def move_old(self) -> int:
        """Moves rows of an earlier version into the buckets and returns how many, up to a bound."""

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old buckets into wider ones and returns how many rows that removed, up to a bound."""

    def fold(self, requests_max: int, minutes_kept_s: int) -> int:
        """Joins the rows of rarely seen callers and returns how many, up to a bound."""

    def repair_totals(self) -> int:
        """Corrects totals that do not equal the buckets and returns how many; 0 while it rests."""

    def prove_day(self) -> int:
        """Compares a past day with what was counted; 0 when no day is left. Raises CountsDiffer."""


def lock_jobs(upkeep: Upkeep, report: Callable[[Judged, str], object]) -> list[Job]:
    """Returns the jobs whose delay is seen at gates; what they judge is logged, and passed to `report`
    with the name of the job.
    """

    def job(name: str, step: Callable[[], JudgedRows]) -> Job:
        def run() -> int:
            done = step()
            report(done.judged, name)
            log_judged(done.judged, done.cause)
            return done.rows

        return Job(name, run, LOCKS_EVERY_S)

    return [
        job("end-locks", upkeep.end_locks),
        job("judge-waiting", upkeep.judge_waiting),
        job("change-overrides", upkeep.change_overrides),
        job("apply-facts", upkeep.apply_facts),
        job("refill-totals", upkeep.refill_totals),
        job("apply-brakes", upkeep.apply_brakes),
        job("activation", upkeep.continue_activation),
    ]


def schedules(kept: Retention) -> Mapping[str, Schedule]:
    """Returns when each scheduled job runs, by its name: what has to be soon first, then daily work."""
    daily = Schedule(DAY_S, kept.at_s)
    often = (
        "empty-slots",
        "repair-totals",
        "move-old",
        "watch-overshoot",
        "watch-duplicates",
        "watch-audits",
    )
    return {
        **dict.fromkeys(("close-days", "audit-days"), Schedule(10)),
        **dict.fromkeys(often, Schedule(60)),
        "prune-rejected": Schedule(60),
        **dict.fromkeys(("prune-feed", "prune-totals", "prune-gates"), Schedule(300)),
        **dict.fromkeys(("roll-up", "fold", "prove-day"), Schedule(3_600)),
        **dict.fromkeys(("prune-buckets", "prune-locks", "prune-plans", "prune-days", "prune-log"), daily),
    }


def upkeep_jobs(upkeep: Upkeep, kept: Retention) -> list[ScheduledJob]:
    """Returns the jobs that keep the tables small."""
    steps: dict[str, Callable[[], int]] = {
        "empty-slots": upkeep.empty_slots,
        "repair-totals": upkeep.repair_totals,
        "move-old": upkeep.move_old,
        "roll-up": lambda: upkeep.roll_up(kept.minutes_s, kept.quarters_s),
        "fold": lambda: upkeep.fold(kept.fold_requests, kept.minutes_s),
        "prove-day": upkeep.prove_day,
        **{name: partial(upkeep.prune, kept, (name,)) for name in upkeep.pruned},
    }
    at = schedules(kept)
    return [ScheduledJob(name, step, at[name]) for name, step in steps.items()]
