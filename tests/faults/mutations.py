"""Mutations: five promises taken out of the product, one at a time, to show that the tests notice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa

from analyzer.flush import flush
from analyzer.flush.flush import SqlFlush
from analyzer.judging.caller_limits import Limits
from analyzer.judging.locks import lock_feed
from analyzer.judging.sql import sql_judge, totals
from analyzer.judging.totals import Growth, Standing, TotalKey
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs
from analyzer.kernel.model import Lag, Partition, PartitionProgress
from analyzer.kernel.tables.schema import buckets, feed_versions, lock_changes, offsets
from analyzer.kernel.tables.schema import feed as feed_row
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum
from analyzer.plan.windows import window_at
from gatekeeper.model import Change


class Patch(Protocol):
    """Replaces an attribute: pytest's monkeypatch, or `setattr` in a process that ends anyway."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


def without_compare_and_set(patch: Patch) -> None:
    """The offset moves from any position: two analyzers of one partition both count."""
    unconditional = flush.MOVE_OFFSET._clone()
    always = sa.bindparam("from", type_=sa.BigInteger) >= 0
    unconditional._where_criteria = tuple(
        always if part.left.name == offsets.c.next.name else part for part in unconditional._where_criteria
    )
    patch.setattr(flush, "MOVE_OFFSET", unconditional)


def offsets_in_a_separate_transaction(patch: Patch) -> None:
    """The offset is committed first, the counts a moment later: a kill in between loses the counts."""
    move = SqlFlush.move_offsets

    def move_separately(
        self: SqlFlush, parts: Sequence[PartitionProgress], lags: Mapping[Partition, Lag]
    ) -> None:
        with self._db.engine.begin() as separate:
            move(SqlFlush(separate, self._owner, self._random_mark), parts, lags)
        time.sleep(0.1)  # time for a kill, as on a slower disk

    patch.setattr(SqlFlush, "move_offsets", move_separately)


def judging_from_sums_of_buckets(patch: Patch) -> None:
    """Two flushes of a series are not serialised: each sees its part of the total, and neither the limit."""

    def add_up(
        db: sa.Connection,
        _limits: Limits,
        version: int,
        growth: Mapping[Sum, Growth],
        _catalog: Catalog,
        _now_s: int,
    ) -> list[totals.StoredTotal]:
        return [
            totals.StoredTotal(Standing(total, value + db.execute(_counted(total)).scalar_one()), 0, version)
            for sum_, grown in growth.items()
            for window_s, key, resource, value in zip(*grown, strict=True)
            for total in (TotalKey(sum_, key, resource, window_at(sum_.window, window_s)),)
        ]

    patch.setattr(totals, "add_totals", add_up)
    patch.setattr(sql_judge, "set_next", lambda *_: None)


def _counted(total: TotalKey) -> sa.Select[tuple[int]]:
    summed = sa.cast(sa.func.coalesce(sa.func.sum(buckets.c.value_0), 0), sa.BigInteger)
    window = buckets.c.bucket_s >= total.window.start_s, buckets.c.bucket_s < total.window.until_s
    return sa.select(summed).where(buckets.c.key == total.key, *window)


def plan_version_not_agreed(patch: Patch) -> None:
    """A flush judges by the plan in its memory, even when another one is in force."""

    def agree(self: SqlFlush, _plan: Plan, _version: int) -> datetime:
        return instant(self._db.execute(sa.select(NowMs())).scalar_one())

    patch.setattr(SqlFlush, "check_plan", agree)


def feed_versions_from_a_sequence(patch: Patch) -> None:
    """Versions become visible in another order than they are numbered: a reader that is already at a later
    version misses the changes of an earlier one."""

    def add_version(db: sa.Connection, changes: Sequence[Change], mark: str) -> int:
        with db.engine.begin() as sequence:
            next_version = sa.update(feed_row).values(version=feed_row.c.version + 1, mark=mark)
            version = sequence.execute(next_version.returning(feed_row.c.version)).scalar_one()
        db.execute(sa.insert(feed_versions).values(version=version, mark=mark, at_ms=NowMs()))
        numbered = (
            {"version": version, "number": n} | lock_feed._columns(change) for n, change in enumerate(changes)
        )
        db.execute(sa.insert(lock_changes), list(numbered))
        return int(version)

    patch.setattr(lock_feed, "_add_version", add_version)


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (
        without_compare_and_set,
        offsets_in_a_separate_transaction,
        judging_from_sums_of_buckets,
        plan_version_not_agreed,
        feed_versions_from_a_sequence,
    )
}
