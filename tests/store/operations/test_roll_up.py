"""The roll-up: minutes become quarters of an hour, later days; each count is in exactly one row."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets
from analyzer.maintenance.roll_up import widen
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S, REQUESTS, Meter, joins_by_meter
from tests.store.flushing import ACME, ANN, now_s
from tests.support.depth import deeper
from tests.support.small_steps import small_steps
from tests.support.stored_counts import put_counts, stored_counts
from tests.support.upkeep import Upkeep

SLOWEST = Meter("slowest", "duration", "max")
METERS = (REQUESTS, SLOWEST)
JOINS_OF = joins_by_meter(METERS)
KEPT_S = 2 * DAY_S, 40 * DAY_S
NewEngine = Callable[[], sa.Engine]


def a_row(
    bucket_s: int, value: int = 1, key: str = ACME, meter: str = "requests", denied: int = 0
) -> CountRow:
    return CountRow("caller", key, "", meter, MINUTE_S, bucket_s, value, denied)


def add(store: SqlStore, *rows: CountRow) -> None:
    with store.transaction() as tx:
        put_counts(tx._db, rows, JOINS_OF)


def roll_up_whole(upkeep: Upkeep) -> int:
    """Rolls up until nothing is left; returns the number of calls."""
    calls = 0
    while upkeep.roll_up(*KEPT_S):
        calls += 1
    return calls


def stored(engine: sa.Engine) -> list[CountRow]:
    with engine.connect() as db:
        return stored_counts(db)


def sums(rows: list[CountRow]) -> Counter[tuple[str, str, str]]:
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        counted[row.key, row.meter, "value"] += row.value
        counted[row.key, row.meter, "denied"] += row.denied
    return +counted


@pytest.fixture
def today_s(engine: sa.Engine) -> int:
    """The start of the current day in UTC."""
    return now_s(engine) // DAY_S * DAY_S


def test_minutes_become_quarters_after_two_days_and_quarters_days_after_forty(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    now = today_s + (now_s(engine) - today_s) // QUARTER_S * QUARTER_S
    just_kept, just_old = now - 2 * DAY_S, now - 2 * DAY_S - MINUTE_S
    month_old, older = today_s - 40 * DAY_S, today_s - 40 * DAY_S - MINUTE_S
    add(store, *(a_row(at_s) for at_s in (now, just_kept, just_old, month_old, older)))
    roll_up_whole(upkeep)
    assert {(row.width_s, row.bucket_s) for row in stored(engine)} == {
        (MINUTE_S, now),
        (MINUTE_S, just_kept),
        (QUARTER_S, just_kept - QUARTER_S),
        (QUARTER_S, month_old),
        (DAY_S, month_old - DAY_S),
    }


def test_sums_and_maxima_are_kept(store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int) -> None:
    for first_s in (today_s - 5 * DAY_S, today_s - 50 * DAY_S):
        minutes = [first_s + MINUTE_S * n for n in (0, 1, 14, 15, 600, 1439)]
        add(store, *(a_row(at_s, n, denied=2) for n, at_s in enumerate(minutes, 1)))
        add(store, *(a_row(at_s, n % 4, meter="slowest") for n, at_s in enumerate(minutes, 1)))
        add(store, a_row(first_s, 7, ANN))
    before = sums([row for row in stored(engine) if row.meter == "requests"])
    roll_up_whole(upkeep)
    after = stored(engine)
    assert sums([row for row in after if row.meter == "requests"]) == before
    assert [row.value for row in after if row.meter == "slowest" and row.width_s == DAY_S] == [3]
    quarters = {
        row.bucket_s: row.value for row in after if row.meter == "slowest" and row.width_s == QUARTER_S
    }
    first_s = today_s - 5 * DAY_S
    assert quarters == {
        first_s: 3,
        first_s + 36_000: 1,
        first_s + DAY_S - QUARTER_S: 2,
    }


def test_a_second_roll_up_changes_nothing(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    add(store, a_row(today_s - 5 * DAY_S, 3), a_row(today_s - 50 * DAY_S, 4))
    roll_up_whole(upkeep)
    before = stored(engine)
    assert upkeep.roll_up(*KEPT_S) == 0
    assert stored(engine) == before


def test_a_late_record_after_a_roll_up_is_joined_by_the_next_one(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    at_s = today_s - 5 * DAY_S
    add(store, a_row(at_s, 3), a_row(at_s, 9, meter="slowest"))
    roll_up_whole(upkeep)
    add(store, a_row(at_s, 4, denied=1), a_row(at_s, 5, meter="slowest"))
    assert sums(stored(engine))[ACME, "requests", "value"] == 7  # in two rows of two widths
    roll_up_whole(upkeep)
    assert stored(engine) == [
        CountRow("caller", ACME, "", "requests", QUARTER_S, at_s, 7, 1),
        CountRow("caller", ACME, "", "slowest", QUARTER_S, at_s, 9, 0),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_bounded_steps_give_the_same_rows(
    store: SqlStore,
    upkeep: Upkeep,
    engine: sa.Engine,
    today_s: int,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    """Also when only some minutes of a quarter are joined in a step."""
    small_steps(monkeypatch, at_once)
    rows = [a_row(today_s - days * DAY_S + 60 * n, n + 1, key) for days in (3, 60) for n in range(4)
            for key in (ACME, ANN)]  # fmt: skip
    add(store, *rows)
    calls = roll_up_whole(upkeep)
    assert calls >= len(rows) / (2 * at_once)
    assert [(row.key, row.width_s, row.value) for row in stored(engine)] == [
        (ACME, QUARTER_S, 10),
        (ACME, DAY_S, 10),
        (ANN, QUARTER_S, 10),
        (ANN, DAY_S, 10),
    ]


def test_a_sum_beyond_the_column_is_capped(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    at_s = today_s - 5 * DAY_S
    add(store, a_row(at_s, TOTAL_MAX), a_row(at_s + 60, TOTAL_MAX))
    roll_up_whole(upkeep)
    assert [(row.width_s, row.value) for row in stored(engine)] == [(QUARTER_S, TOTAL_MAX)]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_row_that_a_flush_has_locked_is_rolled_up_the_next_time(
    store: SqlStore, new_engine: NewEngine, engine: sa.Engine, today_s: int
) -> None:
    at_s = today_s - 5 * DAY_S
    add(store, a_row(at_s, 3), a_row(at_s + 60, 4))
    other = Upkeep(new_engine(), str)
    with store.transaction() as tx:
        put_counts(tx._db, [a_row(at_s, 1)], JOINS_OF)
        assert other.roll_up(*KEPT_S) == 1
    assert {(row.width_s, row.value) for row in stored(engine)} == {(MINUTE_S, 4), (QUARTER_S, 4)}
    assert other.roll_up(*KEPT_S) == 1
    assert {(row.width_s, row.value) for row in stored(engine)} == {(QUARTER_S, 8)}


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_late_record_during_a_roll_up_is_counted_once(
    store: SqlStore, new_engine: NewEngine, engine: sa.Engine, today_s: int
) -> None:
    at_s = today_s - 5 * DAY_S
    add(store, a_row(at_s, 3))
    slow = new_engine()
    late: list[bool] = []

    @sa.event.listens_for(slow, "commit")
    def meanwhile(_db: sa.Connection) -> None:
        """The minute is deleted and not yet committed: the flush waits, then inserts it again."""
        if not late:
            late.append(True)
            flushing.start()

    flushing = threading.Thread(target=add, args=(store, a_row(at_s, 4)))
    warden = Upkeep(slow, str)
    assert warden.roll_up(*KEPT_S) == 1
    flushing.join()
    assert {(row.width_s, row.value) for row in stored(engine)} == {(MINUTE_S, 4), (QUARTER_S, 3)}
    warden.roll_up(*KEPT_S)
    assert {(row.width_s, row.value) for row in stored(engine)} == {(QUARTER_S, 7)}


# Compared with sums over single rows

rows = st.lists(
    st.builds(
        CountRow,
        st.sampled_from(["caller", "caller+resource"]),
        st.sampled_from([ACME, ANN]),
        st.sampled_from(["", "/a"]),
        st.sampled_from(["requests", "slowest"]),
        st.just(MINUTE_S),
        st.integers(-2 * DAY_S, 2 * DAY_S).map(lambda s: s // MINUTE_S * MINUTE_S),
        st.integers(1, 2**32),
        st.integers(0, 5),
    ),
    unique_by=lambda row: row[:6],
    max_size=30,
)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=deeper(30))
@given(narrow=rows, widths=st.sampled_from([[QUARTER_S], [DAY_S], [QUARTER_S, DAY_S]]))
def test_wide_rows_have_the_sums_of_the_narrow_ones(
    store: SqlStore, engine: sa.Engine, narrow: list[CountRow], widths: list[int]
) -> None:
    """Days made of quarters equal days made of minutes."""
    with writing(engine) as db:
        db.execute(sa.delete(buckets))
    add(store, *narrow)
    for from_s, to_s in pairwise([MINUTE_S, *widths]):
        with writing(engine) as db:
            while widen(db, from_s, to_s, 0, 10_000):
                pass
    wide, width_s = stored(engine), widths[-1]
    assert len({row[:6] for row in wide}) == len(wide)
    for row in wide:
        assert (row.width_s, row.bucket_s % width_s) == (width_s, 0)
        inside = [n for n in narrow if n[:4] == row[:4] and 0 <= n.bucket_s - row.bucket_s < width_s]
        join = max if row.meter == "slowest" else sum
        assert (row.value, row.denied) == (join(n.value for n in inside), join(n.denied for n in inside))
        narrow = [n for n in narrow if n not in inside]
    assert narrow == []
