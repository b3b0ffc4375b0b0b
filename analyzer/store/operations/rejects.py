"""The records that could not be read: listed, shown, and read again when the mapping was mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.core.counting.counter import PythonCounter
from analyzer.core.judging.judge import changes, lock_key, totals_of
from analyzer.core.judging.plan import Plan
from analyzer.core.model import DrainedCounts, Partition, Record, Records
from analyzer.core.records.mapping import Mapping as LogMapping
from analyzer.errors import AnalyzerError
from analyzer.store.database.audit_log import record
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import writing
from analyzer.store.database.partition_keys import is_of, partition_in
from analyzer.store.database.schema import offsets, rejects
from analyzer.store.reports.status import ROWS_AT_ONCE, unhurried
from analyzer.store.transaction import plans
from analyzer.store.transaction.lock_feed import new_mark
from analyzer.store.transaction.sql_store import SqlFlush

AT_ONCE = 500  # in one transaction: counted in some hundredths of a second
NO_BOUND = 1 << 62

PART = partition_in(rejects)
REST = [rejects.c[name] for name in ("offset", "reason", "sample", "value_bytes", "kafka_ms", "at_ms")]


class PlanMismatch(AnalyzerError):
    """What would be counted is not what this configuration says."""


class RejectedRecord(NamedTuple):
    """One record that could not be read, as much of it as was kept."""

    part: Partition
    offset: int
    reason: str
    sample: bytes
    value_bytes: int | None  # None: not known, or there was no value
    kafka_ms: int | None
    found: datetime  # by the database's clock

    @property
    def where(self) -> str:
        return f"{self.part}@{self.offset}"

    @property
    def whole(self) -> bool:
        """Whether the sample is all of the record's value."""
        return self.value_bytes == len(self.sample)


class RejectFilter(NamedTuple):
    """Which of them: everything that is given must hold."""

    source: str | None = None
    topic: str | None = None
    number: int | None = None  # of the partition
    reason: str | None = None
    since_ms: int = 0  # found since
    offset: int | None = None

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        of = rejects.c
        asked = {
            of.source: self.source, of.topic: self.topic, of.partition: self.number,
            of.reason: self.reason, of.offset: self.offset,
        }  # fmt: skip
        same = (column == value for column, value in asked.items() if value is not None)
        return sa.and_(of.at_ms >= self.since_ms, *same)


class RetryOutcome(NamedTuple):
    """What became of one record that was read again."""

    reject: RejectedRecord
    why: str  # "": it is counted now


def rejected(engine: sa.Engine, wanted: RejectFilter, *, as_logged: bool = False) -> Iterator[RejectedRecord]:
    """Those that are wanted, the last found first, or in the order of their logs; in constant memory.
    Raises StoreAway."""
    of = rejects.c
    latest = (of.at_ms.desc(), of.topic, of.partition, of.offset.desc())
    logged = (of.topic, of.cluster, of.topic_id, of.partition, of.offset)
    statement = sa.select(*PART, *REST).where(wanted.condition).order_by(*(logged if as_logged else latest))
    with (
        unhurried(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        yield from map(_reject, rows)


class RejectRetry:
    """Reads rejected records again, under today's mappings and the plan in force.

    What can be read now is counted as if it had been readable at once: in the buckets, the totals, the
    judgement and the ledger, in the transaction that takes it from the table. So it is counted once,
    however often that is tried, and whoever tries it beside us. Only the budget of names is not asked: the
    order of records is gone.
    """

    def __init__(
        self,
        engine: sa.Engine,
        mapped: Mapping[str, LogMapping],
        plan: Plan,
        random_mark: Callable[[], str] = new_mark,
    ) -> None:
        self._mapped = {
            source: replace(mapping, rejected_in_row_max=NO_BOUND, callers_max=NO_BOUND)
            for source, mapping in mapped.items()
        }
        self._engine = engine
        self._plan = plan
        self._random_mark = random_mark

    def run(self, wanted: RejectFilter, who: str, why: str) -> Iterator[RetryOutcome]:
        """What became of each, some at a time, by partition and offset. Raises OtherPlan, StoreAway; what
        was told before that is stored."""
        for part in self._parts(wanted):
            after = -1
            while True:
                outcomes = self._some(part, wanted, after, who, why)
                if not outcomes:
                    break
                yield from outcomes
                after = outcomes[-1].reject.offset

    def judge(self, reject: RejectedRecord) -> str:
        """Why this record cannot be counted today; "" when it can."""
        return self._read([reject])[1][0].why

    def _some(
        self, part: Partition, wanted: RejectFilter, after: int, who: str, why: str
    ) -> list[RetryOutcome]:
        with writing(self._engine) as db:
            # Offsets first, like every writer: from here on nobody else takes these.
            begun = sa.select(offsets.c.next).where(is_of(offsets, part))
            if db.execute(begun.with_for_update()).first() is None:
                raise PlanMismatch(f"{part}: nothing is known of this partition any more")
            version, _ = plans.agreed(db)
            if version is None or plans.active(db)[1].digest != self._plan.digest:
                raise PlanMismatch(
                    "the plan in force is not that of this configuration: run the analyzer first"
                )
            to_come = sa.and_(is_of(rejects, part), rejects.c.offset > after)
            statement = sa.select(*PART, *REST).where(to_come, wanted.condition)
            found = db.execute(statement.order_by(rejects.c.offset).limit(AT_ONCE))
            counted, outcomes = self._read([_reject(row) for row in found])
            good = [outcome.reject for outcome in outcomes if not outcome.why]
            if good:
                self._move(db, part, good, counted, version)
                record(db, who, "rejects counted", _range(good), why)
            return outcomes

    def _read(self, found: Sequence[RejectedRecord]) -> tuple[DrainedCounts, list[RetryOutcome]]:
        """What the records of one partition give, and what becomes of each."""
        trouble = {reject.offset: self._trouble(reject) for reject in found}
        whole = [reject for reject in found if not trouble[reject.offset]]
        counter = PythonCounter(self._mapped, self._plan.groupings, self._plan.meters)
        if whole:
            items = [Record(reject.offset, reject.kafka_ms, reject.sample) for reject in whole]
            counter.feed(Records(whole[0].part, whole[0].offset, whole[-1].offset + 1, items))
        counted = counter.drain()
        trouble |= {each.offset: each.reason for each in counted.rejected}
        return counted, [RetryOutcome(reject, trouble[reject.offset]) for reject in found]

    def _trouble(self, reject: RejectedRecord) -> str:
        if reject.reason == "tombstone":
            return "it has no value"
        if not reject.whole:
            return "only its beginning was kept"
        if reject.part.source not in self._mapped:
            return f"no source is called {reject.part.source} any more"
        return ""

    def _move(
        self,
        db: sa.Connection,
        part: Partition,
        good: Sequence[RejectedRecord],
        counted: DrainedCounts,
        version: int,
    ) -> None:
        """From dead or late to counted."""
        late = sum(reject.reason == "past" for reject in good)
        dead, of = len(good) - late, offsets.c
        ledger = {"counted": of.counted + len(good), "dead": of.dead - dead, "late": of.late - late}
        db.execute(sa.update(offsets).where(is_of(offsets, part)).values(ledger))
        tx = SqlFlush(db, "", self._random_mark)
        now = tx.agree_with(version)
        reached = tx.add_totals(totals_of(self._plan, counted.rows), self._plan.limits)
        tx.add_counts(counted.rows, self._plan.meters)
        these = rejects.c.offset.in_([each.offset for each in good])
        db.execute(sa.delete(rejects).where(is_of(rejects, part), these))
        locks = tx.locks([lock_key(standing.series) for standing in reached])
        tx.publish(changes(self._plan, reached, locks, now))

    def _parts(self, wanted: RejectFilter) -> list[Partition]:
        statement = sa.select(*PART).distinct().where(wanted.condition).order_by(*PART)
        with unhurried(self._engine) as db:
            return [Partition(*row) for row in db.execute(statement)]


def _range(good: Sequence[RejectedRecord]) -> str:
    first, last = good[0], good[-1]
    return first.where if first is last else f"{len(good)} records, {first.where} to {last.offset}"


def _reject(row: Sequence[Any]) -> RejectedRecord:
    part = Partition(*row[: len(PART)])
    offset, reason, sample, value_bytes, kafka_ms, at_ms = row[len(PART) :]
    return RejectedRecord(part, offset, reason, bytes(sample), value_bytes, kafka_ms, instant(at_ms))
