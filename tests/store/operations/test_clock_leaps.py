"""A database whose clock is ahead for a while: locks come back, totals stay, leases of that time are void."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import leases, totals
from analyzer.maintenance import total_repair
from analyzer.plan.plan import Plan
from tests.store.flushing import ACME, ANN, a_row, flush, locked, now_s, plan, quota, used
from tests.support.upkeep import Upkeep

SetClock = Callable[[float], None]
DAY_S = 86_400
LIMIT = 10


@pytest.fixture
def set_clock(engine: sa.Engine, new_engine: Callable[[], sa.Engine]) -> Iterator[SetClock]:
    """Sets the database's clock ahead by a number of seconds, for connections of `engine`."""
    ahead = {"s": 0.0}
    sqlite = engine.dialect.name == "sqlite"

    def prepare(connection: Any, _record: object) -> None:
        if sqlite:
            seconds = "select (julianday('now') - 2440587.5) * 86400"
            clock = sa.create_engine("sqlite://").connect()  # the true time

            def julian(_time: str) -> float:
                true_s = float(clock.exec_driver_sql(seconds).scalar_one())
                return 2440587.5 + (true_s + ahead["s"]) / DAY_S

            connection.create_function("julianday", 1, julian)
        else:
            connection.execute("set search_path = shifted, public, pg_catalog")
            connection.commit()

    other = new_engine()

    def define() -> None:
        with other.begin() as db:
            db.exec_driver_sql("create schema if not exists shifted")
            db.exec_driver_sql(
                "create or replace function shifted.clock_timestamp() returns timestamptz language sql as "
                f"$$ select pg_catalog.clock_timestamp() + interval '{ahead['s']} seconds' $$"
            )

    def set_ahead(seconds: float) -> None:
        ahead["s"] = seconds
        if not sqlite:
            define()

    set_ahead(0.0)
    engine.dispose()
    sa.event.listen(engine, "connect", prepare)
    yield set_ahead
    if not sqlite:
        engine.dispose()
        with other.begin() as db:
            db.exec_driver_sql("drop schema shifted cascade")


@pytest.fixture
def daily(store: SqlStore) -> Plan:
    """A plan of ten requests a month, in force."""
    of = plan(quota(LIMIT))
    store.activate(of)
    return of


def minutes_of_the_warden(upkeep: Upkeep) -> None:
    """Runs the jobs until none has anything to do."""
    assert upkeep.hold()
    upkeep.end_locks()
    while upkeep.continue_activation() or upkeep.prune() or upkeep.repair_totals():
        pass


def values(engine: sa.Engine) -> dict[str, int]:
    return {key: value for (_, key, _), value in used(engine).items()}


def test_totals_and_locks_outlive_a_clock_that_is_ahead_for_a_while(
    set_clock: SetClock, engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    at_s = now_s(engine)
    flush(store, daily, [a_row(9, at_s, ANN), a_row(12, at_s, ACME)])
    minutes_of_the_warden(upkeep)
    assert locked(engine).keys() == {(ACME, "daily")}
    set_clock(60 * DAY_S)
    minutes_of_the_warden(upkeep)
    assert locked(engine) == {}
    set_clock(0.0)
    minutes_of_the_warden(upkeep)
    assert locked(engine).keys() == {(ACME, "daily")}
    flush(store, daily, [a_row(4, at_s, ANN), a_row(4, at_s, ACME)])
    assert values(engine) == {ANN: 13, ACME: 16}
    assert locked(engine).keys() == {(ACME, "daily"), (ANN, "daily")}


def test_a_clock_that_is_ahead_deletes_no_total(
    set_clock: SetClock, engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    flush(store, daily, [a_row(9, now_s(engine), ANN)])
    set_clock(60 * DAY_S)
    assert upkeep.prune() == 0
    assert values(engine) == {ANN: 9}


def test_a_limit_that_is_reached_while_the_clock_is_ahead_locks_when_it_is_back(
    set_clock: SetClock, engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    at_s = now_s(engine)
    set_clock(60 * DAY_S)
    minutes_of_the_warden(upkeep)
    flush(store, daily, [a_row(12, at_s, ACME)])
    assert locked(engine) == {}
    set_clock(0.0)
    minutes_of_the_warden(upkeep)
    assert locked(engine).keys() == {(ACME, "daily")}


def test_a_warden_that_stops_while_the_clock_is_ahead_leaves_word_of_it(
    set_clock: SetClock, engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    flush(store, daily, [a_row(12, now_s(engine), ACME)])
    set_clock(60 * DAY_S)
    minutes_of_the_warden(upkeep)
    upkeep.release()
    set_clock(0.0)
    minutes_of_the_warden(Upkeep(engine, lambda: "mark"))
    assert locked(engine).keys() == {(ACME, "daily")}


def test_a_lease_from_the_future_belongs_to_no_analyzer(
    set_clock: SetClock, engine: sa.Engine, upkeep: Upkeep, daily: Plan
) -> None:
    other = Upkeep(engine, str, owner="there")
    set_clock(3 * DAY_S)
    assert other.hold()
    set_clock(0.0)
    assert upkeep.hold()
    assert not other.hold()


def test_a_plan_that_came_in_force_while_the_clock_was_ahead_counts_from_the_beginning_of_the_window(
    set_clock: SetClock, engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    at_s = now_s(engine)
    flush(store, daily, [a_row(12, at_s, ACME)])
    set_clock(60 * DAY_S)
    assert upkeep.hold()
    hourly = plan(quota(LIMIT, "hour", name="hourly"))
    store.activate(hourly)
    set_clock(0.0)
    minutes_of_the_warden(upkeep)
    assert locked(engine).keys() == {(ACME, "hourly")}


@pytest.mark.parametrize("damage", [-5, 3, None], ids=["less", "more", "deleted"])
def test_a_total_that_does_not_equal_the_buckets_is_corrected(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan, damage: int | None
) -> None:
    at_s = now_s(engine)
    flush(store, daily, [a_row(9, at_s, ANN), a_row(12, at_s, ACME)])
    of_acme = totals.c.key == ACME
    with writing(engine) as db:
        if damage is None:
            db.execute(sa.delete(totals).where(of_acme))
        else:
            db.execute(sa.update(totals).where(of_acme).values(used=totals.c.used + damage))
    flush(store, daily, [a_row(1, at_s, ACME, denied=2)])
    minutes_of_the_warden(upkeep)
    assert values(engine) == {ANN: 9, ACME: 13}
    assert locked(engine).keys() == {(ACME, "daily")}


def test_a_lock_that_a_wrong_total_has_set_ends_when_the_total_is_corrected(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    at_s = now_s(engine)
    flush(store, daily, [a_row(2, at_s, ANN)])
    with writing(engine) as db:
        db.execute(sa.update(totals).values(used=LIMIT))
    flush(store, daily, [a_row(1, at_s, ANN)])
    assert locked(engine).keys() == {(ANN, "daily")}
    minutes_of_the_warden(upkeep)
    assert locked(engine) == {}


def test_counts_between_the_comparison_and_the_correction_are_not_lost(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = now_s(engine)
    flush(store, daily, [a_row(5, at_s, ACME)])
    with writing(engine) as db:
        db.execute(sa.delete(totals))
    compared = total_repair._first_wrong

    def compare_and_count(db: sa.Connection, at: int) -> object:
        found = compared(db, at)
        if engine.dialect.name == "postgresql":  # SQLite's pool has one connection for each thread
            flush(store, daily, [a_row(3, at_s, ACME)])
        return found

    monkeypatch.setattr(total_repair, "_first_wrong", compare_and_count)
    assert upkeep.repair_totals() == 1
    assert values(engine)[ACME] == (8 if engine.dialect.name == "postgresql" else 5)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_two_wardens_do_not_add_a_difference_twice(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(store, daily, [a_row(5, now_s(engine), ACME)])
    with writing(engine) as db:
        db.execute(sa.delete(totals))
    other = Upkeep(engine, str)
    compared = total_repair._first_wrong

    def let_the_other_be_faster(db: sa.Connection, at: int) -> object:
        found = compared(db, at)
        monkeypatch.setattr(total_repair, "_first_wrong", compared)
        assert other.repair_totals() == 1
        return found

    monkeypatch.setattr(total_repair, "_first_wrong", let_the_other_be_faster)
    upkeep.repair_totals()
    assert values(engine) == {ACME: 5}


def test_totals_are_not_compared_again_at_once(
    engine: sa.Engine, store: SqlStore, upkeep: Upkeep, daily: Plan
) -> None:
    flush(store, daily, [a_row(5, now_s(engine), ACME)])
    assert upkeep.repair_totals() == 0
    with writing(engine) as db:
        db.execute(sa.delete(totals))
    assert upkeep.repair_totals() == 0
    assert Upkeep(engine, str).repair_totals() == 1


def test_a_released_lease_says_nothing_of_a_clock(upkeep: Upkeep, engine: sa.Engine) -> None:
    assert upkeep.hold()
    upkeep.release()
    with engine.connect() as db:
        (until_ms,) = db.execute(sa.select(leases.c.until_ms)).one()
    assert until_ms <= (now_s(engine) + 1) * 1000
