"""Corrects running totals that do not equal the buckets.

A total can only be wrong after something outside of counting: rows that were deleted or restored by hand.

The buckets are read in a snapshot, beside flushes. Later flushes add equal amounts to buckets and totals, so
the difference in the snapshot stays right, and is added to the total of that moment. A number
in the catalog, which each correction raises, keeps two wardens from adding it twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import plans
from analyzer.judging.sql.totals import add_difference
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import insert, slow_reading, writing
from analyzer.kernel.database.row_parameters import upsert_columns
from analyzer.kernel.tables.schema import catalog, totals
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.maintenance.total_differences import OpenSum, TotalDifference, differing_totals, open_sums
from analyzer.plan.catalog import load
from analyzer.plan.sums import sum_text

log = logging.getLogger(__name__)

CORRECTED_MAX = 2_000  # totals in one transaction, while flushes wait
REST_MIN_MS, REST_SHARE = 60_000, 100  # between two comparisons: at least a minute, and 99 % of the time
CORRECTIONS = "corrections"  # kind of the catalog's entry that each correction raises


@dataclass(slots=True)
class Pace:
    """The last comparison of this process: its end by the database's clock, and how long it took."""

    compared_ms: int | None = None
    took_ms: int = 0

    def rests(self, now_ms: int) -> bool:
        """Whether the next comparison is not due; a clock that was set back makes it due."""
        rest_ms = max(REST_MIN_MS, REST_SHARE * self.took_ms)
        return self.compared_ms is not None and 0 <= now_ms - self.compared_ms < rest_ms


def repair(engine: sa.Engine, pace: Pace) -> int:
    """Corrects totals of one sum, up to a bound; returns how many, 0 when all are right or `pace` rests.

    Raises StoreAway, SchemaBehind.
    """
    with slow_reading(engine) as db:
        began_ms = clock_ms(db)
        if pace.rests(began_ms):
            return 0
        first_wrong = _first_wrong(db, began_ms // 1000)
        corrections = _corrections(db)
        ended_ms = clock_ms(db)
    if first_wrong is None:
        pace.compared_ms, pace.took_ms = ended_ms, max(0, ended_ms - began_ms)
        return 0
    open_sum, wrong = first_wrong
    with writing(engine) as db:
        # Before the totals, as flushes do: it waits for them, and they wait for it.
        plan = plans.judge_again(db, clock_was_ahead=False)
        if plan is None or load(db).sums.get(sum_text(open_sum.sum)) != open_sum.number:
            return 1  # another plan is in force: compare again
        if not _raise_corrections(db, corrections):
            return 1  # another warden was faster
        _correct(db, open_sum, wrong, plan_sums(plan).thresholds_by_sum[open_sum.sum][0])
    first = wrong[0]
    log.warning(
        "%d totals of %s did not equal the buckets, and are corrected: first %s, with %d in place of %d",
        len(wrong), sum_text(open_sum.sum), first.key or "everyone", first.counted, first.used,
    )  # fmt: skip
    return len(wrong)


def _first_wrong(db: sa.Connection, now_s: int) -> tuple[OpenSum, list[TotalDifference]] | None:
    """Returns the first sum with totals that differ, and the first of these."""
    row = db.execute(sa.select(plans_table.c.pending).where(plans_table.c.active == 1)).first()
    if row is None:
        return None
    numbers, (_, plan) = load(db), plans.active(db)
    for open_sum in open_sums(plan, row.pending, numbers, now_s):
        wrong = differing_totals(db, numbers, open_sum, CORRECTED_MAX)
        if wrong:
            return open_sum, wrong
    return None


def _corrections(db: sa.Connection) -> int:
    number = sa.select(catalog.c.number).where(catalog.c.kind == CORRECTIONS)
    return int(db.execute(number).scalar() or 0)


def _raise_corrections(db: sa.Connection, corrections: int) -> bool:
    """Raises the number of corrections by one; False when it is not `corrections` any more."""
    row = insert(db, catalog).values(kind=CORRECTIONS, name="totals", number=corrections + 1, join="")
    raised = row.on_conflict_do_update(
        index_elements=catalog.primary_key,
        set_={"number": row.excluded.number},
        where=catalog.c.number == corrections,
    )
    return db.execute(raised.returning(catalog.c.number)).first() is not None


def _correct(db: sa.Connection, open_sum: OpenSum, wrong: list[TotalDifference], least: int) -> None:
    """Adds the differences; the next growth of these totals is judged.

    The total of a maximum is set to that of the buckets: a larger value that came after the snapshot is
    found by the next comparison.
    """
    is_sum = open_sum.sum.joined.adds_up
    upsert_columns(
        db,
        totals,
        {
            "sum": open_sum.number,
            "window_s": open_sum.window.start_s,
            "key": [difference.key for difference in wrong],
            "resource": [difference.resource for difference in wrong],
            "used": [
                difference.counted - difference.used if is_sum else difference.counted for difference in wrong
            ],
            "next": least,
            "plan": 0,
        },
        add_difference if is_sum else _set_used,
    )


def _set_used(_dialect: str, _table: sa.Table, new: Any) -> dict[str, Any]:
    return {"used": new.used, "next": new.next, "plan": new.plan}
