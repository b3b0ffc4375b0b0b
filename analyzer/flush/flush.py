"""One flush as one transaction: the only code that stores counts, judges them and publishes locks.

The order of the statements is fixed, and rows are sorted within each statement, so that no two writers wait
for each other in a circle: offsets, plan, decisions about verdicts, totals of callers and their slots,
buckets, adjustments of closed days, rejected records, facts about callers, totals and slots that many
partitions share, what waits, notices, brakes, locks, the feed's version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from analyzer.billing.days.adjustments import add_adjustments
from analyzer.callers import record_facts
from analyzer.counting import counter_state
from analyzer.counting.buckets import add_counts
from analyzer.counting.counter.verdict_counts import with_admitted
from analyzer.flush import analyzers
from analyzer.judging.activation_steps import decode_steps, filled_to
from analyzer.judging.caller_limits import Limits
from analyzer.judging.judge import Judged
from analyzer.judging.locks import lock_feed, verdict_decisions
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans, slots, totals
from analyzer.judging.sql.directory import DirectoryCache, DirectoryVersion, read_limits
from analyzer.judging.sql.sql_judge import Judge
from analyzer.judging.totals import Growth, SeenValues, seen_values, totals_growth
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs, insert
from analyzer.kernel.database.partition_keys import is_partition, partition_values
from analyzer.kernel.errors import PartitionLost, PlanChanged
from analyzer.kernel.flush_steps import StepTimes
from analyzer.kernel.model import DrainedCounts, Lag, Partition, PartitionProgress, Rejected, Verdict
from analyzer.kernel.tables.schema import TOTAL_MAX, offsets, rejects
from analyzer.plan.catalog import Catalog, load
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import REQUESTS, joins_by_meter
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.plan.stretches import KnownStretches
from analyzer.plan.sums import Sum, lock_order

Refute = Callable[[sa.Connection, Sequence[Verdict]], set[int]]  # returns the indexes of those not believed


class CatalogCache:
    """The catalog, read once for each plan that comes in force."""

    def __init__(self) -> None:
        self._read_for: tuple[int | None, int] | None = None
        self._catalog = Catalog({}, {}, {}, {})

    def of(self, db: sa.Connection, plan: plans.LockedPlan) -> Catalog:
        """Returns the numbers that this plan may use."""
        if self._read_for != (plan.version, plan.at_ms):
            self._catalog = load(db)
            self._read_for = (plan.version, plan.at_ms)
        return self._catalog


class SqlFlush:
    """An open transaction of one flush. Call `move_offsets`, then `check_plan`, then `apply`."""

    def __init__(
        self,
        connection: sa.Connection,
        owner: str,
        random_mark: Callable[[], str],
        catalogs: CatalogCache | None = None,
        stretches: KnownStretches | None = None,
        directories: DirectoryCache | None = None,
        refute: Refute | None = None,
    ) -> None:
        self._db = connection
        self._owner = owner
        self._random_mark = random_mark
        self._catalogs = catalogs or CatalogCache()
        self._stretches = stretches or KnownStretches()
        self._directories = (
            directories  # None: of a retry, which reads the rows of the callers that it counts
        )
        self._refute = verdict_decisions.disbelieved if refute is None else refute
        self._plan_row = plans.NO_PLAN
        self._behind_s = 0.0
        # Requests that a record calls denied, and that count, because no lock supports it; by source.
        self.disbelieved: Counter[str] = Counter()
        # Requests that were denied, by source and policy; without those that are disbelieved.
        self.denied: Counter[tuple[str, str]] = Counter()
        self.steps = StepTimes()

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None:
        """Moves each stored offset from `start` to `next`, if it still is at `start`.

        A part whose start equals its next is a heartbeat. Raises PartitionLost.
        """
        in_order = sorted(parts)
        self._behind_s = max((lag.seconds for lag in lags.values()), default=0.0)
        moved = self._db.execute(MOVE_OFFSET, [self._movement(progress, lags) for progress in in_order])
        if moved.rowcount != len(in_order):
            # Another analyzer owns a partition now. Our counts must commit with our offset, or the same
            # records are counted twice.
            lost = self._lost(in_order)
            raise PartitionLost(lost.part, lost.start)
        for progress in in_order:
            counter_state.add_state(self._db, progress)

    def _movement(self, progress: PartitionProgress, lags: Mapping[Partition, Lag]) -> dict[str, Any]:
        """Returns the parameters of MOVE_OFFSET."""
        lag = lags.get(progress.part, Lag(0, 0.0))
        return {
            "at_cluster": progress.part.cluster,
            "at_topic_id": progress.part.topic_id,
            "at_partition": progress.part.number,
            "from": progress.start,
            "to": progress.next,
            "by_seen": progress.seen,
            "by_counted": progress.counted,
            "by_duplicate": progress.duplicate,
            "by_dead": progress.dead,
            "by_late": progress.late,
            "by_renamed": progress.renamed,
            "resume_token": progress.resume_token,
            **counter_state.progress_parameters(progress),
            "owner": self._owner,
            "behind_ms": round(lag.seconds * 1000),
            "behind_records": lag.records,
        }

    def _lost(self, parts: Sequence[PartitionProgress]) -> PartitionProgress:
        """Returns the first of `parts` that was not moved, as far as the table shows it."""
        for progress in parts:
            row = sa.select(offsets.c.next, offsets.c.owner).where(is_partition(offsets, progress.part))
            if self._db.execute(row).first() != (progress.next, self._owner):
                return progress
        return parts[0]

    def check_plan(self, plan: Plan, version: int) -> datetime:
        """Returns the database's time if `plan` is in force as `version`, and stays so until commit.

        Raises PlanChanged.
        """
        self._plan_row = plans.lock_active(self._db)
        if self._plan_row.version != version or not plans.is_in_force(self._db, self._plan_row, plan):
            raise PlanChanged(version, self._plan_row.version)
        return instant(self._plan_row.now_ms)

    def put_in_force(self, agreement: Agreement) -> tuple[int, datetime]:
        """Puts the proposed plan in force, which this flush counted by; returns its version and the time.

        The warden makes totals and locks agree with it: this transaction publishes one version of the feed,
        and locks the feed's row last. Raises PlanChanged when the plan that it was proposed to is not in
        force any more.
        """
        plans.block_flushes(self._db)
        self.check_plan(agreement.in_force, agreement.version)
        activated = plans.activate(self._db, agreement.plan, self._random_mark, self._owner, rows_max=0)
        analyzers.settle(self._db, agreement)
        # Read again: locks that began before the plan would be taken for those of the one before.
        self._plan_row = plans.lock_active(self._db)
        return activated.version, instant(self._plan_row.now_ms)

    def apply(
        self,
        plan: Plan,
        version: int,
        counted: DrainedCounts,
        now: datetime,
        *,
        remove_rejected: Callable[[], None] = lambda: None,
    ) -> Judged:
        """Stores what was counted, judges it and publishes the locks that change; returns what was judged.

        `plan` is the one that `check_plan` found in force, `version` its version. `remove_rejected` is called
        where rejected records are written, for a retry that takes some away.
        """
        catalog = self._catalogs.of(self._db, self._plan_row)
        self._stretches.note(self._db, counted.parts, version, self._plan_row.mark)
        steps = decode_steps(self._plan_row.pending)
        filling = filled_to(steps, plan_sums(plan).numbers(catalog.sum_number)) if steps else {}
        counted = self._decided(counted, plan)
        self.steps.ended("verdicts")
        now_s, directory = int(now.timestamp()), self._plan_row.directory
        limits = self._limits(plan, directory, counted)
        growth: dict[Sum, Growth | SeenValues] = {
            **totals_growth(plan_sums(plan).policies_by_sum, counted.tables, filling, limits)
        }
        if values := seen_values(plan_sums(plan).policies_by_sum, counted.distinct):
            growth = {sum_: (growth | values)[sum_] for sum_ in sorted({*growth, *values}, key=lock_order)}
        of_callers = {sum_: growth[sum_] for sum_ in growth if not parse_grouping(sum_.grouping).is_shared}
        shared = {sum_: growth[sum_] for sum_ in growth if sum_ not in of_callers}
        judged_by = directory.judged_by(version)
        reached = totals.add_totals(self._db, limits, judged_by, of_callers, catalog, now_s)
        slots.add_slots(self._db, of_callers, counted.slots, catalog, now_s)
        self.steps.ended("totals")
        add_counts(self._db, counted.tables, catalog, [progress.part for progress in counted.parts])
        add_adjustments(self._db, counted.tables, catalog, self._plan_row.cut_until_s)
        self._add_rejected(counted.rejected, now)
        remove_rejected()
        self.steps.ended("buckets")
        if counted.facts and self._directories is not None:
            # The records of a retry are older than what their partition has stated since.
            record_facts.store(self._db, counted, self._directories, now)
        # All analyzers add to these few rows: they are locked from here to the commit only.
        reached += totals.add_totals(self._db, limits, judged_by, shared, catalog, now_s)
        slots.add_slots(self._db, [*shared, *plan_sums(plan).slot_sums], counted.slots, catalog, now_s)
        self.steps.ended("shared-totals")
        judge = Judge(plan, version, catalog, now, self._behind_s, filling, directory, limits)
        judged = judge.of(self._db, reached)
        self.steps.ended("judge")
        judged = judge.publish(self._db, judged, self._random_mark(), only_longer=True)
        self.steps.ended("publish")
        return judged

    def _limits(self, plan: Plan, directory: DirectoryVersion, counted: DrainedCounts) -> Limits:
        if self._directories is not None:
            return self._directories.limits(self._db, plan, directory)
        keys = {key for table in counted.tables for key in table.keys}
        keys |= {key for table in counted.distinct for key in table.keys}
        return read_limits(self._db, plan, directory, keys)

    def _decided(self, counted: DrainedCounts, plan: Plan) -> DrainedCounts:
        """Returns the counts without the verdicts that are not believed, and stores which these are."""
        if not counted.verdicts:
            return counted
        refuted = self._refute(self._db, counted.verdicts)
        requests_at = list(counted.tables[0].meters).index(REQUESTS.name)
        policies = [policy.name for policy in plan.policies]
        names = {"", lock_feed.MANUAL, *policies}
        for index, verdict in enumerate(counted.verdicts):
            if index not in refuted:
                # The names stand in the log, which may have any number of them.
                policy = verdict.policy if verdict.policy in names else verdict_decisions.UNKNOWN_POLICY
                self.denied[verdict.part.source, policy] += verdict.values[requests_at]
        if not refuted:
            return counted
        verdict_decisions.store(self._db, counted.verdicts, refuted, counted.parts, policies, requests_at)
        for index in refuted:
            verdict = counted.verdicts[index]
            self.disbelieved[verdict.part.source] += verdict.values[requests_at]
        return with_admitted(counted, refuted, joins_by_meter(plan.bucket_meters))

    def _add_rejected(self, rejected: Collection[Rejected], now: datetime) -> None:
        if rejected:
            rows = [
                partition_values(r.part)
                | {"offset": r.offset, "reason": r.reason, "sample": r.sample, "value_bytes": r.value_bytes,
                   "kafka_ms": _clamped(r.kafka_ms), "at_ms": round(now.timestamp() * 1000)}
                for r in rejected
            ]  # fmt: skip
            self._db.execute(insert(self._db, rejects).on_conflict_do_nothing(), rows)


def _clamped(number: int | None) -> int | None:
    """Returns a record's own number within the range of a column."""
    return None if number is None else max(-TOTAL_MAX, min(number, TOTAL_MAX))


# Executed once per partition, in order: a join over many rows would lock them in any order. psycopg sends all
# before it waits for the first answer: for 100 partitions a third of the CPU time of as many round trips.
MOVE_OFFSET = (
    sa.update(offsets)
    .where(
        offsets.c.cluster == sa.bindparam("at_cluster"),
        offsets.c.topic_id == sa.bindparam("at_topic_id"),
        offsets.c.partition == sa.bindparam("at_partition"),
        offsets.c.next == sa.bindparam("from"),
    )
    .values(
        next=sa.bindparam("to"),
        seen=offsets.c.seen + sa.bindparam("by_seen"),
        counted=offsets.c.counted + sa.bindparam("by_counted"),
        duplicate=offsets.c.duplicate + sa.bindparam("by_duplicate"),
        dead=offsets.c.dead + sa.bindparam("by_dead"),
        late=offsets.c.late + sa.bindparam("by_late"),
        renamed=offsets.c.renamed + sa.bindparam("by_renamed"),
        # A heartbeat brings no token: the stored one still describes the same offset.
        resume_token=sa.case(
            (offsets.c.next == sa.bindparam("to"), offsets.c.resume_token), else_=sa.bindparam("resume_token")
        ),
        **counter_state.ASSIGNMENTS,
        owner=sa.bindparam("owner"),
        beat_ms=NowMs(),
        behind_ms=sa.bindparam("behind_ms"),
        behind_records=sa.bindparam("behind_records"),
    )
)
