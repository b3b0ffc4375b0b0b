"""Usage and audit, compared with sums over single rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.counting.usage import UsageQuery, UsageRow, is_counted, usage_rows
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.sql.plans import activate
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import buckets, day_counts, locks, offsets
from analyzer.maintenance.audit import audit
from analyzer.plan.meters import REQUESTS, Meter
from analyzer.plan.plan import make_plan
from tests.support.depth import deeper
from tests.support.stored_counts import put_counts

SLOWEST = Meter("slowest", "took", "max")
MAX = 2**63 - 1


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    with engine.begin() as db:
        plan = make_plan(["caller+resource"], [SLOWEST], [])
        activate(db, plan, lambda: "mark")
    yield engine
    engine.dispose()


def put(engine: sa.Engine, *rows: CountRow) -> None:
    with engine.begin() as db:
        for table in (buckets, day_counts):
            db.execute(sa.delete(table))
        put_counts(db, rows, {SLOWEST.name: "max"})


def minute(key: str, bucket_s: int, value: int, denied: int = 0) -> CountRow:
    return CountRow("caller", key, "", "requests", 60, bucket_s, value, denied)


def test_minutes_are_joined_to_the_requested_width(engine: sa.Engine) -> None:
    put(engine, minute("a", 3540, 1), minute("a", 3600, 2, 5), minute("a", 7140, 4), minute("b", 3600, 8))
    assert list(usage_rows(engine, UsageQuery("caller", 3600))) == [
        UsageRow("a", "", "requests", 0, 3600, 1, 0),
        UsageRow("a", "", "requests", 3600, 3600, 6, 5),
        UsageRow("b", "", "requests", 3600, 3600, 8, 0),
    ]
    assert len(list(usage_rows(engine, UsageQuery("caller", 60)))) == 4


def test_rolled_up_rows_keep_their_width(engine: sa.Engine) -> None:
    put(
        engine,
        CountRow("caller", "a", "", "requests", 86_400, 0, 10, 1),
        CountRow("caller", "a", "", "requests", 900, 86_400, 20, 2),
        minute("a", 86_400, 40, 3),
    )
    assert [row[3:] for row in usage_rows(engine, UsageQuery("caller", 3600))] == [
        (0, 86_400, 10, 1),
        (86_400, 3600, 60, 5),
    ]
    assert [row[3:] for row in usage_rows(engine, UsageQuery("caller", 60))] == [
        (0, 86_400, 10, 1),
        (86_400, 60, 40, 3),
        (86_400, 900, 20, 2),
    ]


def test_a_maximum_is_joined_by_the_largest(engine: sa.Engine) -> None:
    large = MAX - 1
    put(
        engine,
        CountRow("caller", "a", "", "slowest", 60, 0, 3, 9),
        CountRow("caller", "a", "", "slowest", 60, 60, large, 4),
    )
    assert [row[3:] for row in usage_rows(engine, UsageQuery("caller", 3600))] == [(0, 3600, large, 9)]


def test_a_sum_beyond_64_bits_is_exact(engine: sa.Engine) -> None:
    put(engine, minute("a", 0, MAX), minute("a", 60, MAX), minute("a", 120, 5, MAX))
    assert [row[5:] for row in usage_rows(engine, UsageQuery("caller", 3600))] == [(2 * MAX + 5, MAX)]


def test_filters_are_half_open_and_exact(engine: sa.Engine) -> None:
    put(
        engine,
        *(minute(key, bucket_s, 1) for key in ("a", "b") for bucket_s in (-60, 0, 60, 120)),
        CountRow("caller", "a", "", "slowest", 60, 0, 1, 0),
        CountRow("caller+resource", "a", "/x", "requests", 60, 0, 1, 0),
    )

    def found(**filters: object) -> list[tuple[str, str, int]]:
        query = UsageQuery("caller", 60)._replace(**filters)
        return [(row.key, row.meter, row.bucket_s) for row in usage_rows(engine, query)]

    assert found(from_s=0, until_s=120, key="a", meter="requests") == [
        ("a", "requests", 0),
        ("a", "requests", 60),
    ]
    assert found(until_s=0) == [("a", "requests", -60), ("b", "requests", -60)]
    assert found(meter="slowest") == [("a", "slowest", 0)]
    assert [row.resource for row in usage_rows(engine, UsageQuery("caller+resource", 60))] == ["/x"]


ROWS = st.lists(
    st.builds(
        CountRow,
        st.sampled_from(["caller", "caller+resource"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["", "/x"]),
        st.sampled_from([REQUESTS.name, SLOWEST.name, "of-no-plan"]),
        st.sampled_from([60, 900, 86_400]),
        st.integers(-200, 200).map(lambda n: n * 60),
        st.integers(0, MAX),
        st.integers(0, 5),
    ).map(lambda row: row._replace(bucket_s=row.bucket_s // row.width_s * row.width_s)),
    max_size=12,
    unique_by=lambda row: row[:6],
)


@settings(max_examples=deeper(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, width_s=st.sampled_from([60, 3600, 86_400]), edges=st.tuples(*[st.integers(-200, 200)] * 2))
def test_usage_equals_a_sum_row_by_row(
    engine: sa.Engine, rows: list[CountRow], width_s: int, edges: tuple[int, int]
) -> None:
    from_s, until_s = (edge * 60 for edge in edges)
    put(engine, *rows)
    joined: dict[tuple[object, ...], list[CountRow]] = defaultdict(list)
    for row in rows:
        if row.grouping == "caller" and from_s <= row.bucket_s < until_s:
            shown_s = row.bucket_s if row.width_s > width_s else row.bucket_s // width_s * width_s
            joined[shown_s, row.key, row.resource, max(row.width_s, width_s), row.meter].append(row)
    expected = []
    for (shown_s, key, resource, stretch_s, meter), of_bucket in sorted(joined.items()):
        join = max if meter == "slowest" else sum
        if not any(row.value or row.denied for row in of_bucket):
            continue
        expected.append(
            (
                key,
                resource,
                meter,
                shown_s,
                stretch_s,
                join(row.value for row in of_bucket),
                join(row.denied for row in of_bucket),
            )
        )
    assert list(usage_rows(engine, UsageQuery("caller", width_s, from_s, until_s))) == expected


def test_many_rows_are_streamed_from_one_snapshot(engine: sa.Engine) -> None:
    put(engine, *(minute(f"user:{n:05}", 0, 1) for n in range(5_000)))
    rows = usage_rows(engine, UsageQuery("caller", 60))
    assert [row.key for row in itertools.islice(rows, 2)] == ["user:00000", "user:00001"]
    put(engine)  # a change while an operator pages through the rows
    assert sum(1 for _ in rows) == 4_998


@pytest.mark.parametrize("database", ["postgresql"])  # SQLite has no such time-outs
def test_a_slow_report_is_not_ended_by_time_outs(engine: sa.Engine) -> None:
    """The time-outs that keep a stopped analyzer from blocking others do not apply to reports."""
    seen = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    list(usage_rows(engine, UsageQuery("caller", 60)))
    assert "set local idle_in_transaction_session_timeout = 0" in seen
    assert "set local statement_timeout = 0" in seen


def test_a_grouping_is_counted_if_the_plan_or_the_buckets_have_it(engine: sa.Engine) -> None:
    assert is_counted(engine, "caller")
    assert is_counted(engine, "caller+resource")
    assert not is_counted(engine, "tenant")
    put(engine, CountRow("tenant", "a", "", "requests", 60, 0, 1, 0))
    assert is_counted(engine, "tenant")


# Audit


def ledger(engine: sa.Engine, partition: int, **counts: int) -> None:
    with engine.begin() as db:
        db.execute(
            sa.insert(offsets).values(
                cluster="c",
                topic_id="t",
                partition=partition,
                source="s",
                topic="access-log",
                next=99,
                **counts,
            )
        )


def test_the_audit_agrees_when_every_record_is_in_one_bucket(engine: sa.Engine) -> None:
    ledger(engine, 0, seen=10, counted=6, duplicate=1, dead=2, late=1)
    ledger(engine, 1, seen=4, counted=4)
    put(
        engine,
        minute("a", 0, 5, 2),
        CountRow("caller", "a", "", "requests", 86_400, 0, 3, 0),
        CountRow("caller+resource", "a", "/x", "requests", 60, 0, 5, 2),
        CountRow("caller+resource", "a", "/x", "requests", 86_400, 0, 3, 0),
        CountRow("caller", "a", "", "slowest", 60, 0, 100, 0),
        CountRow("caller+resource", "a", "/x", "slowest", 60, 0, 100, 0),
    )
    found = audit(engine)
    assert (found.buckets, found.counted, found.equal) == (10, 10, True)
    assert [ledger.partition for ledger in found.partitions] == [0, 1]


@pytest.mark.parametrize(("seen", "buckets_hold"), [(11, 6), (10, 7), (10, 5)])
def test_the_audit_finds_missing_and_surplus_counts(engine: sa.Engine, seen: int, buckets_hold: int) -> None:
    ledger(engine, 0, seen=seen, counted=6, dead=4)
    put(engine, minute("a", 0, buckets_hold))
    found = audit(engine)
    assert not found.equal
    assert found.partitions[0].equal == (seen == 10)


def test_an_empty_database_passes_the_audit(engine: sa.Engine) -> None:
    assert audit(engine).equal
    assert audit(engine).partitions == []


def test_locks_in_force_are_listed_and_ended_ones_are_not(engine: sa.Engine) -> None:
    with engine.begin() as db:
        for key, policy, until_ms in [
            ("a", "daily", 4_102_444_800_000),
            ("b", "daily", 4_102_444_900_000),
            ("a", "hourly", 4_102_444_700_000),
            ("c", "daily", 1),
        ]:
            db.execute(
                sa.insert(locks).values(
                    scope="caller",
                    key=key,
                    resource="",
                    policy=policy,
                    status=429,
                    began_ms=0,
                    until_ms=until_ms,
                )
            )
    assert [(lock.key, lock.policy) for lock in locks_in_force(engine)] == [
        ("b", "daily"),
        ("a", "daily"),
        ("a", "hourly"),
    ]
    assert [lock.policy for lock in locks_in_force(engine, key="a", policy="hourly")] == ["hourly"]
