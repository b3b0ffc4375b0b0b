"""One transaction per flush: what it keeps, what it refuses, and that two of them see each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.judging.judge import JudgedSeries, changes, lock_key, totals_of
from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.judging.policies import Calendar, Quota
from analyzer.core.judging.windows import Window
from analyzer.core.model import CountRow, Lag, Partition, PartitionProgress, Position, Rejected
from analyzer.errors import PartitionLost, PlanChanged
from analyzer.store.database.schema import TOTAL_MAX, buckets, lock_changes, offsets, rejects
from analyzer.store.transaction.sql_store import SqlStore
from gatekeeper.model import Lock, LockKey, Set

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
OTHER = PART._replace(number=1)
PLAN = plan_of([], [], [Quota("daily", 10, Calendar("day"))])
DAY = Window(86_400, 172_800)


def a_row(value: int, *, meter: str = "requests", key: str = "api_key:acme", denied: int = 0) -> CountRow:
    return CountRow("caller", key, "", meter, 60, 86_400, value, denied)


def all_of(engine: sa.Engine, table: sa.Table) -> list[dict[str, object]]:
    with engine.connect() as db:
        return [dict(row._mapping) for row in db.execute(sa.select(table).order_by(*table.primary_key))]


def test_a_partition_begins_where_it_was_begun_first(store: SqlStore) -> None:
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


def test_an_idle_partition_keeps_what_is_known_of_its_place(store: SqlStore) -> None:
    store.begin(PART, 5, "digest")
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 5, 5)], {})
    assert store.positions([PART]) == {PART: Position(5, "digest")}


def test_what_is_known_of_one_place_is_not_said_of_the_next(store: SqlStore) -> None:
    """Kafka would be asked whether the log was cut off by what was true further in front."""
    store.begin(PART, 5, "3")
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 5, 9)], {})
    assert store.positions([PART]) == {PART: Position(9)}


@pytest.mark.parametrize("start", [0, 4, 6])
def test_an_offset_that_is_not_where_we_left_it_refuses_the_whole_flush(
    store: SqlStore, engine: sa.Engine, start: int
) -> None:
    store.begin(PART, 5)
    store.begin(OTHER, 0)
    with pytest.raises(PartitionLost, match=r"access-log\[0\]"), store.transaction() as tx:  # noqa: PT012 - one story
        tx.add_counts([a_row(1)], PLAN.meters)
        tx.move_offsets([PartitionProgress(OTHER, 0, 3), PartitionProgress(PART, start, 9)], {})
    assert store.positions([PART, OTHER]) == {PART: Position(5), OTHER: Position(0)}
    assert all_of(engine, buckets) == []


def test_a_flush_under_another_plan_is_refused(store: SqlStore) -> None:
    version = store.activate(PLAN)
    assert store.activate(PLAN) == version
    with store.transaction() as tx:
        assert abs(tx.agree_with(version) - datetime.now(UTC)) < timedelta(minutes=1)
    newer = store.activate(Plan())
    with pytest.raises(PlanChanged), store.transaction() as tx:
        tx.agree_with(version)
    assert store.active() == (newer, Plan())


def test_buckets_add_up_and_maxima_stay(store: SqlStore, engine: sa.Engine) -> None:
    meters = (REQUESTS, Meter("slowest", "duration", "max"))
    for value in (5, 3):
        with store.transaction() as tx:
            tx.add_counts([a_row(value, denied=1), a_row(value, meter="slowest")], meters)
    assert [(row["meter"], row["value"], row["denied"]) for row in all_of(engine, buckets)] == [
        ("requests", 8, 2),
        ("slowest", 5, 0),
    ]


def test_a_sum_stops_at_the_largest_number_a_column_takes(store: SqlStore, engine: sa.Engine) -> None:
    """PostgreSQL would refuse the flush for ever; SQLite would go on with a float."""
    acme, ann = (JudgedSeries("daily", key, "", DAY) for key in ("api_key:acme", "user:ann"))
    for value in (TOTAL_MAX - 1, 5):
        with store.transaction() as tx:
            # What was counted since the last flush may be beyond it all by itself.
            standings = tx.add_totals({acme: value, ann: 2**70})
            tx.add_counts([a_row(value), a_row(1, key=ann.key, denied=2**70)], PLAN.meters)
    assert standings == [(acme, TOTAL_MAX), (ann, TOTAL_MAX)]
    assert [(row["value"], row["denied"]) for row in all_of(engine, buckets)] == [
        (TOTAL_MAX, 0),
        (2, TOTAL_MAX),
    ]


def test_totals_come_back_with_what_others_added(store: SqlStore) -> None:
    acme, ann = (JudgedSeries("daily", key, "", DAY) for key in ("api_key:acme", "user:ann"))
    with store.transaction() as tx:
        assert tx.add_totals({acme: 4}) == [(acme, 4)]
    with store.transaction() as tx:
        assert tx.add_totals({acme: 3, ann: 1}) == [(acme, 7), (ann, 1)]
        assert tx.add_totals({}) == []
    with store.transaction() as tx:
        assert tx.add_totals({acme: 1, ann: 1}, {"daily": 8}) == [(acme, 8)]
    with store.transaction() as tx:
        assert tx.add_totals({acme: 1, ann: 1}, {"weekly": 8}) == [(acme, 9), (ann, 3)]


def test_rejected_records_are_kept_once(store: SqlStore, engine: sa.Engine) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    for _ in range(2):
        with store.transaction() as tx:
            tx.set_aside([Rejected(PART, 7, "bad-json", b"{\0"), Rejected(PART, 9, "tombstone", b"")], now)
    assert [(row["offset"], row["reason"], row["sample"]) for row in all_of(engine, rejects)] == [
        (7, "bad-json", b"{\0"),
        (9, "tombstone", b""),
    ]


def test_ten_thousand_rows_are_one_statement(store: SqlStore, engine: sa.Engine) -> None:
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with store.transaction() as tx:
        tx.add_counts([a_row(1, key=f"user:{n:05}") for n in range(10_000)], PLAN.meters)
    assert len([text for text in statements if text.startswith("INSERT")]) == 1
    assert len(all_of(engine, buckets)) == 10_000


def test_a_caller_with_any_text_for_a_name_is_kept_as_it_is(store: SqlStore, engine: sa.Engine) -> None:
    names = [
        "user:ü",
        "user:'; drop table buckets",
        'user:{"a",\\}',
        "user:\U0001f600",
        "user:NULL",
        "user:a,b",
    ]
    with store.transaction() as tx:
        tx.add_counts(sorted(a_row(1, key=name) for name in names), PLAN.meters)
    assert sorted(row["key"] for row in all_of(engine, buckets)) == sorted(names)


def test_a_lock_is_written_once_however_long_the_flood_lasts(store: SqlStore, engine: sa.Engine) -> None:
    version = store.activate(PLAN)
    with store.transaction() as tx:
        now = tx.agree_with(version)
    minute = int(now.timestamp()) // 60 * 60
    published = []
    for _ in range(4):
        with store.transaction() as tx:
            now = tx.agree_with(version)
            rows = [a_row(6)._replace(bucket_s=minute)]
            standings = tx.add_totals(totals_of(PLAN, rows))
            changed = changes(PLAN, standings, tx.locks([lock_key(s.series) for s in standings]), now)
            published.append(tx.publish(changed))
    assert published == [None, 1, None, None]
    assert [
        (row["version"], row["number"], row["op"], row["key"]) for row in all_of(engine, lock_changes)
    ] == [(1, 0, "set", "api_key:acme")]


def test_a_lock_comes_back_as_it_was_stored(store: SqlStore) -> None:
    began = datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=UTC)
    lock = Lock("caller", "user:ann", "daily", began, began + timedelta(hours=2), "/v1/{id}", detail="why")
    with store.transaction() as tx:
        tx.publish([Set(lock)])
    with store.transaction() as tx:
        assert tx.locks([lock.at, LockKey("caller", "user:bob", "", "daily")]) == {lock.at: lock}


def test_more_rows_than_one_statement_has_time_for_are_several(
    store: SqlStore, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage a flush may have 200,000 callers: five seconds' work for PostgreSQL, and a statement
    has two. Dropped and read again, it would be as large the next time."""
    monkeypatch.setattr("analyzer.store.transaction.sql_store.ROWS_MAX", 3)
    grown = {JudgedSeries("daily", f"user:{n}", "", DAY): n + 1 for n in range(7)}
    for times in (1, 2):
        with store.transaction() as tx:
            assert tx.add_totals(grown) == [(series, times * n) for series, n in grown.items()]
            tx.add_counts([a_row(n, key=series.key) for series, n in grown.items()], PLAN.meters)
    assert [row["value"] for row in all_of(engine, buckets)] == [2 * n for n in grown.values()]
