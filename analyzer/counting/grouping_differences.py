"""Compares the buckets of one grouping with those of another, day by day: what is counted by caller and
resource must add up to what is counted by caller, and so on.

Every grouping counts every request; one without a field of the key counts under the empty key. So a coarser
grouping equals the sum of a finer one, for each meter, and for requests that were denied too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import AUDITED
from analyzer.counting.counter.caller_budget import FOLDED
from analyzer.counting.sql_joins import bounded_join
from analyzer.kernel.database.engine import without_scans
from analyzer.kernel.tables.schema import buckets, plans
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S, WIDTHS_S, joins_by_meter
from analyzer.plan.plan import Plan, UnknownPlan, plan_from


class GroupingDifference(NamedTuple):
    """A day on which two groupings do not add up to each other."""

    day_s: int
    coarse: str
    fine: str
    key: str  # of the coarse grouping; "" also where all keys are added up
    meter: str
    in_coarse: int  # requests that were denied included
    in_fine: int


class Comparison(NamedTuple):
    """Two groupings that must agree since a time, and the column of the finer one that is a key of the
    coarser; None: only the sums over all keys are compared."""

    coarse: str
    fine: str
    key_of_fine: str | None
    since_s: int


def comparisons(db: sa.Connection, plan: Plan) -> list[Comparison]:
    """Returns what can be compared: groupings of the plan in force, since both are counted."""
    since_s = _counted_since(db, plan)
    pairs: list[Comparison] = []
    for fine in plan.groupings:
        base, _, second = fine.partition("+")
        coarser = [(base, "key")] if second and base in since_s else []
        if parse_grouping(fine).resource is not None and second in since_s:
            coarser.append((second, "resource"))
        if not coarser and fine != AUDITED:
            coarser = [(AUDITED, "")]
        pairs += [
            Comparison(coarse, fine, column or None, max(since_s[coarse], since_s[fine]))
            for coarse, column in coarser
        ]
    return pairs


def _counted_since(db: sa.Connection, plan: Plan) -> dict[str, int]:
    """Returns since when each grouping of the plan in force is counted without a pause, in whole UTC days.

    A record may be older than the flush that counts it, and a little newer: a grouping that came later is
    compared from the day after next.
    """
    rows = db.execute(
        sa.select(plans.c.version, plans.c.at_ms, plans.c.body).order_by(plans.c.version.desc())
    )
    since_s = dict.fromkeys(plan.groupings, 0)
    still = set(plan.groupings)
    for version, at_ms, body in rows:
        try:
            present = set(plan_from(body).groupings)
        except UnknownPlan:
            present = set()
        still &= present
        # The first plan of a database: nothing was counted before.
        day_s = 0 if version == 1 else (at_ms // 1000 // DAY_S + 2) * DAY_S
        since_s.update(dict.fromkeys(still, day_s))
        if not still:
            break
    return since_s


def differing_groupings(
    db: sa.Connection, catalog: Catalog, plan: Plan, pairs: Sequence[Comparison], day_s: int, most: int
) -> list[GroupingDifference]:
    """Returns up to `most` differences on a UTC day. Must run in a snapshot.

    Where rarely seen callers of the day were folded, keys of one grouping may be folded before those of the
    other: then only resources and sums are compared.
    """
    without_scans(db)
    joins = joins_by_meter(plan.bucket_meters)
    differences: list[GroupingDifference] = []
    for pair in pairs:
        if day_s < pair.since_s or len(differences) >= most:
            continue
        column = pair.key_of_fine
        if column == "key" and _is_folded(db, catalog, pair, day_s):
            column = None
        for page in sorted({catalog.meters[name].page for name in joins}):
            meters = [catalog.meters[name] for name in sorted(joins) if catalog.meters[name].page == page]
            differences += _of_page(db, catalog, pair._replace(key_of_fine=column), meters, day_s, most)
    return differences[:most]


def _of_page(
    db: sa.Connection,
    catalog: Catalog,
    comparison: Comparison,
    meters: Sequence[MeterColumn],
    day_s: int,
    most: int,
) -> Iterator[GroupingDifference]:
    columns = [(meter, f"{kind}_{meter.place}") for meter in meters for kind in ("value", "denied")]
    sides = []
    for grouping, key, is_coarse in (
        (comparison.coarse, "key", True),
        (comparison.fine, comparison.key_of_fine, False),
    ):
        shown = sa.literal("") if comparison.key_of_fine is None or key is None else buckets.c[key]
        nothing = sa.literal(0, sa.BigInteger)
        for width_s in WIDTHS_S:
            values = [
                value.label(f"{side}_{name}")
                for _, name in columns
                for side, value in (
                    ("coarse", sa.func.coalesce(buckets.c[name], 0) if is_coarse else nothing),
                    ("fine", nothing if is_coarse else sa.func.coalesce(buckets.c[name], 0)),
                )
            ]
            sides.append(
                sa.select(shown.label("key"), *values).where(
                    buckets.c.grouping == catalog.groupings[grouping],
                    buckets.c.page == meters[0].page,
                    buckets.c.width_s == width_s,
                    buckets.c.bucket_s >= day_s,
                    buckets.c.bucket_s < day_s + DAY_S,
                )
            )
    united = sa.union_all(*sides).subquery().c
    joined = [
        tuple(_joined(meter.join, united[f"{side}_{name}"]) for side in ("coarse", "fine"))
        for meter, name in columns
    ]
    statement = (
        sa.select(united.key, *(side for pair in joined for side in pair))
        .group_by(united.key)
        .having(sa.or_(*(coarse != fine for coarse, fine in joined)))
        .order_by(united.key)
        .limit(most)
    )
    for key, *values in db.execute(statement):
        for position, meter in enumerate(meters):
            admitted, denied = (
                values[4 * position : 4 * position + 2],
                values[4 * position + 2 : 4 * position + 4],
            )
            if admitted[0] != admitted[1] or denied[0] != denied[1]:
                sums = [int(admitted[side]) + int(denied[side]) for side in (0, 1)]
                yield GroupingDifference(day_s, comparison.coarse, comparison.fine, key, meter.name, *sums)


def _joined(join: str, column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return bounded_join(join, column)


def _is_folded(db: sa.Connection, catalog: Catalog, comparison: Comparison, day_s: int) -> bool:
    """Whether callers of the day were folded in one of the groupings."""
    statement = sa.select(buckets.c.key).where(
        buckets.c.grouping.in_([catalog.groupings[comparison.coarse], catalog.groupings[comparison.fine]]),
        buckets.c.width_s.in_(WIDTHS_S[1:]),
        buckets.c.page.in_(sorted({meter.page for meter in catalog.meters.values()})),
        buckets.c.bucket_s >= day_s,
        buckets.c.bucket_s < day_s + DAY_S,
        buckets.c.key == FOLDED,
    )
    return db.execute(statement.limit(1)).first() is not None
