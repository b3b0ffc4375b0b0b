"""Rows per meter become rows per series: moved in steps beside counting, with nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database import migrate
from analyzer.kernel.database.engine import NowMs, reading, writing
from analyzer.kernel.model import CountRow
from analyzer.maintenance.audit import audit
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S, REQUESTS, Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar, window_at
from tests.store.flushing import a_row, flush, locked
from tests.support.small_steps import small_steps
from tests.support.stored_counts import stored_counts, stored_totals
from tests.support.upkeep import Upkeep

SLOWEST = Meter("slowest", "took", "max")
DAILY = Quota("daily", 1_000, Calendar("day"))
PLAN = make_plan(["caller+resource"], [SLOWEST], [DAILY])
NAMES = ("grouping", "meter", "width_s", "bucket_s", "key", "resource", "value", "denied")


def table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


def insert(db: sa.Connection, name: str, rows: Sequence[dict[str, Any]]) -> None:
    db.execute(sa.insert(table(name, *rows[0])), list(rows))


@pytest.fixture
def now_s(engine: sa.Engine) -> int:
    with reading(engine) as db:
        return int(db.execute(sa.select(NowMs())).scalar_one()) // 1000


@pytest.fixture
def old_rows(now_s: int) -> list[CountRow]:
    today_s = now_s // DAY_S * DAY_S
    rows = []
    for day_s, width_s in ((today_s, 60), (today_s - 60 * DAY_S, 900), (today_s - 500 * DAY_S, DAY_S)):
        for number in range(7):
            for grouping, resource in (("caller", ""), ("caller+resource", "/a")):
                series = grouping, f"user:{number}", resource
                rows.append(CountRow(*series, "requests", width_s, day_s, 3 + number, number % 2))
                rows.append(CountRow(*series, "slowest", width_s, day_s, 90 - number, 0))
    rows.append(CountRow("tenant", "gone", "", "bytes", 60, today_s, 5, 0))  # of an earlier plan
    return sorted(rows)


@pytest.fixture
def old(database_url: str, engine: sa.Engine, old_rows: list[CountRow], now_s: int) -> sa.Engine:
    """A database of version 0003 with buckets, totals and a plan in force."""
    migrate.upgrade(database_url, "0003")
    window = window_at(DAILY.window, now_s)
    with writing(engine) as db:
        insert(
            db,
            "buckets",
            [dict(zip(NAMES, (r[0], r[3], *r[4:6], *r[1:3], *r[6:]), strict=True)) for r in old_rows],
        )
        insert(
            db,
            "plans",
            [{"version": 4, "digest": PLAN.digest, "body": PLAN.to_json(), "active": 1, "at_ms": 7}],
        )
        insert(db, "totals", [
            {"grouping": "caller", "meter": "requests", "period": "day UTC", "key": f"user:{number}",
             "resource": "", "window_s": window.start_s, "until_s": window.until_s, "used": 3 + number,
             "next": 1_000, "plan": 4}
            for number in range(7)
        ])  # fmt: skip
        counted = sum(r.value + r.denied for r in old_rows if (r.grouping, r.meter) == ("caller", "requests"))
        ledger = dict.fromkeys(("duplicate", "dead", "late", "behind_ms", "behind_records"), 0)
        insert(db, "offsets", [
            {"cluster": "c", "topic_id": "t", "partition": 0, "source": "s", "topic": "log", "next": counted,
             "resume_token": "", "seen": counted, "counted": counted, "owner": "", **ledger}
        ])  # fmt: skip
    return engine


def usage(engine: sa.Engine) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for grouping in ("caller", "caller+resource", "tenant")
        for row in usage_rows(engine, UsageQuery(grouping, 60))
    ]


def shown(rows: Sequence[CountRow]) -> list[tuple[object, ...]]:
    """Returns what `usage` must show of these rows."""
    by_grouping = {row.grouping: [] for row in rows}  # type: dict[str, list[tuple[object, ...]]]
    for row in rows:
        series = row.key, row.resource, row.meter, row.bucket_s, row.width_s
        by_grouping[row.grouping].append((*series, row.value, row.denied))
    return [
        row
        for _, found in sorted(by_grouping.items())
        for row in sorted(found, key=lambda r: (r[3], r[0], r[1], r[4], r[2]))  # type: ignore[index]  # rows of usage are plain tuples here
    ]


def test_reports_are_complete_before_during_and_after_the_move(
    database_url: str, old: sa.Engine, old_rows: list[CountRow], now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 11)
    migrate.upgrade(database_url)
    upkeep, expected = Upkeep(old, str), shown(old_rows)
    steps = 0
    while True:
        assert usage(old) == expected
        assert audit(old).equal
        if not upkeep.move_old():
            break
        steps += 1
    assert steps == -(-len(old_rows) // 11)
    with reading(old) as db:
        assert stored_counts(db) == old_rows
        assert not catalog.load(db).has_old_rows
    assert upkeep.move_old() == 0
    assert migrate.check(database_url) != [], "a report that began before may still read the table"
    with writing(old) as db:
        a_day_ago = sa.text("UPDATE catalog SET number = :time_s WHERE kind = 'moved'")
        db.execute(a_day_ago, {"time_s": now_s - DAY_S})
    assert upkeep.move_old() == 0
    assert migrate.check(database_url) == [], "the table of the old rows is dropped a day later"


def test_an_analyzer_counts_and_judges_while_rows_are_moved(
    database_url: str, old: sa.Engine, old_rows: list[CountRow], now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Totals came with the migration, so locks are raised at once; new counts meet old ones in one row."""
    small_steps(monkeypatch, 5)
    migrate.upgrade(database_url)
    store, upkeep = SqlStore(old, "here"), Upkeep(old, str)
    assert store.activate(PLAN) == 4, "the plan in force stays in force"
    at_s = now_s // DAY_S * DAY_S
    counted = 0
    while upkeep.move_old():
        flush(store, PLAN, [a_row(100, at_s, "user:1")])
        counted += 100
    assert list(locked(old)) == [("user:1", "daily")]
    with reading(old) as db:
        (row,) = (
            row
            for row in stored_counts(db)
            if (row.grouping, row.key, row.meter, row.bucket_s) == ("caller", "user:1", "requests", at_s)
        )
        assert (row.value, row.denied) == (4 + counted, 1)
        assert stored_totals(db)[("caller requests day UTC", "user:1", "", at_s)] == 4 + counted


def test_a_new_policy_waits_until_all_rows_are_moved(
    database_url: str, old: sa.Engine, now_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 20)
    migrate.upgrade(database_url)
    store, upkeep = SqlStore(old, "here"), Upkeep(old, str)
    monthly = make_plan(["caller+resource"], [SLOWEST], [DAILY, Quota("monthly", 8, Calendar("month"))])
    store.activate(monthly)
    assert not upkeep.continue_activation()
    assert locked(old) == {}
    while upkeep.move_old():
        assert not upkeep.continue_activation() or not upkeep.move_old()
    while upkeep.continue_activation():
        pass
    assert set(locked(old)) == {("user:5", "monthly"), ("user:6", "monthly")}


@pytest.mark.parametrize(
    ("meter", "shown_as"),
    [
        (Meter("worst", "took", "max", renamed_from="slowest"), "worst"),
        (Meter("slowest", "took"), "slowest (max)"),
    ],
)
def test_a_meter_that_is_renamed_while_rows_are_moved_keeps_its_old_rows(
    database_url: str, old: sa.Engine, monkeypatch: pytest.MonkeyPatch, meter: Meter, shown_as: str
) -> None:
    """Also one whose join changes: the old values must not meet those of the new join."""
    small_steps(monkeypatch, 11)
    migrate.upgrade(database_url)
    upkeep = Upkeep(old, str)
    upkeep.move_old()
    SqlStore(old, "here").activate(make_plan(["caller+resource"], [meter], [DAILY]))
    while True:
        found = [row for row in usage_rows(old, UsageQuery("caller", DAY_S)) if row.meter != "requests"]
        assert {row.meter for row in found} == {shown_as}
        assert len(found) == 3 * 7
        if not upkeep.move_old():
            break
    with reading(old) as db:
        assert catalog.load(db).renamed == {}


@pytest.mark.parametrize("moved", [0, 2, 99])
def test_a_downgrade_at_any_time_loses_nothing(
    database_url: str, old: sa.Engine, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 11)
    with reading(old) as db:
        tables = {
            name: sorted(map(tuple, db.execute(sa.text(f"select {columns} from {name}"))))
            for name, columns in (
                ("buckets", ", ".join(NAMES)),
                ("totals", "key, window_s, until_s, used, next"),
            )
        }
    migrate.upgrade(database_url)
    upkeep = Upkeep(old, str)
    for _ in range(moved):
        upkeep.move_old()
    migrate.downgrade(database_url, "0003")
    with reading(old) as db:
        for name, columns in (
            ("buckets", ", ".join(NAMES)),
            ("totals", "key, window_s, until_s, used, next"),
        ):
            found = sorted(map(tuple, db.execute(sa.text(f"select {columns} from {name}"))))
            assert found == tables[name]
    migrate.upgrade(database_url)
    while upkeep.move_old():
        pass
    assert audit(old).equal


def test_a_database_without_counts_has_nothing_to_move(database_url: str, engine: sa.Engine) -> None:
    migrate.upgrade(database_url)
    with reading(engine) as db:
        assert not catalog.load(db).has_old_rows
    assert Upkeep(engine, str).move_old() == 0
    assert SqlStore(engine, "here").activate(Plan((REQUESTS.name,) and ("caller",), (REQUESTS,))) == 1
