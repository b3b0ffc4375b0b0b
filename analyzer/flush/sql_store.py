"""Counts, offsets and locks in one SQL database: the store that the pipeline and the sources use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from analyzer.counting import counter_state
from analyzer.counting.gaps import open_gaps
from analyzer.flush.flush import CatalogCache, Refute, SqlFlush
from analyzer.judging.judgement_log import log_judged
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import plans
from analyzer.judging.sql.directory import DirectoryCache
from analyzer.kernel.database.engine import insert, reading, writing
from analyzer.kernel.database.partition_keys import (
    UNFOLLOWED,
    is_partition,
    key_columns,
    key_tuple,
    partition_values,
)
from analyzer.kernel.model import CounterState, Partition, Position
from analyzer.kernel.tables.schema import offsets
from analyzer.plan.plan import Plan
from analyzer.plan.stretches import KnownStretches
from analyzer.sources.positions import LogId

# Longer than flushes usually take, and shorter than a session in a consumer group. What continues after it
# fails at the compare-and-set.
FLUSH_WAIT_S = 3.0


class SqlStore:
    """Implements `Store` and `PositionStore`.

    `transaction` may be used in one thread while another one uses the other methods: each call has its own
    connection. `wait_for_flush` waits for a transaction in flight, for at
    most so many seconds; the methods that read or write what a flush moves call it first. `refute` decides
    which verdicts are not believed; None: those that no lock supports.
    """

    def __init__(
        self,
        engine: sa.Engine,
        owner: str,
        random_mark: Callable[[], str] = lock_feed.new_mark,
        wait_for_flush: Callable[[float], None] = lambda _timeout_s: None,
        refute: Refute | None = None,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark
        self._catalogs = CatalogCache()  # these three are used by `transaction` alone
        self._directories = DirectoryCache()
        self._stretches = KnownStretches()
        self._wait_for_flush = wait_for_flush
        self._refute = refute

    def wait_for_flush(self, timeout_s: float = FLUSH_WAIT_S) -> None:
        self._wait_for_flush(timeout_s)

    @contextmanager
    def transaction(self) -> Iterator[SqlFlush]:
        """Opens a flush, which commits at the end.

        Raises StoreAway: the outcome is then unknown, and the stored positions tell.
        """
        try:
            with writing(self._engine) as connection:
                yield SqlFlush(
                    connection,
                    self._owner,
                    self._random_mark,
                    self._catalogs,
                    self._stretches,
                    self._directories,
                    self._refute,
                )
        except BaseException:
            self._stretches.forget()
            raise

    def positions(self, parts: Collection[Partition]) -> dict[Partition, Position]:
        """Returns the stored positions of `parts` and the gaps that block them; unknown ones are left out.

        Raises StoreAway.
        """
        self.wait_for_flush()
        parts_by_key = {key_tuple(part): part for part in parts}
        statement = sa.select(*key_columns(offsets), offsets.c.next, offsets.c.resume_token)
        with reading(self._engine) as connection:
            rows = connection.execute(
                statement.where(offsets.c.topic_id.in_({part.topic_id for part in parts}))
            )
            gaps = open_gaps(connection, parts)
            stored = {
                key: Position(offset, resume_token, gaps.get(key))
                for *columns, offset, resume_token in rows
                if (key := tuple(columns)) in parts_by_key
            }
            new = {key: Position(gap.start, "", gap) for key, gap in gaps.items()}
            return {parts_by_key[key]: position for key, position in (new | stored).items()}

    def counter_state(self, part: Partition) -> CounterState:
        """Returns the state that counting the next record of `part` depends on. Raises StoreAway."""
        self.wait_for_flush()
        with reading(self._engine) as connection:
            return counter_state.stored_state(connection, part)

    def begin(self, part: Partition, offset: int, resume_token: str = "") -> Position:
        """Stores `offset` as the position of a new partition; returns the stored one. Raises StoreAway.

        A partition that is known already keeps its position.
        """
        self.wait_for_flush()
        row = partition_values(part) | {"begin": offset, "next": offset, "resume_token": resume_token}
        with writing(self._engine) as connection:
            connection.execute(insert(connection, offsets).values(row).on_conflict_do_nothing())
        return self.positions([part])[part]

    def logs(self, source: str, topic: str) -> list[LogId]:
        """Returns every log that was begun for this source under this name. Raises StoreAway."""
        has_name = sa.and_(offsets.c.source == source, offsets.c.topic == topic)
        statement = sa.select(offsets.c.cluster, offsets.c.topic_id).where(has_name).distinct()
        with reading(self._engine) as connection:
            return [LogId(*row) for row in connection.execute(statement)]

    def finish(self, parts: Collection[Partition]) -> None:
        """Marks partitions that were read to their end as followed by no analyzer. Raises StoreAway."""
        self.wait_for_flush()  # a heartbeat would say that they are followed
        with writing(self._engine) as connection:
            for part in sorted(parts):
                connection.execute(sa.update(offsets).where(is_partition(offsets, part)).values(UNFOLLOWED))
                counter_state.forget(connection, part)

    def active_plan(self) -> tuple[int, Plan]:
        """Returns the plan in force and its version. Raises LookupError when there is none yet; StoreAway."""
        with reading(self._engine) as connection:
            return plans.active(connection)

    def activate(self, plan: Plan) -> int:
        """Puts `plan` in force and begins to make totals and locks agree with it; returns its version.

        The warden continues where a history is large. Does nothing when the plan is in force already. Raises
        StoreAway.
        """
        with writing(self._engine) as connection:
            activated = plans.activate(connection, plan, self._random_mark, self._owner)
        log_judged(activated.judged, f"plan {activated.version}")
        return activated.version
