"""Totals of years: filled from quarter-hours and minutes, and refilled from both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
from analyzer.kernel.tables.schema import locks, notices, totals
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


@pytest.mark.parametrize("rows_max", [1, 100])
def test_a_lifetime_is_filled_from_all_that_is_kept(
    store: SqlStore, engine: sa.Engine, this_year: int, rows_max: int
) -> None:
    """Days, quarters of an hour and minutes, of any age, while records are counted."""
    count(engine, now_s(engine) - 4 * 365 * DAY_S, DAY_S, 10_000)
    by_plan = make_plan([], [], [Quota("trial", 20_000, Calendar("lifetime"))])
    with writing(engine) as db:
        plans.activate(db, by_plan, new_mark, rows_max=rows_max)
    upkeep = Upkeep(engine, lambda: "mark")
    flushed, is_left = 0, True
    while is_left:
        flush(store, by_plan, [a_row(1, now_s(engine))])
        flushed += 1
        is_left = bool(upkeep.continue_activation())
    assert used(engine) == [10_000 + 1_000 + this_year + flushed]
    while upkeep.prune():
        pass
    assert used(engine) == [10_000 + 1_000 + this_year + flushed]


@pytest.mark.parametrize(
    ("begin_days", "end_days", "expected"), [(-400, 100, 1_000), (-1, 1, 2), (-3_000, -2_000, 0), (10, 20, 0)]
)
def test_a_contract_is_filled_with_what_came_in_it(
    store: SqlStore, engine: sa.Engine, begin_days: int, end_days: int, expected: int
) -> None:
    store.activate(make_plan([], [], []))
    midnight_s = now_s(engine) // DAY_S * DAY_S
    count(engine, midnight_s - 500 * DAY_S, DAY_S, 50)
    count(engine, midnight_s - 300 * DAY_S, 900, 998)
    count(engine, now_s(engine), 60, 2)
    first, last = (
        datetime.fromtimestamp(midnight_s + days * DAY_S, UTC).date().isoformat()
        for days in (begin_days, end_days)
    )
    policy = Quota("contract", 1_000, Calendar("contract", days=(first, last)))
    store.activate(make_plan([], [], [policy]))
    with engine.connect() as db:
        stored = {row.window_s: row.used for row in db.execute(sa.select(totals))}
        assert stored.get(midnight_s + begin_days * DAY_S, 0) == expected
        assert bool(db.execute(sa.select(locks)).all()) is (expected >= policy.limit)


def test_before_and_after_a_contract_nothing_is_locked(store: SqlStore, engine: sa.Engine) -> None:
    today = datetime.fromtimestamp(now_s(engine), UTC).date()
    for begin, end in ((10, 20), (-20, -10)):
        days = (today + timedelta(begin)).isoformat(), (today + timedelta(end)).isoformat()
        by_plan = make_plan([], [], [Quota("contract", 5, Calendar("contract", days=days), notify=(500,))])
        store.activate(by_plan)
        flush(store, by_plan, [a_row(50, now_s(engine))])
        with engine.connect() as db:
            assert not db.execute(sa.select(locks)).all()
            assert not db.execute(sa.select(notices)).all()
