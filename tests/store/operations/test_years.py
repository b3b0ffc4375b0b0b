"""Totals of years: filled from quarter-hours and minutes, and refilled from both."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count as numbers

import pytest
import sqlalchemy as sa

from analyzer.callers.caller_changes import set_callers
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import totals
from analyzer.maintenance import roll_up
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import DAY_S, Calendar, window_at
from tests.store.flushing import ACME, a_row, flush, now_s
from tests.support.stored_counts import put_counts
from tests.support.upkeep import Upkeep

YEAR = Calendar("year")


def count(engine: sa.Engine, at_s: int, width_s: int, value: int) -> None:
    """Stores requests of some time ago, as flushes and the roll-up have left them."""
    row = CountRow("caller", ACME, "", "requests", width_s, at_s - at_s % width_s, value, 0)
    with engine.begin() as db:
        put_counts(db, [row])


def used(engine: sa.Engine) -> list[int]:
    with engine.connect() as db:
        return list(db.scalars(sa.select(totals.c.used).order_by(totals.c.window_s)))


@pytest.fixture
def this_year(store: SqlStore, engine: sa.Engine) -> int:
    """Counts of this year in both widths, and one of the year before; returns their number in this year."""
    store.activate(make_plan([], [], []))
    start_s = window_at(YEAR, now_s(engine)).start_s
    count(engine, start_s - 900, 900, 1_000)
    count(engine, start_s, 900, 5)
    count(engine, (start_s + now_s(engine)) // 2, 900, 7)
    count(engine, now_s(engine) - 60, 60, 11)
    return 23


def test_a_year_is_filled_from_quarter_hours_and_minutes(
    store: SqlStore, engine: sa.Engine, this_year: int
) -> None:
    by_plan = make_plan([], [], [Quota("yearly", 24, YEAR)])
    store.activate(by_plan)
    assert used(engine) == [this_year]
    flush(store, by_plan, [a_row(1, now_s(engine))])
    assert used(engine) == [this_year + 1]


def test_a_year_is_filled_step_by_step_while_records_are_counted(
    store: SqlStore, engine: sa.Engine, this_year: int
) -> None:
    by_plan = make_plan([], [], [Quota("yearly", 24, YEAR)])
    with writing(engine) as db:
        plans.activate(db, by_plan, new_mark, rows_max=1)
    upkeep = Upkeep(engine, lambda: "mark")
    with writing(engine) as db:
        assert roll_up.widen(db, 60, 900, 0, 10_000) == 0, "not while totals are filled"
    flush(store, by_plan, [a_row(1, now_s(engine))])
    while upkeep.continue_activation():
        flush(store, by_plan, [a_row(1, now_s(engine))])
        this_year += 1
    assert used(engine) == [this_year + 1]


def test_a_caller_whose_year_begins_on_another_day_is_counted_from_there(
    store: SqlStore, engine: sa.Engine, this_year: int
) -> None:
    by_plan = make_plan([], [], [Quota("yearly", 24, Calendar("year", "UTC", ("anchor",)))])
    store.activate(by_plan)
    assert used(engine) == [this_year]
    # Its year began on the day after tomorrow, a year ago.
    day = datetime.fromtimestamp(now_s(engine) + 2 * DAY_S, UTC).date()
    profiles = {ACME: Profile(anchor=day.replace(year=2024).isoformat())}
    marks = map(str, numbers())
    set_callers(engine, profiles, "operator", "", lambda: next(marks), ["anchor"])
    assert sum(used(engine)) == this_year + 1_000, "with the last hour of the year before"
