"""One transaction per flush: offsets, totals, buckets, rejected records and locks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlFlush, SqlStore
from analyzer.judging.caller_limits import EMPTY, Directory, Limits, Override, Subject
from analyzer.judging.locks import lock_feed
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import totals
from analyzer.judging.totals import Growth
from analyzer.kernel.errors import PartitionLost, PlanChanged
from analyzer.kernel.model import (
    CountRow,
    DrainedCounts,
    Lag,
    Partition,
    PartitionProgress,
    Position,
    Rejected,
)
from analyzer.kernel.tables import schema
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets, lock_changes, offsets, rejects
from analyzer.plan.catalog import register
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.sums import sum_text
from analyzer.plan.windows import Calendar, Window
from gatekeeper.model import Lock, LockKey, Set
from tests.support.stored_counts import put_counts, stored_counts, stored_totals, tables_of

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
OTHER = PART._replace(number=1)
PLAN = make_plan([], [], [Quota("daily", 10, Calendar("day"))])
DAY = Window(86_400, 172_800)


def a_row(value: int, *, meter: str = "requests", key: str = "api_key:acme", denied: int = 0) -> CountRow:
    return CountRow("caller", key, "", meter, 60, 86_400, value, denied)


def all_of(engine: sa.Engine, table: sa.Table) -> list[dict[str, object]]:
    with engine.connect() as db:
        return [dict(row._mapping) for row in db.execute(sa.select(table).order_by(*table.primary_key))]


def test_the_first_begin_of_a_partition_decides_where_it_begins(store: SqlStore) -> None:
    assert store.positions([PART]) == {}
    assert store.begin(PART, 100, "digest") == Position(100, "digest")
    assert store.begin(PART, 200) == Position(100, "digest")
    assert store.positions([PART, OTHER]) == {PART: Position(100, "digest")}


def test_the_offset_moves_with_its_ledger(store: SqlStore, engine: sa.Engine) -> None:
    store.begin(PART, 0)
    for start, stop in ((0, 7), (7, 9)):
        with store.transaction() as tx:
            moved = PartitionProgress(PART, start, stop, seen=2, counted=1, dead=1, resume_token=f"at {stop}")
            tx.move_offsets([moved], {PART: Lag(3, 0.25)})
    row = all_of(engine, offsets)[0]
    assert (row["next"], row["seen"], row["counted"], row["dead"], row["resume_token"]) == (
        9,
        4,
        2,
        2,
        "at 9",
    )
    assert (row["behind_ms"], row["behind_records"], row["owner"]) == (250, 3, "here")
    now = datetime.now(UTC)
    assert (
        now - timedelta(minutes=1)
        < datetime.fromtimestamp(row["beat_ms"] / 1000, UTC)
        < now + timedelta(minutes=1)
    )


def test_a_heartbeat_keeps_the_resume_token(store: SqlStore) -> None:
    store.begin(PART, 5, "digest")
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 5, 5)], {})
    assert store.positions([PART]) == {PART: Position(5, "digest")}


def test_an_offset_that_moves_without_a_resume_token_loses_the_old_one(store: SqlStore) -> None:
    """A leader epoch of an earlier offset would make a later check for truncation wrong."""
    store.begin(PART, 5, "3")
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 5, 9)], {})
    assert store.positions([PART]) == {PART: Position(9)}


@pytest.mark.parametrize("start", [0, 4, 6])
def test_an_offset_that_was_moved_by_another_analyzer_refuses_the_whole_flush(
    store: SqlStore, engine: sa.Engine, start: int
) -> None:
    store.begin(PART, 5)
    store.begin(OTHER, 0)
    with pytest.raises(PartitionLost, match=r"access-log\[0\]"), store.transaction() as tx:  # noqa: PT012 - one story
        put_counts(tx._db, [a_row(1)])
        tx.move_offsets([PartitionProgress(OTHER, 0, 3), PartitionProgress(PART, start, 9)], {})
    assert store.positions([PART, OTHER]) == {PART: Position(5), OTHER: Position(0)}
    assert all_of(engine, buckets) == []


def test_a_flush_under_another_plan_is_refused(store: SqlStore) -> None:
    version = store.activate(PLAN)
    assert store.activate(PLAN) == version
    with store.transaction() as tx:
        assert abs(tx.check_plan(PLAN, version) - datetime.now(UTC)) < timedelta(minutes=1)
    newer = store.activate(Plan())
    with pytest.raises(PlanChanged), store.transaction() as tx:
        tx.check_plan(PLAN, version)
    assert store.active_plan() == (newer, Plan())


def test_buckets_add_up_and_maxima_stay(store: SqlStore, engine: sa.Engine) -> None:
    for value in (5, 3):
        with store.transaction() as tx:
            put_counts(tx._db, [a_row(value, denied=1), a_row(value, meter="slowest")], {"slowest": "max"})
    assert [(row.meter, row.value, row.denied) for row in stored(engine)] == [
        ("requests", 8, 2),
        ("slowest", 5, 0),
    ]
    assert len(all_of(engine, buckets)) == 1, "all meters of a series share a row"


def growth_in_day(grown: dict[str, int]) -> Growth:
    keys = sorted(grown)
    return Growth([DAY.start_s] * len(keys), keys, [""] * len(keys), [grown[key] for key in keys])


def stored(engine: sa.Engine) -> list[CountRow]:
    with engine.connect() as db:
        return stored_counts(db)


def totals_of(
    tx: SqlFlush,
    grown: dict[str, int],
    plan: Plan = PLAN,
    version: int = 1,
    directory: Directory = EMPTY,
) -> dict[str, int]:
    """Adds to the totals of callers in DAY; returns the ones that must be judged."""
    known = register(tx._db, plan, plan_sums(plan).all_sums)
    (sum_,) = plan_sums(plan).policies_by_sum
    growth = {sum_: growth_in_day(grown)} if grown else {}
    limits = Limits(plan, directory)
    due = totals.add_totals(tx._db, limits, version, growth, known, DAY.start_s)
    totals.set_next(tx._db, limits, version, due, DAY.start_s, known)
    return {stored.standing.total.key: stored.standing.used for stored in due}


def test_a_sum_stops_at_the_largest_number_a_column_takes(store: SqlStore, engine: sa.Engine) -> None:
    """PostgreSQL would refuse every further flush; SQLite would continue with a float."""
    acme, ann = "api_key:acme", "user:ann"
    for value in (TOTAL_MAX - 1, 5):
        with store.transaction() as tx:
            # The increment of a single flush may exceed it.
            totals_of(tx, {acme: value, ann: 2**70})
            put_counts(tx._db, [a_row(value), a_row(1, key=ann, denied=2**70)])
    assert [row["used"] for row in all_of(engine, schema.totals)] == [TOTAL_MAX, TOTAL_MAX]
    assert [(row.value, row.denied) for row in stored(engine)] == [
        (TOTAL_MAX, 0),
        (2, TOTAL_MAX),
    ]


def test_a_total_is_returned_at_its_next_threshold_and_not_again(store: SqlStore) -> None:
    """A flood far above its limit costs no judgement."""
    plan = make_plan([], [], [*PLAN.policies, Quota("double", 20, Calendar("day"))])
    acme, ann = "api_key:acme", "user:ann"
    steps: list[tuple[dict[str, int], dict[str, int]]] = [
        ({acme: 4}, {}),
        ({acme: 3, ann: 9}, {}),
        ({}, {}),
        ({acme: 2, ann: 1}, {ann: 10}),
        ({acme: 1, ann: 9}, {acme: 10}),
        ({acme: 9, ann: 1}, {ann: 20}),
        ({acme: 1, ann: 1}, {acme: 20}),
        ({acme: 1000, ann: 1000}, {}),
    ]
    for grown, due in steps:
        with store.transaction() as tx:
            assert totals_of(tx, grown, plan) == due, grown


def test_an_address_in_an_exempt_range_is_judged_once_and_then_let_alone(store: SqlStore) -> None:
    """Otherwise each flush of a flood would cost a judgement."""
    probe, crawler, directory = "address:10.0.0.7", "address:11.0.0.7", Directory()
    directory.set_override("probes", Subject("address", "10.0.0.0/8"), Override("exempt"))
    for due in ({}, {probe: 14, crawler: 14}, {}, {}):
        with store.transaction() as tx:
            assert totals_of(tx, {probe: 7, crawler: 7}, directory=directory) == due


def test_every_total_is_returned_once_under_another_plan(store: SqlStore) -> None:
    """The change of plan itself rewrites no row."""
    with store.transaction() as tx:
        assert totals_of(tx, {"user:ann": 12}) == {"user:ann": 12}
    for version in (1, 2, 3):
        with store.transaction() as tx:
            due = totals_of(tx, {"user:ann": 1}, version=version)
        assert due == ({} if version == 1 else {"user:ann": 11 + version + 1})
        with store.transaction() as tx:
            assert totals_of(tx, {"user:ann": 0}, version=version) == {}


def test_a_window_that_has_not_begun_is_judged_by_each_flush_that_adds_to_it(store: SqlStore) -> None:
    (sum_,) = plan_sums(PLAN).policies_by_sum
    for now_s, due in ((DAY.start_s - 1, 1), (DAY.start_s - 1, 1), (DAY.start_s, 1), (DAY.start_s + 1, 0)):
        with store.transaction() as tx:
            known = register(tx._db, PLAN, plan_sums(PLAN).all_sums)
            growth = {sum_: growth_in_day({"user:ann": 12})}
            found = totals.add_totals(tx._db, Limits(PLAN), 1, growth, known, now_s)
            totals.set_next(tx._db, Limits(PLAN), 1, found, now_s, known)
        assert len(found) == due


def test_each_sum_has_separate_totals(store: SqlStore, engine: sa.Engine) -> None:
    """By grouping, meter and period."""
    policies = [
        *(Quota("day", 5, Calendar("day")), Quota("month", 5, Calendar("month"))),
        *(
            Quota("berlin", 5, Calendar("day", "Europe/Berlin")),
            Quota("bytes", 5, Calendar("day"), meter="bytes"),
        ),
        Quota("export", 5, Calendar("day"), per="caller+resource"),
    ]
    plan = make_plan([], [Meter("bytes", "bytes")], policies)
    growth = {
        sum_: growth_in_day({"user:ann": n}) for n, sum_ in enumerate(plan_sums(plan).policies_by_sum, 1)
    }
    with store.transaction() as tx:
        totals.add_totals(
            tx._db, Limits(plan), 1, growth, register(tx._db, plan, plan_sums(plan).all_sums), DAY.start_s
        )
        found = {name: used for (name, *_), used in stored_totals(tx._db).items()}
    assert found == {sum_text(sum_): n for n, sum_ in enumerate(plan_sums(plan).policies_by_sum, 1)}
    assert len(growth) == 5


def test_rejected_records_are_kept_once(store: SqlStore, engine: sa.Engine) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    for _ in range(2):
        with store.transaction() as tx:
            rejected = [Rejected(PART, 7, "bad-json", b"{\0"), Rejected(PART, 9, "tombstone", b"")]
            tx.apply(Plan(), 1, DrainedCounts([], [], rejected), now)
    assert [(row["offset"], row["reason"], row["sample"]) for row in all_of(engine, rejects)] == [
        (7, "bad-json", b"{\0"),
        (9, "tombstone", b""),
    ]


def test_ten_thousand_rows_are_one_statement(store: SqlStore, engine: sa.Engine) -> None:
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with store.transaction() as tx:
        put_counts(tx._db, [a_row(1, key=f"user:{n:05}") for n in range(10_000)])
    assert len([text for text in statements if text.startswith("INSERT INTO buckets")]) == 1
    assert len(all_of(engine, buckets)) == 10_000


def test_names_are_stored_unchanged(store: SqlStore, engine: sa.Engine) -> None:
    names = [
        "user:ü",
        "user:'; drop table buckets",
        'user:{"a",\\}',
        "user:\U0001f600",
        "user:NULL",
        "user:a,b",
    ]
    with store.transaction() as tx:
        put_counts(tx._db, [a_row(1, key=name) for name in names])
    assert sorted(row["key"] for row in all_of(engine, buckets)) == sorted(names)


def test_a_lock_is_published_once_in_a_long_flood(store: SqlStore, engine: sa.Engine) -> None:
    version = store.activate(PLAN)
    with store.transaction() as tx:
        now = tx.check_plan(PLAN, version)
    minute = int(now.timestamp()) // 60 * 60
    published = []
    for _ in range(4):
        with store.transaction() as tx:
            now = tx.check_plan(PLAN, version)
            rows = [a_row(6)._replace(bucket_s=minute)]
            counted = DrainedCounts([], tables_of(rows), [])
            published.append(len(tx.apply(PLAN, version, counted, now).changes))
    assert published == [0, 1, 0, 0]
    assert [
        (row["version"], row["number"], row["op"], row["key"]) for row in all_of(engine, lock_changes)
    ] == [(1, 0, "set", "api_key:acme")]


def test_a_lock_is_read_as_it_was_stored(store: SqlStore) -> None:
    began = datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=UTC)
    lock = Lock("caller", "user:ann", "daily", began, began + timedelta(hours=2), "/v1/{id}", detail="why")
    with store.transaction() as tx:
        lock_feed.publish(tx._db, [Set(lock)], "mark")
    with store.transaction() as tx:
        keys = [lock.at, LockKey("caller", "user:bob", "", "daily")]
        assert lock_feed.locked(tx._db, keys) == {lock.at: lock}


def test_many_rows_are_split_over_several_statements(
    store: SqlStore, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage a flush may have 200,000 callers, which take PostgreSQL five seconds; the time-out of a
    statement is two. Dropped and read again, the flush would be as large the next time."""
    monkeypatch.setattr("analyzer.kernel.database.row_parameters.ROWS_MAX", 3)
    grown = {f"user:{n}": n + 1 for n in range(7)}
    for times in (1, 2):
        with store.transaction() as tx:
            due = totals_of(tx, grown, version=times)
            put_counts(tx._db, [a_row(n, key=key) for key, n in grown.items()])
    assert due == {key: 2 * n for key, n in grown.items()}, "each total has the version of another plan"
    assert [row["used"] for row in all_of(engine, schema.totals)] == [2 * n for n in grown.values()]
    assert [row["value_0"] for row in all_of(engine, buckets)] == [2 * n for n in grown.values()]
