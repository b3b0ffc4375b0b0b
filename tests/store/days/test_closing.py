"""Closing a day: what is frozen, what becomes an adjustment, whom the day waits for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days import closing
from analyzer.billing.days.by_hand import leave_out
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, add_day, day_at, day_window, stored_days
from analyzer.billing.days.signed_reasons import changed_reasons
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import NowMs, reading, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.model import CountRow, Lag, Partition, PartitionProgress
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    corrections,
    day_positions,
    days,
    frozen_counts,
    referenced_names,
)
from analyzer.kernel.tables.schema import leases
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from tests.store.flushing import ACME, ANN, PART, a_row, flush, now_s

DAY_S = 86_400
SLOWEST = Meter("slowest", "took", "max")
PLAN = make_plan(["caller+resource"], [SLOWEST], [])
OTHER = PART._replace(number=1)
NEW = PART._replace(number=2)


class Closer:
    """Closings of one installation, over logs with given ends."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.ends: dict[Partition, int | None] = {}
        self.asked: list[Sequence[Partition]] = []
        self.ahead_ms = 0
        self.marks = itertools.count(1)

    def ask(self, followed: Sequence[Partition]) -> Mapping[Partition, int | None]:
        self.asked.append(followed)
        return self.ends

    def new(self, **billing: Any) -> DayClosing:
        """Returns the closing of another process."""
        return DayClosing(
            self.engine,
            Billing(grace_s=0.0)._replace(**billing),
            self.ask,
            lambda: f"attempt-{next(self.marks)}",
            lambda: now_s(self.engine) * 1000 + self.ahead_ms,
        )


@pytest.fixture
def closer(engine: sa.Engine) -> Closer:
    return Closer(engine)


@pytest.fixture
def counted(store: SqlStore) -> SqlStore:
    """The store with a plan in force."""
    store.activate(PLAN)
    return store


@pytest.fixture
def yesterday(engine: sa.Engine) -> Day:
    """The open day of UTC, which is over."""
    at_s = now_s(engine) - DAY_S
    with writing(engine) as db:
        return add_day(db, "UTC", at_s)


def stored(engine: sa.Engine) -> list[Day]:
    with reading(engine) as db:
        return stored_days(db)


def states(engine: sa.Engine) -> list[str]:
    return [day.state for day in stored(engine)]


def amounts(engine: sa.Engine, table: sa.Table, place: int = 0) -> dict[str, tuple[int, int]]:
    """Returns the amounts of each caller in a table, admitted and denied: requests by default."""
    name, found = referenced_names.c.name, table.c
    grouping = sa.select(sa.func.min(found.grouping)).scalar_subquery()
    wanted = sa.select(name, found[f"value_{place}"], found[f"denied_{place}"]).where(
        found.grouping == grouping
    )
    wanted = wanted.join(referenced_names, referenced_names.c.reference == found.reference)
    with reading(engine) as db:
        return {caller: (value or 0, denied or 0) for caller, value, denied in db.execute(wanted)}


def follow(store: SqlStore, part: Partition, to: int, **lag: Any) -> None:
    """Has an analyzer read a partition up to an offset."""
    at = store.begin(part, 0).next
    with store.transaction() as tx:
        progress = PartitionProgress(part, at, to, seen=to - at, counted=to - at)
        tx.move_offsets([progress], {part: Lag(lag.get("records", 0), lag.get("seconds", 0.0))})


def test_counts_before_the_cut_are_frozen_and_later_ones_are_adjustments(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    at_s = yesterday.begin_s
    flush(
        counted,
        PLAN,
        [a_row(3, at_s), a_row(2, at_s + 7_200), a_row(5, at_s + DAY_S), a_row(9, at_s - 60)],
    )
    assert closer.new().step() == 1
    late = [a_row(4, at_s + 60, denied=1), a_row(1, at_s + 120), a_row(7, at_s, ANN), a_row(6, at_s + DAY_S)]
    flush(counted, PLAN, late)
    flush(counted, PLAN, [a_row(2, at_s + 60)])
    assert amounts(engine, frozen_counts) == {ACME: (5, 0)}
    assert amounts(engine, adjustments) == {ACME: (7, 1), ANN: (7, 0)}
    closed, open_day = stored(engine)
    assert (closed.state, closed.requests, closed.rows) == ("closed", 5, 1)
    assert (open_day.state, open_day.begin_s) == ("open", yesterday.end_s)
    with reading(engine) as db:
        booked = set(db.execute(sa.select(adjustments.c.day, adjustments.c.booked)))
    assert booked == {(closed.id, open_day.id)}


def test_every_grouping_and_meter_of_the_configuration_is_frozen(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    def rows(value: int, slowest: int, key: str = ACME) -> list[CountRow]:
        minute = yesterday.begin_s + 60
        found = []
        for grouping, resource in (("caller", ""), ("caller+resource", "/a")):
            for meter, amount in (("requests", value), ("slowest", slowest)):
                found.append(CountRow(grouping, key, resource, meter, 60, minute, amount, 0))
        return found

    flush(counted, PLAN, [*rows(3, 70), *rows(1, 20, ANN)])
    assert closer.new(groupings=("caller", "caller+resource")).step() == 1
    flush(counted, PLAN, rows(2, 60))
    flush(counted, PLAN, rows(1, 90))
    [closed, _] = stored(engine)
    assert closed.groupings == ("caller", "caller+resource")
    assert {meter.name: meter.join for meter in closed.meters} == {"requests": "sum", "slowest": "max"}
    assert amounts(engine, frozen_counts, 1) == {ACME: (70, 0), ANN: (20, 0)}
    assert amounts(engine, adjustments, 1) == {ACME: (90, 0)}
    with reading(engine) as db:
        frozen = db.execute(sa.select(frozen_counts.c.resource, frozen_counts.c.value_0)).all()
        later = db.execute(sa.select(adjustments.c.resource, adjustments.c.value_0)).all()
    assert sorted(map(tuple, frozen)) == [("", 1), ("", 3), ("/a", 1), ("/a", 3)]
    assert sorted(map(tuple, later)) == [("", 3), ("/a", 3)]


def test_a_day_waits_for_its_end_its_grace_and_both_clocks(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    past_s = now_s(engine) - yesterday.end_s
    assert closer.new(grace_s=past_s + 600.0).step() == 0
    closer.ahead_ms = -(past_s + 60) * 1000
    assert closer.new().step() == 0
    assert states(engine) == ["open"]
    closer.ahead_ms = 0
    assert closer.new().step() == 1
    assert closer.new().step() == 0, "today is not over"
    assert states(engine) == ["closed", "open"]


def test_each_zone_has_an_open_day_from_the_first_look_on(
    engine: sa.Engine, counted: SqlStore, closer: Closer
) -> None:
    assert closer.new(zones=("Asia/Kolkata", "UTC")).step() == 0
    assert [(day.zone, day.state) for day in stored(engine)] == [("Asia/Kolkata", "open"), ("UTC", "open")]
    assert closer.new(zones=()).step() == 0


def test_days_of_zones_are_closed_apart(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    """The last hours of yesterday in UTC are today in the east, and no adjustment there."""
    _, window = day_at("Asia/Kolkata", yesterday.begin_s)
    with writing(engine) as db:
        add_day(db, "Asia/Kolkata", yesterday.begin_s)
    flush(counted, PLAN, [a_row(1, window.until_s - 60), a_row(2, window.until_s)])
    step = closer.new(zones=("Asia/Kolkata", "UTC"))
    while step.step():
        pass  # in the east, two days may be over
    with reading(engine) as db:
        found = sa.select(days.c.zone, frozen_counts.c.value_0).join(days, days.c.id == frozen_counts.c.day)
        assert set(db.execute(found.where(days.c.begin_s <= yesterday.begin_s))) >= {("Asia/Kolkata", 1)}
    flush(counted, PLAN, [a_row(4, window.until_s - 120)])
    with reading(engine) as db:
        booked = sa.select(days.c.zone, adjustments.c.value_0).join(days, days.c.id == adjustments.c.day)
        assert set(db.execute(booked)) == {("Asia/Kolkata", 4), ("UTC", 4)}


def test_the_target_of_each_partition_is_asked_for_once_and_awaited(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    follow(counted, PART, 10)
    follow(counted, OTHER, 5)
    closer.ends = {PART: 12, OTHER: 5, NEW: 3}
    process = closer.new()
    assert process.step() == 0
    assert [list(asked) for asked in closer.asked] == [[PART, OTHER]]
    closer.ends = {PART: 99, OTHER: 99, NEW: 99}
    waits = [str(one) for one in process.find_awaited(yesterday)]
    assert waits == [
        "access-log[0]: is counted up to 10, and must be up to 12",
        "access-log[2]: is not counted yet, and must be up to 3",
    ]
    follow(counted, PART, 14)
    assert process.step() == 0
    follow(counted, NEW, 3)
    assert process.step() == 1
    assert len(closer.asked) == 1
    with reading(engine) as db:
        columns = day_positions.c["partition", "target", "cut"]
        assert set(db.execute(sa.select(*columns))) == {(0, 12, 14), (1, 5, 5), (2, 3, 3)}


def test_a_partition_whose_analyzer_died_before_its_first_flush_is_awaited(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    """A partition that was begun has a row, and no heartbeat at first."""
    counted.begin(PART, 0)
    follow(counted, OTHER, 5)
    closer.ends = {PART: 12, OTHER: 5}
    process = closer.new()
    assert process.step() == 0
    waits = [str(one) for one in process.find_awaited(yesterday)]
    assert waits == ["access-log[0]: is counted up to 0, and must be up to 12"]
    follow(counted, PART, 12)
    assert process.step() == 1


def test_a_cut_before_the_targets_bills_a_part_of_the_day(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: nothing is awaited, and what is counted a moment later is a correction."""
    closer.ends = {PART: 8}
    follow(counted, PART, 5)
    flush(counted, PLAN, [a_row(5, yesterday.begin_s)])
    assert closer.new().step() == 0
    monkeypatch.setattr(closing.DayClosing, "find_awaited", lambda _closing, _day: [])
    assert closer.new().step() == 1
    follow(counted, PART, 8)
    flush(counted, PLAN, [a_row(3, yesterday.begin_s)])
    assert amounts(engine, frozen_counts) == {ACME: (5, 0)}
    assert amounts(engine, adjustments) == {ACME: (3, 0)}


def test_a_log_that_is_gone_and_one_without_records_hold_nothing_up(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    follow(counted, PART, 10)
    closer.ends = {PART: None, NEW: 0}
    assert closer.new().step() == 1
    with reading(engine) as db:
        columns = day_positions.c["partition", "target", "cut", "is_gone"]
        assert set(db.execute(sa.select(*columns))) == {(0, 10, 10, 1), (2, 0, None, 0)}


def test_without_an_answer_a_heartbeat_that_has_caught_up_is_the_target(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    """A followed file, and a cluster that the closing process does not read."""
    follow(counted, PART, 10, records=3, seconds=3.0 * DAY_S)
    process = closer.new()
    assert process.step() == 0
    assert [str(one) for one in process.find_awaited(yesterday)] == [
        "access-log[0]: no analyzer has said yet how far it must be counted"
    ]
    follow(counted, PART, 13)
    assert process.step() == 1


def test_a_file_that_was_read_to_its_end_is_not_awaited(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    follow(counted, PART, 10)
    counted.finish([PART])
    assert closer.new().step() == 1
    with reading(engine) as db:
        assert set(db.execute(sa.select(day_positions.c["target", "cut"]))) == {(None, 10)}


def test_a_partition_can_be_left_out_with_a_reason(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    follow(counted, PART, 10)
    closer.ends = {PART: 12}
    assert closer.new().step() == 0
    leave_out(engine, yesterday, PART, "eve", "INC-311")
    assert closer.new().step() == 1
    with reading(engine) as db:
        columns = day_positions.c["target", "cut", "left_out", "who"]
        assert set(db.execute(sa.select(*columns))) == {(12, 10, "INC-311", "eve")}
        assert list(changed_reasons(db, yesterday)) == []
    with writing(engine) as db:
        db.execute(sa.update(day_positions).values(left_out="a caller left", salt=""))
    for changed in ({"left_out": "no reason"}, {"left_out": "no reason", "salt": "", "cut": 12}):
        with writing(engine) as db:
            db.execute(sa.update(day_positions).values(salt=""))
        with pytest.raises(sa.exc.DBAPIError, match="cannot be changed"), engine.begin() as db:
            db.execute(sa.update(day_positions).values({"salt": "x"} | changed))


class Killed(BaseException):
    pass


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Ends the process when it calls a function of the closing for the n-th time."""

    def kill(name: str, time: int) -> None:
        left, called = time, getattr(closing.frozen_rows, name, None) or getattr(closing, name)
        owner = closing.frozen_rows if hasattr(closing.frozen_rows, name) else closing

        def counting(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return called(*arguments, **keywords)

        monkeypatch.setattr(owner, name, counting)

    return kill


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("_store_positions", 1),
        ("_keep", 1),
        ("write", 1),
        ("write", 2),
        ("frozen_totals", 1),
        ("content_digest", 1),
    ],
)
def test_a_closing_that_was_killed_begins_again(
    engine: sa.Engine,
    counted: SqlStore,
    yesterday: Day,
    closer: Closer,
    killed_at: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    time: int,
) -> None:
    """With another cut: what was counted in between is frozen, and no adjustment is left of it."""
    monkeypatch.setattr(closing.frozen_rows, "ROWS_AT_ONCE", 1)
    flush(counted, PLAN, [a_row(3, yesterday.begin_s), a_row(1, yesterday.begin_s, ANN)])
    with monkeypatch.context() as patched:
        patched.setattr(closing.CLOSINGS, "release", lambda *_: None)
        killed_at(name, time)
        with pytest.raises(Killed):
            closer.new().step()
    monkeypatch.undo()
    flush(counted, PLAN, [a_row(2, yesterday.begin_s)])
    if states(engine) != ["open"]:
        assert amounts(engine, adjustments) == {ACME: (2, 0)}
        assert closer.new().step() == 0, "the other process may still be at it"
        with writing(engine) as db:
            db.execute(sa.update(leases).values(until_ms=NowMs() - 1))
    assert closer.new().step() == 1
    assert amounts(engine, frozen_counts) == {ACME: (5, 0), ANN: (1, 0)}
    assert amounts(engine, adjustments) == {}
    assert states(engine) == ["closed", "open"]


def test_a_closing_that_fails_is_tried_again_at_once(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(counted, PLAN, [a_row(3, yesterday.begin_s)])

    def fail(*_arguments: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(closing.frozen_rows, "write", fail)
        with pytest.raises(OSError, match="no space"):
            closer.new().step()
    assert closer.new().step() == 1
    assert amounts(engine, frozen_counts) == {ACME: (3, 0)}


def test_a_closing_that_was_taken_over_writes_nothing_any_more(
    engine: sa.Engine,
    counted: SqlStore,
    yesterday: Day,
    closer: Closer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that was stopped for minutes in the middle of a closing."""
    flush(counted, PLAN, [a_row(3, yesterday.begin_s)])
    write = closing.frozen_rows.write

    def stopped(db: sa.Connection, *arguments: Any) -> None:
        monkeypatch.setattr(closing.frozen_rows, "write", write)
        db.rollback()
        with writing(engine) as other:
            other.execute(sa.update(leases).values(until_ms=NowMs() - 1))
        flush(counted, PLAN, [a_row(2, yesterday.begin_s)])
        assert closer.new().step() == 1

    monkeypatch.setattr(closing.frozen_rows, "write", stopped)
    assert closer.new().step() == 0
    assert "another process closes it" in caplog.text
    assert amounts(engine, frozen_counts) == {ACME: (5, 0)}
    assert states(engine) == ["closed", "open"]


def test_the_next_day_is_closed_after_the_one_before(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    with writing(engine) as db:
        db.execute(
            sa.update(days).values(begin_s=days.c.begin_s - DAY_S, end_s=days.c.end_s - DAY_S, date="x")
        )
    process = closer.new()
    assert [process.step(), process.step(), process.step()] == [1, 1, 0]
    first, second, _ = stored(engine)
    assert second.digest_before == first.digest != ""


STATEMENTS = {
    "frozen rows": sa.update(frozen_counts).values(value_0=1),
    "a frozen row moved to another day": sa.update(frozen_counts).values(day=99),
    "a frozen row less": sa.delete(frozen_counts),
    "a frozen row more": sa.insert(frozen_counts).values(
        day=1, grouping=1, page=0, reference="", resource="", value_0=1
    ),
    "the day": sa.update(days).where(days.c.state == "closed").values(state="open"),
    "the day gone": sa.delete(days).where(days.c.state == "closed"),
    "the cut": sa.update(day_positions).values(cut=1),
    "an adjustment booked on it": sa.insert(adjustments).values(
        day=1, booked=1, grouping=1, page=0, reference="", resource="", value_0=1
    ),
    "a correction": sa.update(corrections).values(amount=1),
    "a correction gone": sa.delete(corrections),
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_the_database_refuses_to_change_a_closed_day(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer, what: str
) -> None:
    follow(counted, PART, 10)
    closer.ends = {PART: 10}
    flush(counted, PLAN, [a_row(3, yesterday.begin_s)])
    assert closer.new().step() == 1
    with writing(engine) as db:
        row = {"id": 1, "day": 1, "booked": 2, "grouping": "caller", "reference": "x", "resource": ""}
        db.execute(
            sa.insert(corrections).values(**row, meter="requests", amount=-1, who="eve", reason="r", at_ms=1)
        )
    with pytest.raises(sa.exc.DBAPIError, match=r"cannot be changed|never changed"), engine.begin() as db:
        db.execute(STATEMENTS[what])


def test_dates_of_zones() -> None:
    assert day_at("Pacific/Apia", 1_325_239_200)[0] == "2011-12-31"  # 30 December was left out
    with pytest.raises(ValueError, match="had no 2011-12-30"):
        day_window("Pacific/Apia", "2011-12-30")
    assert (
        day_window("Europe/Berlin", "2026-10-25").until_s - day_window("Europe/Berlin", "2026-10-25").start_s
        == 90_000
    )


@pytest.mark.parametrize("database", ["postgresql"])  # SQLite has one writer
def test_flushes_wait_no_longer_for_a_cut_than_its_bound(
    engine: sa.Engine, new_engine: Callable[[], sa.Engine], counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    """A flush that takes long is not waited for: the cut is tried again."""
    other = SqlStore(new_engine(), "there")
    with other.transaction() as tx:
        tx.check_plan(PLAN, 1)
        assert closer.new().step() == 0
        assert states(engine) == ["open"]
    assert closer.new().step() == 1


def test_a_lease_that_was_taken_while_the_clock_was_ahead_holds_nothing_up(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(counted, PLAN, [a_row(3, yesterday.begin_s)])
    monkeypatch.setattr(closing.CLOSINGS, "release", lambda *_: None)
    monkeypatch.setattr(DayClosing, "_finish", lambda *_: None)
    closer.new().step()
    monkeypatch.undo()
    assert closer.new().step() == 0
    with writing(engine) as db:
        db.execute(sa.update(leases).values(until_ms=NowMs() + 3 * DAY_S * 1000))
    assert closer.new().step() == 1


UNGUARDED = {
    "sqlite": "drop trigger frozen_counts_closed_update",
    "postgresql": "alter table frozen_counts disable trigger closed_days",
}


def test_the_digest_of_a_day_shows_a_changed_row_to_a_holder_of_the_key(
    engine: sa.Engine, counted: SqlStore, yesterday: Day, closer: Closer
) -> None:
    """Even if the triggers were dropped by a user who may."""
    key = DigestKey(b"kept outside of the database")
    flush(counted, PLAN, [a_row(3, yesterday.begin_s), a_row(5, yesterday.begin_s, ANN)])
    assert closer.new(key=key).step() == 1
    [day, _] = stored(engine)

    def digest(by: DigestKey) -> str:
        with reading(engine) as db:
            return by.chained(content_digest(db, day), day.digest_before)

    assert digest(key) == day.digest
    assert day.digest_key == key.fingerprint
    assert digest(DigestKey(b"another key of 16 bytes")) != day.digest
    assert digest(DigestKey()) != day.digest
    with engine.begin() as db:
        db.exec_driver_sql(UNGUARDED[engine.dialect.name])
        db.execute(sa.update(frozen_counts).where(frozen_counts.c.value_0 == 5).values(value_0=4))
    assert digest(key) != day.digest
    with engine.begin() as db:
        if engine.dialect.name == "postgresql":
            db.exec_driver_sql("alter table frozen_counts enable trigger closed_days")
