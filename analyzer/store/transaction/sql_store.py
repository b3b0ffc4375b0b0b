"""Every statement that counts. One transaction per flush, always in the order of `SqlFlush`'s methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from analyzer.core.counting.meters import Meter
from analyzer.core.judging.judge import JudgedSeries, Standing
from analyzer.core.judging.plan import Plan
from analyzer.core.model import CounterState, CountRow, Lag, Partition, PartitionProgress, Position, Rejected
from analyzer.errors import PartitionLost, PlanChanged
from analyzer.sources import LogId
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs, insert, reading, writing
from analyzer.store.database.partition_keys import UNFOLLOWED, is_of, place_in, place_of, row_of
from analyzer.store.database.row_parameters import as_parameters
from analyzer.store.database.schema import TOTAL_MAX, offsets, rejects
from analyzer.store.transaction import counter_state, lock_feed, plans
from analyzer.store.transaction.gaps import open_gaps
from analyzer.store.transaction.upserts import ROW_COLUMNS, TOTAL_COLUMNS, adding_to_buckets, adding_to_totals
from gatekeeper.model import Change, Lock, LockKey

ROWS_MAX = 10_000  # in one statement, which has two seconds; so many take 0.1 s


class SqlStore:
    """Counts, offsets and locks in one database. Not to be shared between threads."""

    def __init__(
        self, engine: sa.Engine, owner: str, random_mark: Callable[[], str] = lock_feed.new_mark
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark

    @contextmanager
    def transaction(self) -> Iterator[SqlFlush]:
        """One flush. Raises StoreAway: then it is not known whether it was committed, and the stored
        positions tell."""
        with writing(self._engine) as connection:
            yield SqlFlush(connection, self._owner, self._random_mark)

    def positions(self, parts: Collection[Partition]) -> dict[Partition, Position]:
        """How far `parts` are counted, and what stands in their way; those that were never heard of are left
        out. Raises StoreAway."""
        wanted = {place_of(part): part for part in parts}
        statement = sa.select(*place_in(offsets), offsets.c.next, offsets.c.resume_token)
        with reading(self._engine) as connection:
            rows = connection.execute(
                statement.where(offsets.c.topic_id.in_({part.topic_id for part in parts}))
            )
            gaps = open_gaps(connection, parts)
            begun = {
                place: Position(offset, resume_token, gaps.get(place))
                for *at, offset, resume_token in rows
                if (place := tuple(at)) in wanted
            }
            new = {place: Position(gap.start, "", gap) for place, gap in gaps.items()}
            return {wanted[place]: position for place, position in (new | begun).items()}

    def carried(self, part: Partition) -> CounterState:
        """What counting the next record of `part` depends on. Raises StoreAway."""
        with reading(self._engine) as connection:
            return counter_state.carried(connection, part)

    def begin(self, part: Partition, offset: int, resume_token: str = "") -> Position:
        """Where `part` begins: `offset`, unless somebody else began it before. Raises StoreAway."""
        row = row_of(part) | {"next": offset, "resume_token": resume_token}
        with writing(self._engine) as connection:
            connection.execute(insert(connection, offsets).values(row).on_conflict_do_nothing())
        return self.positions([part])[part]

    def logs(self, source: str, topic: str) -> list[LogId]:
        """Every log that was begun for this source under this name. Raises StoreAway."""
        named = sa.and_(offsets.c.source == source, offsets.c.topic == topic)
        with reading(self._engine) as connection:
            rows = connection.execute(
                sa.select(offsets.c.cluster, offsets.c.topic_id).where(named).distinct()
            )
            return [LogId(*row) for row in rows]

    def finish(self, parts: Collection[Partition]) -> None:
        """Nobody follows these any more: they were read to their end. Raises StoreAway."""
        with writing(self._engine) as connection:
            for part in sorted(parts):
                connection.execute(sa.update(offsets).where(is_of(offsets, part)).values(UNFOLLOWED))
                counter_state.forget_names(connection, part)

    def active(self) -> tuple[int, Plan]:
        """The version in force and its plan. Raises StoreAway; LookupError before the first `activate`."""
        with reading(self._engine) as connection:
            return plans.active(connection)

    def activate(self, plan: Plan) -> int:
        """The version of `plan`, which is in force from now on: totals of new policies are filled from the
        buckets, locks of policies that are gone are cleared. Nothing happens when it is in force already.
        Raises StoreAway."""
        with writing(self._engine) as connection:
            return plans.activate(connection, plan, self._random_mark)


class SqlFlush:
    """One transaction. The methods stand in the order in which they must be called: offsets first, the feed's
    version last, rows sorted within each, so that no two writers wait for each other in a circle."""

    def __init__(self, connection: sa.Connection, owner: str, random_mark: Callable[[], str]) -> None:
        self._db = connection
        self._dialect = connection.dialect.name
        self._owner = owner
        self._random_mark = random_mark

    def move_offsets(self, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]) -> None:
        """Record that [start, next) of each part is counted, and how far it is behind.

        A part with start = next says that its analyzer lives. Raises PartitionLost.
        """
        for progress in sorted(parts):
            lag = lags.get(progress.part, Lag(0, 0.0))
            moved = self._db.execute(MOVE_OFFSET, {
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
                "resume_token": progress.resume_token,
                **counter_state.columns_of(progress),
                "owner": self._owner,
                "behind_ms": round(lag.seconds * 1000),
                "behind_records": lag.records,
            })  # fmt: skip
            if moved.rowcount != 1:
                # Another analyzer owns the partition now. Our counts must go with our offset,
                # or the same records are counted twice.
                raise PartitionLost(progress.part, progress.start)
            counter_state.add_names(self._db, progress)

    def agree_with(self, version: int) -> datetime:
        """The database's time, if plan `version` is in force; it stays so till commit. Raises PlanChanged."""
        active, time_ms = plans.agreed(self._db)
        if active != version:
            raise PlanChanged(version, active)
        return instant(time_ms)

    def add_totals(self, grown: Mapping[JudgedSeries, int], limits: Mapping[str, int] = {}) -> list[Standing]:
        """How the judged series stand with this flush, those below the limit of their policy left out. Their
        rows stay locked until commit: of two analyzers that cross a limit together, the second waits here
        and sees what the first has added."""
        return [
            standing for some in in_statements(list(grown.items())) for standing in self._grow(some, limits)
        ]

    def _grow(self, grown: Sequence[tuple[JudgedSeries, int]], limits: Mapping[str, int]) -> list[Standing]:
        rows = [
            (policy, key, resource, *window, min(n, TOTAL_MAX))
            for (policy, key, resource, window), n in grown
        ]
        statement = adding_to_totals(self._dialect, tuple(limits.items()))
        found = self._db.execute(statement, as_parameters(self._dialect, TOTAL_COLUMNS, rows))
        stand = {tuple(place): used for *place, used in found if used >= limits.get(place[0], 0)}
        if not stand:
            return []
        return [
            Standing(series, stand[place])
            for series, _ in grown
            if (place := (series.policy, series.key, series.resource, series.window.start_s)) in stand
        ]

    def add_counts(self, rows: Sequence[CountRow], meters: Collection[Meter]) -> None:
        """Add `rows` to the buckets, each meter joined in its own way: sums added, maxima kept."""
        largest = {meter.name for meter in meters if meter.join == "max"}
        self._add_counts("sum", [bounded(row) for row in rows if row.meter not in largest])
        self._add_counts("max", [bounded(row) for row in rows if row.meter in largest])

    def _add_counts(self, join: Literal["sum", "max"], rows: Sequence[CountRow]) -> None:
        statement = adding_to_buckets(self._dialect, join)
        for some in in_statements(rows):
            self._db.execute(statement, as_parameters(self._dialect, ROW_COLUMNS, some))

    def set_aside(self, rejected: Sequence[Rejected], now: datetime) -> None:
        """Keep the records that could not be read, each with where and why."""
        if rejected:
            rows = [
                row_of(r.part)
                | {"offset": r.offset, "reason": r.reason, "sample": r.sample, "value_bytes": r.value_bytes,
                   "kafka_ms": in_column(r.kafka_ms), "at_ms": round(now.timestamp() * 1000)}
                for r in rejected
            ]  # fmt: skip
            self._db.execute(insert(self._db, rejects).on_conflict_do_nothing(), rows)

    def locks(self, keys: Collection[LockKey]) -> dict[LockKey, Lock]:
        """The locks at `keys`, locked (as rows) until commit."""
        return lock_feed.held(self._db, keys)

    def publish(self, changes: Sequence[Change]) -> int | None:
        """The feed's new version with these changes; None when there are none. Last of all: its row stays
        locked until commit."""
        return lock_feed.publish(self._db, changes, self._random_mark()) if changes else None


def in_statements(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + ROWS_MAX] for at in range(0, len(rows), ROWS_MAX))


def bounded(row: CountRow) -> CountRow:
    if row.value <= TOTAL_MAX and row.denied <= TOTAL_MAX:
        return row
    return row._replace(value=min(row.value, TOTAL_MAX), denied=min(row.denied, TOTAL_MAX))


def in_column(number: int | None) -> int | None:
    """A record's own number, which may be more than a column takes."""
    return None if number is None else max(-TOTAL_MAX, min(number, TOTAL_MAX))


# One statement per partition, in order: a join over many rows takes their locks in any order it likes.
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
        # An idle partition says nothing of its place; what was known of it stays. Of another place it says
        # nothing.
        resume_token=sa.case(
            (offsets.c.next == sa.bindparam("to"), offsets.c.resume_token), else_=sa.bindparam("resume_token")
        ),
        **counter_state.SET_CARRIED,
        owner=sa.bindparam("owner"),
        beat_ms=NowMs(),
        behind_ms=sa.bindparam("behind_ms"),
        behind_records=sa.bindparam("behind_records"),
    )
)
