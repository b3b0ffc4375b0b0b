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
from analyzer.counting.sql_joins import bounded_sum
from analyzer.kernel.database.engine import without_scans
from analyzer.kernel.tables.schema import buckets, plans
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.groupings import BY_RESOURCE, RESOURCE, grouping_of
from analyzer.plan.meters import DAY_S, WIDTHS_S, joins_of
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
    found: list[Comparison] = []
    for fine in plan.groupings:
        base = fine.removesuffix(BY_RESOURCE)
        coarser = [(base, "key")] if fine != base and base in since_s else []
        if grouping_of(fine).resource == RESOURCE and "resource" in since_s:
            coarser.append(("resource", "resource"))
        if not coarser and fine != AUDITED:
            coarser = [(AUDITED, "")]
        found += [
            Comparison(coarse, fine, column or None, max(since_s[coarse], since_s[fine]))
            for coarse, column in coarser
        ]
    return found


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
    db: sa.Connection, known: Catalog, plan: Plan, wanted: Sequence[Comparison], day_s: int, most: int
) -> list[GroupingDifference]:
    """Returns up to `most` differences on a UTC day. Must run in a snapshot.

    Where rarely seen callers of the day were folded, keys of one grouping may be folded before those of the
    other: then only resources and sums are compared.
    """
    without_scans(db)
    joins = joins_of(plan.bucket_meters)
    found: list[GroupingDifference] = []
    for one in wanted:
        if day_s < one.since_s or len(found) >= most:
            continue
        column = one.key_of_fine
        if column == "key" and _is_folded(db, known, one, day_s):
            column = None
        for page in sorted({known.meters[name].page for name in joins}):
            meters = [known.meters[name] for name in sorted(joins) if known.meters[name].page == page]
            found += _of_page(db, known, one._replace(key_of_fine=column), meters, day_s, most)
    return found[:most]


def _of_page(
    db: sa.Connection,
    known: Catalog,
    one: Comparison,
    meters: Sequence[MeterColumn],
    day_s: int,
    most: int,
) -> Iterator[GroupingDifference]:
    columns = [(meter, f"{kind}_{meter.place}") for meter in meters for kind in ("value", "denied")]
    sides = []
    for grouping, key, is_coarse in ((one.coarse, "key", True), (one.fine, one.key_of_fine, False)):
        shown = sa.literal("") if one.key_of_fine is None or key is None else buckets.c[key]
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
                    buckets.c.grouping == known.groupings[grouping],
                    buckets.c.page == meters[0].page,
                    buckets.c.width_s == width_s,
                    buckets.c.bucket_s >= day_s,
                    buckets.c.bucket_s < day_s + DAY_S,
                )
            )
    both = sa.union_all(*sides).subquery().c
    joined = [
        tuple(_joined(meter.join, both[f"{side}_{name}"]) for side in ("coarse", "fine"))
        for meter, name in columns
    ]
    statement = (
        sa.select(both.key, *(side for pair in joined for side in pair))
        .group_by(both.key)
        .having(sa.or_(*(coarse != fine for coarse, fine in joined)))
        .order_by(both.key)
        .limit(most)
    )
    for key, *values in db.execute(statement):
        for at, meter in enumerate(meters):
            admitted, denied = values[4 * at : 4 * at + 2], values[4 * at + 2 : 4 * at + 4]
            if admitted[0] != admitted[1] or denied[0] != denied[1]:
                sums = [int(admitted[side]) + int(denied[side]) for side in (0, 1)]
                yield GroupingDifference(day_s, one.coarse, one.fine, key, meter.name, *sums)


def _joined(join: str, column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.max(column) if join == "max" else bounded_sum(column)


def _is_folded(db: sa.Connection, known: Catalog, one: Comparison, day_s: int) -> bool:
    """Whether callers of the day were folded in one of the groupings."""
    found = sa.select(buckets.c.key).where(
        buckets.c.grouping.in_([known.groupings[one.coarse], known.groupings[one.fine]]),
        buckets.c.width_s.in_(WIDTHS_S[1:]),
        buckets.c.page.in_(sorted({meter.page for meter in known.meters.values()})),
        buckets.c.bucket_s >= day_s,
        buckets.c.bucket_s < day_s + DAY_S,
        buckets.c.key == FOLDED,
    )
    return db.execute(found.limit(1)).first() is not None
