"""Rejected records (dead letters): listed, and taken out of the table by a retry that counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting import counter_state
from analyzer.flush.flush import SqlFlush
from analyzer.judging.judge import Judged
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import RECORDS_RETRIED, record
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading, writing
from analyzer.kernel.database.partition_keys import is_partition, partition_columns
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.model import CounterState, DrainedCounts, IdState, Partition
from analyzer.kernel.tables.schema import offsets, rejects
from analyzer.plan.plan import Plan

PARTITION = partition_columns(rejects)
COLUMNS = [rejects.c[name] for name in ("offset", "reason", "sample", "value_bytes", "kafka_ms", "at_ms")]


class PlanMismatch(AnalyzerError):
    """The configuration differs from the plan by which the records would be counted."""


class RejectedRecord(NamedTuple):
    """One rejected record, as much of it as was kept."""

    part: Partition
    offset: int
    reason: str
    sample: bytes
    value_bytes: int | None  # None: unknown, or there was no value
    kafka_ms: int | None
    found: datetime  # by the database's clock

    @property
    def where(self) -> str:
        return f"{self.part}@{self.offset}"

    @property
    def whole(self) -> bool:
        """Whether the sample is the record's whole value."""
        return self.value_bytes == len(self.sample)


class RejectFilter(NamedTuple):
    """Selects rejected records: everything that is given must hold."""

    source: str | None = None
    topic: str | None = None
    number: int | None = None  # of the partition
    reason: str | None = None
    since_ms: int = 0  # rejected since then
    offset: int | None = None

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        columns = rejects.c
        by_column = {
            columns.source: self.source, columns.topic: self.topic, columns.partition: self.number,
            columns.reason: self.reason, columns.offset: self.offset,
        }  # fmt: skip
        equal = (column == value for column, value in by_column.items() if value is not None)
        return sa.and_(columns.at_ms >= self.since_ms, *equal)


def rejected(
    engine: sa.Engine, selection: RejectFilter, *, by_offset: bool = False
) -> Iterator[RejectedRecord]:
    """Yields the wanted records, the newest first, or in the order of their logs; in constant memory.

    Raises StoreAway.
    """
    columns = rejects.c
    newest_first = (columns.at_ms.desc(), columns.topic, columns.partition, columns.offset.desc())
    in_log_order = (columns.topic, columns.cluster, columns.topic_id, columns.partition, columns.offset)
    statement = sa.select(*PARTITION, *COLUMNS).where(selection.condition)
    statement = statement.order_by(*(in_log_order if by_offset else newest_first))
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        yield from map(_record, rows)


class SqlRejects:
    """The rejected records as a retry uses them."""

    def __init__(self, engine: sa.Engine, random_mark: Callable[[], str] = new_mark) -> None:
        self._engine = engine
        self._random_mark = random_mark

    def partitions(self, selection: RejectFilter) -> list[Partition]:
        """Returns the partitions that have wanted records. Raises StoreAway."""
        statement = sa.select(*PARTITION).distinct().where(selection.condition).order_by(*PARTITION)
        with slow_reading(self._engine) as db:
            return [Partition(*row) for row in db.execute(statement)]

    @contextmanager
    def retrying(self, part: Partition, plan: Plan) -> Iterator[SqlRetry]:
        """Opens a transaction on the records of `part`, which commits at the end.

        Raises PlanMismatch when the partition is unknown or `plan` is not in force; StoreAway.
        """
        with writing(self._engine) as db:
            # Offsets first, like every writer: from here on no other retry takes these records.
            statement = sa.select(offsets.c.next).where(is_partition(offsets, part))
            if db.execute(statement.with_for_update()).first() is None:
                raise PlanMismatch(f"{part}: the database has no offset of this partition any more")
            locked = plans.lock_active(db)
            if locked.version is None or not plans.is_in_force(db, locked, plan):
                raise PlanMismatch("another plan came in force meanwhile: retry again")
            yield SqlRetry(db, part, plan, locked.version, self._random_mark)


class SqlRetry:
    """An open transaction on the rejected records of one partition."""

    def __init__(
        self, db: sa.Connection, part: Partition, plan: Plan, version: int, random_mark: Callable[[], str]
    ) -> None:
        self._db = db
        self._part = part
        self._plan = plan
        self._version = version
        self._random_mark = random_mark

    def rejected(self, selection: RejectFilter, offset: int, most: int) -> list[RejectedRecord]:
        """Returns at most `most` wanted records behind `offset`, by offset."""
        behind = sa.and_(is_partition(rejects, self._part), rejects.c.offset > offset)
        statement = sa.select(*PARTITION, *COLUMNS).where(behind, selection.condition)
        rows = self._db.execute(statement.order_by(rejects.c.offset).limit(most))
        return [_record(row) for row in rows]

    def counter_state(self) -> CounterState:
        """Returns the ids that the partition remembers, and those that retries have counted; no names."""
        ids = counter_state.stored_state(self._db, self._part).ids or IdState(None)
        of_retries = counter_state.stored_ids(self._db, self._part, of_retries=True)
        return CounterState(ids=ids._replace(blobs=[*ids.blobs, *of_retries]))

    def count(
        self, records: Sequence[RejectedRecord], counted: DrainedCounts, who: str, reason: str
    ) -> Judged:
        """Moves `records` (at least one) from dead or late to counted or duplicate, and judges them.

        `counted` is what they amount to. The ids that are counted are stored for later retries.
        """
        late = sum(reject.reason == "past" for reject in records)
        dead, columns = len(records) - late, offsets.c
        duplicates = sum(progress.duplicate for progress in counted.parts)
        ledger = {
            "counted": columns.counted + len(records) - duplicates,
            "duplicate": columns.duplicate + duplicates,
            "dead": columns.dead - dead,
            "late": columns.late - late,
        }
        self._db.execute(sa.update(offsets).where(is_partition(offsets, self._part)).values(ledger))
        flush = SqlFlush(self._db, "", self._random_mark)
        judged = flush.apply(
            self._plan,
            self._version,
            counted,
            flush.check_plan(self._plan, self._version),
            remove_rejected=lambda: self._remove(records, counted),
        )
        signed_rows.sign(
            self._db, signed_rows.retry(record(self._db, who, RECORDS_RETRIED, _range(records), reason))
        )
        return judged

    def _remove(self, records: Sequence[RejectedRecord], counted: DrainedCounts) -> None:
        """Deletes the records, and stores the ids of those that are counted."""
        numbers = [reject.offset for reject in records]
        condition = sa.and_(is_partition(rejects, self._part), rejects.c.offset.in_(numbers))
        self._db.execute(sa.delete(rejects).where(condition))
        for progress in counted.parts:
            ids = None if progress.state is None else progress.state.ids
            if ids is not None and ids.blobs:
                hashes = b"".join(blob.hashes for blob in ids.blobs)
                counter_state.add_ids_of_retry(self._db, self._part, hashes)


def _range(records: Sequence[RejectedRecord]) -> str:
    first, last = records[0], records[-1]
    return first.where if first is last else f"{len(records)} records, {first.where} to {last.offset}"


def _record(row: Sequence[Any]) -> RejectedRecord:
    part = Partition(*row[: len(PARTITION)])
    offset, reason, sample, value_bytes, kafka_ms, at_ms = row[len(PARTITION) :]
    return RejectedRecord(part, offset, reason, bytes(sample), value_bytes, kafka_ms, instant(at_ms))
