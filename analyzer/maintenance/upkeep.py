"""Work that one analyzer at a time does for all: ending locks, and keeping every table bounded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from functools import partial

import sqlalchemy as sa

from analyzer.callers import applied_facts, caller_changes, changed_limits
from analyzer.judging.judge import JudgedRows
from analyzer.judging.sql import braked_policies, plans, slots, waiting_judgements
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, slow_reading, without_scans, writing
from analyzer.kernel.jobs.step_sizes import STEP_S, StepSize
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.tables.job_tables import leases
from analyzer.maintenance import roll_up, total_repair
from analyzer.maintenance.audit import prove_next_day
from analyzer.maintenance.pruning import PRUNED, PruneStep
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S, bucket_start_s

log = logging.getLogger(__name__)

LEASE_MS = 5_000
LEAP_MS = 1_000  # a clock that goes back by less has ended no lock that would not end now anyway
ACTIVATION_ROWS = 5_000  # read in one step, while flushes wait
DEFAULT = Retention()


class SqlUpkeep:
    """Implements `Upkeep`. Every method is idempotent, and safe while a second warden runs.

    Two wardens run for a moment when another one takes the lease. All methods raise StoreAway. Threads may
    share it, but none of its methods may run in two at a time. `uptime_s` measures how long steps take: the
    number of their rows is adapted to it.
    """

    def __init__(
        self,
        engine: sa.Engine,
        owner: str,
        random_mark: Callable[[], str],
        uptime_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark
        self._few: tuple[int, int, list[str]] | None = None  # callers to fold: grouping, day, names
        self._differing: dict[int, int] = {}  # days whose buckets differ from what was counted
        self._repair = total_repair.Pace()
        self._judges = waiting_judgements.JudgeOfWarden()
        self._uptime_s = uptime_s
        self._sizes: dict[str, StepSize] = {}  # by the name of the work

    def hold(self, name: str) -> bool:
        """Takes or extends the lease `name` for five seconds; returns whether we hold it.

        A lease that ends later than a lease can was taken while the clock was ahead: it belongs to no
        analyzer. Locks have ended by that clock, and totals were judged by it, so all are judged again.
        """
        latest_ms = NowMs() + LEASE_MS + LEAP_MS
        is_ahead = sa.and_(leases.c.name == name, leases.c.until_ms > latest_ms)
        with writing(self._engine) as db:
            was_ahead = db.execute(sa.select(leases.c.until_ms).where(is_ahead)).first() is not None
            lease = insert(db, leases).values(name=name, holder=self._owner, until_ms=NowMs() + LEASE_MS)
            is_free = sa.or_(leases.c.until_ms < NowMs(), leases.c.until_ms > latest_ms)
            taken = lease.on_conflict_do_update(
                index_elements=leases.primary_key,
                set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
                where=sa.or_(leases.c.holder == self._owner, is_free),
            )
            is_held = db.execute(taken.returning(leases.c.name)).first() is not None
            if is_held and was_ahead:
                log.warning("the database's clock was ahead and is back: all totals are judged again")
                plans.judge_again(db, clock_was_ahead=True)
            return is_held

    def release(self, name: str) -> None:
        """Gives the lease up, so that another analyzer can take it at once.

        Its row stays: the next holder sees by it whether the clock was ahead.
        """
        with writing(self._engine) as db:
            is_held = sa.and_(leases.c.name == name, leases.c.holder == self._owner)
            db.execute(
                sa.update(leases).where(is_held, leases.c.until_ms > NowMs()).values(until_ms=NowMs() - 1)
            )

    def end_locks(self) -> JudgedRows:
        """Clears the locks whose time is over, extends those that last; counts those that ended."""
        with writing(self._engine) as db:
            return waiting_judgements.end_locks(db, self._judges, self._random_mark())

    def judge_waiting(self) -> JudgedRows:
        """Judges totals that had to wait, up to a bound. Call again until none has waited."""
        with writing(self._engine) as db:
            return waiting_judgements.judge_waiting(db, self._judges, self._random_mark())

    def change_overrides(self) -> JudgedRows:
        """Begins and ends overrides, up to a bound, and judges their series."""
        return caller_changes.change_due(self._engine, self._random_mark)

    def apply_facts(self) -> JudgedRows:
        """Applies facts that records state, up to a bound, and judges their callers."""
        return applied_facts.apply_waiting(self._engine, self._random_mark)

    def refill_totals(self) -> JudgedRows:
        """Completes and judges totals of callers whose windows have changed, up to a bound."""
        return changed_limits.refill(self._engine, self._random_mark)

    def apply_brakes(self) -> JudgedRows:
        """Turns locks of braked policies to shadow, up to a bound; notes the traffic of each minute."""
        return braked_policies.turn_to_shadow(self._engine, self._random_mark)

    def empty_slots(self) -> int:
        """Empties the slots of the next generation; returns 1 if there were any, else 0."""
        with writing(self._engine) as db:
            return int(slots.empty_next(db, clock_ms(db) // 1000))

    @property
    def pruned(self) -> Collection[str]:
        """The names of the jobs that delete what is beyond its retention."""
        return tuple(PRUNED)

    def prune(self, kept: Retention = DEFAULT, jobs: Collection[str] = tuple(PRUNED)) -> int:
        """Deletes what is beyond its retention, up to a bound for each of `jobs`; returns the number of rows.

        Call again until it returns 0.
        """
        return sum(self._sized(job, partial(_prune, PRUNED[job], kept)) for job in jobs)

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old minutes into quarters of an hour, and old quarters into days; returns the rows joined.

        Each count stays in exactly one row. Call again until it returns 0.
        """
        return self._sized(
            "minutes", lambda db, most: roll_up.widen(db, MINUTE_S, QUARTER_S, minutes_kept_s, most)
        ) or self._sized(
            "quarters", lambda db, most: roll_up.widen(db, QUARTER_S, DAY_S, quarters_kept_s, most)
        )

    def fold(self, requests_max: int, minutes_kept_s: int) -> int:
        """Joins callers with at most `requests_max` requests on a day, once its minutes are rolled up.

        Returns the rows joined, or 1 when a day is done. Call again until it returns 0.
        """
        if self._few is None:
            self._few = self._next_few(requests_max, minutes_kept_s)
            if self._few is None:
                return 0
        grouping, day_s, keys = self._few

        def step(db: sa.Connection, most: int) -> int:
            if keys:
                return roll_up.fold(db, grouping, day_s, keys[:most])
            roll_up.set_folded_to(db, catalog.load(db), grouping, day_s + DAY_S)
            return 1

        chunk = max(1, self._size("fold").rows)
        folded = self._sized("fold", step)
        self._few = (grouping, day_s, keys[chunk:]) if keys[chunk:] else None
        return folded

    def _next_few(self, requests_max: int, minutes_kept_s: int) -> tuple[int, int, list[str]] | None:
        """Returns a grouping, a day, and callers to fold; without callers the day is done. None: no day."""
        with slow_reading(self._engine) as db:
            known = catalog.load(db)
            # The quarter that holds this moment may still get minutes.
            before_s = bucket_start_s(clock_ms(db) // 1000 - minutes_kept_s, QUARTER_S)
            for grouping in roll_up.foldable(known):
                day_s = roll_up.first_day_to_fold(db, known, grouping)
                if day_s is not None and day_s + DAY_S <= before_s:
                    return (
                        grouping,
                        day_s,
                        roll_up.few_requests(db, known, grouping, day_s, requests_max),
                    )
        return None

    def move_old(self) -> int:
        """Moves rows of an earlier version into the buckets; returns how many, up to a bound."""
        return self._sized("move", roll_up.move_old)

    def continue_activation(self) -> JudgedRows:
        """Brings totals and locks nearer to agreement with the plan in force; counts the rows read."""
        with writing(self._engine) as db:
            return plans.continue_activation(db, self._random_mark, ACTIVATION_ROWS)

    def repair_totals(self) -> int:
        """Corrects totals of open windows that do not equal the buckets, up to a bound; returns how many.

        0 also while the last comparison is so recent that another one would load the database.
        """
        return total_repair.repair(self._engine, self._repair)

    def prove_day(self) -> int:
        """Compares the buckets of a past day with what was counted; returns 1, or 0 when no day is left.

        Raises CountsDiffer where they differ, again and again while they do.
        """
        return prove_next_day(self._engine, self._differing)

    def _size(self, work: str) -> StepSize:
        return self._sizes.setdefault(work, StepSize(STEP_S[self._engine.dialect.name]))

    def _sized(self, work: str, step: Callable[[sa.Connection, int], int]) -> int:
        """Does one step in a transaction, with as many rows as keep it short; returns how many it was."""
        size, began_s = self._size(work), self._uptime_s()
        with writing(self._engine) as db:
            without_scans(db)
            rows = step(db, size.rows)
        size.measured(rows, self._uptime_s() - began_s)
        return rows


def _prune(job: Callable[[PruneStep], int], kept: Retention, db: sa.Connection, most: int) -> int:
    return job(PruneStep(db, clock_ms(db), kept, most))
