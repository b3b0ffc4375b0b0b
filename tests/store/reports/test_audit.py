"""The audit finds each kind of damage to the tables, and nothing in tables that are right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import sqlalchemy as sa

from analyzer.counting.gaps import SqlGaps, accept, recorded_gaps
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.errors import PartitionLost
from analyzer.kernel.model import CountRow, DrainedCounts, Gap, PartitionProgress
from analyzer.kernel.tables.schema import buckets, locks, offsets, totals
from analyzer.maintenance.audit import Audit, audit
from analyzer.plan.catalog import load
from analyzer.plan.meters import DAY_S, MINUTE_S, Meter
from analyzer.plan.plan import Plan, make_plan
from tests.faults.mutations import without_compare_and_set
from tests.store.flushing import ACME, ANN, PART, now_s, quota
from tests.support.stored_counts import tables_of
from tests.support.upkeep import Upkeep

BYTES, LARGEST = Meter("bytes", "bytes"), Meter("largest", "bytes", "max")
GROUPINGS = ["caller", "caller+resource", "everyone", "resource"]
PLAN = make_plan(GROUPINGS, [BYTES, LARGEST], [quota(10, name="daily"), quota(10, "day", name="by-day")])


# Columns of the meters, which have numbers in the order of their names: bytes 0, largest 1, requests 2.


def rows_of(key: str, requests: int, at_s: int) -> list[CountRow]:
    """Returns the counts of a number of requests of 3 bytes, half of them for each resource, one denied."""
    found: list[CountRow] = []
    minute_s = at_s // MINUTE_S * MINUTE_S
    for at, resource in enumerate(("/a", "/b", "")):
        amount = requests // 2 if at < 2 else requests % 2
        series = {
            "caller": (key, ""), "caller+resource": (key, resource), "everyone": ("", ""),
            "resource": (resource, ""),
        }  # fmt: skip
        for grouping, (one, other) in series.items():
            for meter, value, denied in (
                ("requests", amount, 1 - min(at, 1)),
                ("bytes", 3 * amount, 3 - 3 * min(at, 1)),
            ):
                found.append(CountRow(grouping, one, other, meter, MINUTE_S, minute_s, value, denied))
            if amount:
                found.append(CountRow(grouping, one, other, "largest", MINUTE_S, minute_s, 3, 0))
    return joined(found)


def joined(rows: list[CountRow]) -> list[CountRow]:
    """Returns one row for each series and meter."""
    found: dict[tuple[object, ...], CountRow] = {}
    for row in rows:
        at = row[:6]
        before = found.get(at)
        if before is None:
            found[at] = row
        elif row.meter == "largest":
            found[at] = before._replace(value=max(before.value, row.value))
        else:
            found[at] = before._replace(value=before.value + row.value, denied=before.denied + row.denied)
    return sorted(found.values())


def count(store: SqlStore, key: str, requests: int, at_s: int) -> None:
    """Counts requests of a caller, one denied request included, in the next offsets of PART."""
    start = store.begin(PART, 0).next
    version, by_plan = store.active_plan()
    progress = PartitionProgress(PART, start, start + requests + 1, requests + 1, requests + 1)
    with store.transaction() as tx:
        tx.move_offsets([progress], {})
        now = tx.check_plan(by_plan, version)
        tx.apply(
            by_plan, version, DrainedCounts([progress], tables_of(rows_of(key, requests, at_s)), []), now
        )


@pytest.fixture
def counted(store: SqlStore, engine: sa.Engine) -> Plan:
    """Counts of two callers, one of them locked."""
    store.activate(PLAN)
    at_s = now_s(engine)
    count(store, ACME, 15, at_s)
    count(store, ANN, 4, at_s)
    count(store, ANN, 2, at_s - 3 * DAY_S)
    found = audit(engine)
    assert found.equal, found
    assert found.totals_compared == 2
    return PLAN


def number(engine: sa.Engine, grouping: str) -> int:
    with engine.connect() as db:
        return load(db).groupings[grouping]


Damage = Callable[[sa.Connection, Callable[[str], int]], None]


def bucket_of(of: Callable[[str], int], grouping: str, key: str) -> sa.ColumnElement[bool]:
    return sa.and_(buckets.c.grouping == of(grouping), buckets.c.key == key)


def one_more_in_a_bucket(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = bucket_of(of, "caller", ACME)
    db.execute(sa.update(buckets).where(row).values(value_2=buckets.c.value_2 + 1))


def a_row_deleted(db: sa.Connection, of: Callable[[str], int]) -> None:
    db.execute(sa.delete(buckets).where(bucket_of(of, "caller", ACME)))


def counts_of_another_caller(db: sa.Connection, of: Callable[[str], int]) -> None:
    db.execute(sa.update(buckets).where(bucket_of(of, "caller", ACME)).values(key="user:zoe"))


def counts_of_another_day(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = bucket_of(of, "caller", ACME)
    db.execute(sa.update(buckets).where(row).values(bucket_s=buckets.c.bucket_s - DAY_S))


def counts_as_denied(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = bucket_of(of, "caller", ACME)
    moved = {"value_2": buckets.c.value_2 - 2, "denied_2": buckets.c.denied_2 + 2}
    db.execute(sa.update(buckets).where(row).values(moved))


def another_sum(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = bucket_of(of, "caller", ACME)
    values = {f"value_{place}": buckets.c[f"value_{place}"] + 1 for place in (0, 1)}
    db.execute(sa.update(buckets).where(row).values(values))


def another_resource(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = sa.and_(bucket_of(of, "caller+resource", ACME), buckets.c.resource == "/a")
    db.execute(sa.update(buckets).where(row).values(resource="/c"))


def the_empty_resource_deleted(db: sa.Connection, of: Callable[[str], int]) -> None:
    row = sa.and_(bucket_of(of, "caller+resource", ACME), buckets.c.resource == "")
    db.execute(sa.delete(buckets).where(row))


def everyone_changed(db: sa.Connection, of: Callable[[str], int]) -> None:
    db.execute(sa.update(buckets).where(bucket_of(of, "everyone", "")).values(value_2=0))


def a_total_changed(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.update(totals).where(totals.c.key == ANN).values(used=totals.c.used + 1))


def a_total_deleted(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.delete(totals).where(totals.c.key == ANN))


def a_lock_deleted(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.delete(locks).where(locks.c.policy == "daily"))


def a_lock_moved(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.update(locks).where(locks.c.policy == "daily").values(key=ANN))


def a_lock_of_no_policy(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.update(locks).where(locks.c.policy == "daily").values(policy="weekly"))


def the_offset_set_back(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.update(offsets).values(next=offsets.c.next - 1))


def the_ledger_raised(db: sa.Connection, _of: Callable[[str], int]) -> None:
    db.execute(sa.update(offsets).values(seen=offsets.c.seen + 1, dead=offsets.c.dead + 1))


DAMAGES: list[Damage] = [
    one_more_in_a_bucket, a_row_deleted, counts_of_another_caller, counts_of_another_day, counts_as_denied,
    another_sum, another_resource, the_empty_resource_deleted, everyone_changed, a_total_changed,
    a_total_deleted, a_lock_deleted, a_lock_moved, a_lock_of_no_policy, the_offset_set_back,
    the_ledger_raised,
]  # fmt: skip


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_audit_finds(engine: sa.Engine, damage: Damage) -> None:
    with writing(engine) as db:
        damage(db, lambda grouping: NUMBERS[grouping])
    found = audit(engine, every_day=True)
    assert not found.equal, found


NUMBERS = {name: at for at, name in enumerate(sorted(GROUPINGS), start=1)}


@pytest.mark.usefixtures("counted")
def test_the_groupings_have_the_numbers_that_the_damages_use(engine: sa.Engine) -> None:
    assert {name: number(engine, name) for name in GROUPINGS} == NUMBERS


@pytest.mark.usefixtures("counted")
def test_records_that_are_counted_twice_without_a_compare_and_set_are_found(
    store: SqlStore, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is written twice, the ledger too: only the offsets show that it was too much."""
    progress = PartitionProgress(PART, 24, 34, 10, 10)

    def flush() -> None:
        version, by_plan = store.active_plan()
        rows = rows_of(ANN, 9, now_s(engine))
        with suppress(PartitionLost), store.transaction() as tx:
            tx.move_offsets([progress], {})
            now = tx.check_plan(by_plan, version)
            tx.apply(by_plan, version, DrainedCounts([progress], tables_of(rows), []), now)

    assert store.begin(PART, 0).next == 24
    flush()
    flush()
    assert audit(engine).equal
    without_compare_and_set(monkeypatch)
    flush()
    found = audit(engine)
    assert not found.equal
    assert [ledger.holes for ledger in found.partitions] == [-10]
    assert [found.differing, found.groupings, found.totals, found.locks] == [[], [], [], []]


def only(found: Audit, name: str) -> bool:
    return all(bool(getattr(found, other)) == (other == name) for other in ("groupings", "totals", "locks"))


@pytest.mark.usefixtures("counted")
def test_the_audit_names_the_series_that_differ(engine: sa.Engine) -> None:
    with writing(engine) as db:
        a_lock_deleted(db, lambda _: 0)
    found = audit(engine)
    assert only(found, "locks")
    assert [(one.policy, one.key, one.used, one.is_locked) for one in found.locks] == [
        ("daily", ACME, 15, False)
    ]
    with writing(engine) as db:
        another_sum(db, lambda grouping: NUMBERS[grouping])
    pairs = {(one.coarse, one.fine, one.meter) for one in audit(engine).groupings}
    assert ("caller", "caller+resource", "bytes") in pairs
    assert ("caller", "caller+resource", "largest") in pairs


def test_offsets_that_an_operator_skipped_hold_no_records(store: SqlStore, engine: sa.Engine) -> None:
    store.activate(PLAN)
    at_s = now_s(engine)
    assert store.begin(PART, 100).next == 100
    count(store, ANN, 4, at_s)
    SqlGaps(engine, "here").settle({PART: Gap("corrupt", 105, 115, "")})
    (gap,) = recorded_gaps(engine)
    accept(engine, gap, 115, "ann", "test")
    count(store, ANN, 4, at_s)
    found = audit(engine)
    assert found.equal
    assert [(ledger.begin, ledger.next, ledger.holes) for ledger in found.partitions] == [(100, 120, 0)]
    with writing(engine) as db:
        the_ledger_raised(db, lambda _: 0)
    assert not audit(engine).equal


def test_offsets_that_the_log_gave_to_other_records_are_counted_again(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(PLAN)
    at_s = now_s(engine)
    count(store, ANN, 9, at_s)
    SqlGaps(engine, "here").settle({PART: Gap("past-end", 4, 10, "")})
    (gap,) = recorded_gaps(engine)
    accept(engine, gap, 4, "ann", "test")
    count(store, ANN, 9, at_s)
    found = audit(engine)
    assert found.equal, found
    assert [(ledger.next, ledger.seen, ledger.holes) for ledger in found.partitions] == [(14, 20, 0)]


def test_a_grouping_that_came_later_is_compared_from_the_day_after_next(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.activate(make_plan(["caller"], [BYTES, LARGEST], []))
    at_s = now_s(engine)
    with writing(engine) as db:
        db.execute(sa.text("update plans set at_ms = at_ms - 10 * 86400000"))
    rows = [row for row in rows_of(ANN, 4, at_s) if row.grouping == "caller"]
    version, by_plan = store.active_plan()
    store.begin(PART, 0)
    progress = PartitionProgress(PART, 0, 5, 5, 5)
    with store.transaction() as tx:
        tx.move_offsets([progress], {})
        now = tx.check_plan(by_plan, version)
        tx.apply(by_plan, version, DrainedCounts([progress], tables_of(rows), []), now)
    store.activate(PLAN)
    assert audit(engine).equal
    with writing(engine) as db:
        db.execute(sa.text("update plans set at_ms = at_ms - 10 * 86400000"))
    assert {one.fine for one in audit(engine).groupings} >= {"caller+resource"}


@pytest.mark.usefixtures("counted")
def test_days_that_were_joined_and_folded_still_agree(engine: sa.Engine, upkeep: Upkeep) -> None:
    while upkeep.roll_up(DAY_S, 400 * DAY_S):
        pass
    for _ in range(3):
        found = audit(engine, every_day=True)
        assert found.equal, found
        upkeep.fold(5, DAY_S)


@pytest.mark.usefixtures("counted")
def test_totals_whose_minutes_were_joined_are_not_compared(engine: sa.Engine, upkeep: Upkeep) -> None:
    while upkeep.roll_up(-DAY_S, 400 * DAY_S):
        pass
    found = audit(engine, every_day=True)
    assert found.equal, found
    assert found.totals_compared == 0
    assert upkeep.repair_totals() == 0
