"""Totals of a meter that keeps the largest value: joined by flushes, filled from buckets, corrected."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import totals
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.store.flushing import ACME, ANN, flush, locked, now_s, used
from tests.store.flushing import a_row as a_request_row
from tests.support.upkeep import Upkeep

LARGEST = Meter("largest", "bytes", "max")
SIZE = Quota("size", 10, Calendar("month"), meter="largest")
COUNTED = make_plan([], [LARGEST], [])
JUDGED = make_plan([], [LARGEST], [SIZE])


def a_row(value: int, at_s: int, key: str = ACME) -> CountRow:
    return a_request_row(value, at_s, key)._replace(meter="largest")


def values(engine: sa.Engine) -> dict[str, int]:
    return {key: value for (_, key, _), value in used(engine).items()}


def test_the_total_of_a_maximum_is_the_largest_value(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(JUDGED)
    at_s = now_s(engine)
    for value in (4, 7, 5):
        flush(store, JUDGED, [a_row(value, at_s)])
    assert (values(engine), locked(engine)) == ({ACME: 7}, {})
    flush(store, JUDGED, [a_row(10, at_s), a_row(9, at_s, ANN)])
    assert values(engine) == {ACME: 10, ANN: 9}
    assert list(locked(engine)) == [(ACME, "size")]


def test_the_total_of_a_maximum_is_filled_with_the_largest_value(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(COUNTED)
    at_s = now_s(engine) // 3600 * 3600
    for value, minute in ((4, 0), (10, 1), (5, 2)):
        flush(store, COUNTED, [a_row(value, at_s + 60 * minute), a_row(3, at_s + 60 * minute, ANN)])
    store.activate(JUDGED)
    assert values(engine) == {ACME: 10, ANN: 3}
    assert list(locked(engine)) == [(ACME, "size")]


@pytest.mark.parametrize("damage", [2, 99, None], ids=["less", "more", "deleted"])
def test_a_wrong_total_of_a_maximum_is_set(engine: sa.Engine, store: SqlStore, damage: int | None) -> None:
    store.activate(JUDGED)
    at_s = now_s(engine)
    for value in (6, 8):
        flush(store, JUDGED, [a_row(value, at_s), a_row(5, at_s, ANN)])
    of_acme = totals.c.key == ACME
    with writing(engine) as db:
        if damage is None:
            db.execute(sa.delete(totals).where(of_acme))
        else:
            db.execute(sa.update(totals).where(of_acme).values(used=damage))
    upkeep = Upkeep(engine, lambda: "mark")
    assert upkeep.repair_totals() == 1
    assert values(engine) == {ACME: 8, ANN: 5}
    assert upkeep.repair_totals() == 0
