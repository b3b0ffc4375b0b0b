"""The victims of a noisy neighbour in SQL: what all others had before it, and have now.

Read only for series that are to be locked, so that the cost is that of the locks that are raised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.counting.counter.outcomes import SERIES_END
from analyzer.counting.sql_joins import bounded_sum
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.kinds.victims import without
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.rolling import sum_at
from analyzer.judging.sql.slots import GENERATION_S, whole_total, with_slots
from analyzer.judging.totals import OthersLoad, Standing, TotalKey, Victims
from analyzer.kernel.tables.schema import slots
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.windows import Rolling
from gatekeeper.model import Change, Lock, LockKey, Set

NEXT_TO_END = chr(ord(SERIES_END) + 1)


def with_victims(
    db: sa.Connection,
    plan: Plan,
    catalog: Catalog,
    standings: Sequence[Standing],
    changes: Collection[Change],
    locks: Mapping[LockKey, Lock],
    context: Circumstances,
) -> list[Standing] | None:
    """Returns the standings, those that get a first lock by `changes` with what all others have.

    None if no series that is compared with a whole gets one.
    """
    first = {
        change.at
        for change in changes
        if isinstance(change, Set) and (change.at not in locks or locks[change.at].until <= context.now)
    }
    completed, is_any = list(standings), False
    for index, standing in enumerate(standings if first else ()):
        for policy in plan_sums(plan).policies_by_sum[standing.total.sum]:
            key = lock_key(policy, standing.total)
            if key in first and standing.total.sum in plan_sums(plan).wholes_by_sum:
                hold = context.holds.get(key)
                since_s = context.now_s if hold is None else int(hold.since_s)
                completed[index] = standing._replace(
                    victims=_victims(db, plan, catalog, standing, context.now_s, since_s)
                )
                is_any = True
    return completed if is_any else None


def _victims(
    db: sa.Connection, plan: Plan, catalog: Catalog, standing: Standing, now_s: int, since_s: int
) -> Victims:
    """Returns what all others have in the window that ends now, and in one that ended before the cause.

    That is the last window without a slot of the one in which the series went over its mark, if its slots are
    still there.
    """
    total, whole = standing.total, whole_total(plan, standing.total)
    rolling = total.sum.window
    assert isinstance(rolling, Rolling)  # noqa: S101 - as all sums that are compared
    assert whole is not None  # noqa: S101 - as above
    before_s = earlier_end_s(rolling, since_s)
    oldest_s = (now_s // GENERATION_S - 1) * GENERATION_S
    earlier = None
    if before_s - rolling.period_s - rolling.slot_s >= oldest_s:
        read = with_slots(db, [Standing(total, 0), Standing(whole, 0)], catalog, before_s)
        earlier = _others(db, plan, catalog, total, whole, before_s, read[0], read[1])
    during = _others(db, plan, catalog, total, whole, now_s, standing, Standing(whole, 0, standing.whole))
    return Victims(during, earlier, plan_sums(plan).has_errors, plan_sums(plan).has_durations)


def earlier_end_s(rolling: Rolling, since_s: int) -> int:
    """Returns the end of a window that has no slot of the one that ends at `since_s`."""
    return since_s - rolling.period_s - rolling.slot_s


def _others(
    db: sa.Connection,
    plan: Plan,
    catalog: Catalog,
    total: TotalKey,
    whole: TotalKey,
    at_s: int,
    own: Standing,
    all_: Standing,
) -> OthersLoad:
    """Returns what all but one series have in the window that ends at `at_s`."""
    rolling = total.sum.window
    assert isinstance(rolling, Rolling)  # noqa: S101 - as all sums that are compared
    load = max(0, sum_at(all_.slots, rolling, at_s) - sum_at(own.slots, rolling, at_s))
    sum_ = plan_sums(plan).outcomes_by_sum.get(total.sum)
    if sum_ is None:
        return OthersLoad(load)
    parameters = {
        "number": catalog.sum_number(sum_),
        "whole": whole.key,
        "from_s": at_s - rolling.period_s - rolling.slot_s,
        "until_s": at_s,
    }
    return OthersLoad(load, without(_outcomes(db, "", parameters), _outcomes(db, total.key, parameters)))


def _outcomes(db: sa.Connection, series: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """Returns the outcomes of one series, or with an empty name of all together."""
    bounds = {"first": series + SERIES_END, "last": series + NEXT_TO_END}
    outcomes: dict[str, int] = {}
    generations = range(parameters["from_s"] // GENERATION_S, parameters["until_s"] // GENERATION_S + 1)
    for generation in generations:
        for name, value in db.execute(_of_series(slots[generation % len(slots)]), {**parameters, **bounds}):
            outcome = name.rpartition(SERIES_END)[2]
            outcomes[outcome] = outcomes.get(outcome, 0) + value
    return outcomes


@lru_cache
def _of_series(table: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(table.c.resource, bounded_sum(table.c.value))
        .where(
            table.c.sum == sa.bindparam("number"),
            table.c.key == sa.bindparam("whole"),
            table.c.resource >= sa.bindparam("first", type_=sa.Text),
            table.c.resource < sa.bindparam("last", type_=sa.Text),
            table.c.slot_s > sa.bindparam("from_s", type_=sa.BigInteger),
            table.c.slot_s <= sa.bindparam("until_s", type_=sa.BigInteger),
        )
        .group_by(table.c.resource)
    )
