"""Rankings of spans equal a recount of the buckets, after any ranking and any change of the counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.callers.forgetting import renamed_rows
from analyzer.callers.forgetting.renaming import Renaming
from analyzer.counting import ranked_buckets, ranking_upkeep, rankings
from analyzer.counting.largest_rows import largest_rows
from analyzer.counting.ranked_buckets import TrafficAmount
from analyzer.counting.rankings import NotRankedYet
from analyzer.counting.traffic import Traffic, TrafficQuery, traffic
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.kernel.database.engine import writing
from analyzer.kernel.model import CountRow, Partition
from analyzer.kernel.tables.ranking_tables import changed_quarters
from analyzer.kernel.tables.ranking_tables import rankings as stored_rankings
from analyzer.maintenance import roll_up
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S, REQUESTS, Meter, joins_by_meter
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import empty_tables
from tests.support.depth import deeper
from tests.support.stored_counts import put_counts, stored_counts
from tests.support.upkeep import Upkeep

HOUR_S = 3_600
SLOWEST = Meter("slowest", "duration", "max")
JOINS_OF = joins_by_meter((REQUESTS, SLOWEST))
CALLERS = [f'api_key:acct-{number} "%_' for number in range(9)]
PSEUDONYM = "forgotten:1"
PARTS = [Partition("cluster", "topic", number, "log", "log") for number in range(2)]
# Spans of the pages, and some that no quarter fits: how long, and their steps.
SPANS = [(HOUR_S, 60), (6 * HOUR_S, 300), (DAY_S, 900), (3 * DAY_S, 7_200), (3 * DAY_S, 21_600), (5_000, 60)]
NewEngine = Callable[[], sa.Engine]


class Counted(NamedTuple):
    """An act: requests of callers, minutes before now."""

    rows: list[tuple[int, int, int, int, int]]  # minutes before, caller, value, denied, slowest
    part: int


ACTS = st.one_of(
    st.builds(
        Counted,
        st.lists(
            st.tuples(
                st.one_of(st.integers(0, 90), st.integers(0, 4_000)),
                st.integers(0, len(CALLERS) - 1),
                st.integers(0, 50),
                st.integers(0, 3),
                st.integers(0, 900),
            ),
            min_size=1,
            max_size=25,
        ),
        st.integers(0, 1),
    ),
    st.sampled_from(["rank", "rank", "half", "widen", "forget", "fold", "days"]),
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rankings of few series, which are made again at once."""
    monkeypatch.setattr(ranked_buckets, "TOP", 3)
    monkeypatch.setattr(ranked_buckets, "STEPPED", 1)
    monkeypatch.setattr(ranking_upkeep, "TOP", 3)
    monkeypatch.setattr("analyzer.counting.largest_rows.TOP", 3)
    monkeypatch.setattr(ranking_upkeep, "FOLLOWED", 2)
    monkeypatch.setattr(ranking_upkeep, "SERIES_MAX", 6)
    monkeypatch.setattr(ranking_upkeep, "AGAIN_S", dict.fromkeys((QUARTER_S, HOUR_S, DAY_S), 0))
    monkeypatch.setattr(ranking_upkeep, "WAIT_S", dict.fromkeys((QUARTER_S, HOUR_S, DAY_S), 0))


def put(engine: sa.Engine, at_s: int, act: Counted) -> None:
    rows = []
    for before, caller, value, denied, slowest in act.rows:
        minute_s = (at_s // MINUTE_S - before) * MINUTE_S
        key = CALLERS[caller]
        rows.append(CountRow("caller", key, "", "requests", MINUTE_S, minute_s, value, denied))
        rows.append(CountRow("caller", key, "", "slowest", MINUTE_S, minute_s, slowest, 0))
    with writing(engine) as db:
        # One row a meter and series, as a counter has them.
        put_counts(db, rows, JOINS_OF, [PARTS[act.part]])


def widen(upkeep: Upkeep, quarters_s: int) -> None:
    while upkeep.roll_up(DAY_S, quarters_s):
        pass


def fold(engine: sa.Engine, at_s: int) -> None:
    with writing(engine) as db:
        numbers = catalog.load(db)
        if "caller" in numbers.groupings:
            roll_up.fold(db, numbers.groupings["caller"], (at_s // DAY_S - 1) * DAY_S, CALLERS[1:4])


def do(engine: sa.Engine, upkeep: Upkeep, at_s: int, act: Counted | str) -> None:
    acts = {
        "rank": lambda: rank_all(upkeep),
        "half": lambda: [upkeep.step("rank") for _ in range(5)],
        "widen": lambda: widen(upkeep, 400 * DAY_S),
        "days": lambda: widen(upkeep, 2 * DAY_S),
        "forget": lambda: renamed_rows.rename(engine, Renaming(CALLERS[0], PSEUDONYM, "reference")),
        "fold": lambda: fold(engine, at_s),
    }
    if isinstance(act, Counted):
        put(engine, at_s, act)
    else:
        acts[act]()


def rank_all(upkeep: Upkeep) -> int:
    steps = 0
    while upkeep.step("rank"):
        steps += 1
        assert steps < 5_000
    return steps


def recounted(engine: sa.Engine, query: TrafficQuery) -> Traffic:
    """Returns what `traffic` should, from all rows of the table."""
    join = max if query.meter == "slowest" else int.__add__
    whole: defaultdict[int, TrafficAmount] = defaultdict(TrafficAmount)
    keys: defaultdict[str, TrafficAmount] = defaultdict(TrafficAmount)
    series: defaultdict[str, defaultdict[int, TrafficAmount]] = defaultdict(
        lambda: defaultdict(TrafficAmount)
    )
    with engine.connect() as db:
        rows = stored_counts(db)
    for row in rows:
        if row.meter == query.meter and query.from_s <= row.bucket_s < query.until_s:
            step_s = row.bucket_s - row.bucket_s % query.step_s
            for amounts, place in ((whole, step_s), (keys, row.key), (series[row.key], step_s)):
                value, denied = amounts[place]  # type: ignore[index]
                amounts[place] = TrafficAmount(join(value, row.value), join(denied, row.denied))  # type: ignore[index]
    order = sorted(keys, key=lambda key: (-keys[key].whole, key))
    top = [key for key in order if keys[key].whole][: query.top]
    return Traffic(
        {at_s: amount for at_s, amount in sorted(whole.items()) if amount.whole},
        {key: keys[key] for key in top},
        {key: {at_s: amount for at_s, amount in series[key].items() if amount.whole} for key in top},
    )


def queries(at_s: int, meter: str) -> Iterator[TrafficQuery]:
    for length_s, step_s in SPANS:
        from_s = at_s - length_s
        yield TrafficQuery("caller", from_s - from_s % step_s, at_s + 1, step_s, 3, meter)
    yield TrafficQuery("caller", (at_s // DAY_S - 3) * DAY_S, at_s + 1, DAY_S, 3, meter)
    yield TrafficQuery("caller", at_s - 2 * DAY_S - 77, at_s - 3_333, 60, 3, meter)


@settings(
    max_examples=deeper(3), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(acts=st.lists(ACTS, max_size=4))
def test_a_ranking_of_any_span_equals_a_recount(
    engine: sa.Engine, marks: Callable[[], str], few: None, acts: list[Any]
) -> None:
    empty_tables(engine)
    upkeep, at_s = Upkeep(engine, marks), now_s(engine)
    for act in acts:
        do(engine, upkeep, at_s, act)
    for meter in JOINS_OF:
        for query in queries(at_s, meter):
            if "days" in acts and query.step_s % DAY_S:
                continue  # the row of a day has lost its hours, which a ranking may still have
            expected, answer = recounted(engine, query._replace(top=100)), traffic(engine, query)
            assert_bounded(answer, expected, query)
            if query.step_s % QUARTER_S == 0 or "widen" not in acts:
                assert dict(answer.whole) == dict(expected.whole), query
                assert {*answer.series} == {*answer.keys}
                assert all(dict(steps) == expected.series[key] for key, steps in answer.series.items()), query
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rankings, "LOOK_UPS_MAX", 0)
                assert_bounded(traffic(engine, query), expected, query)
    for width_s in (HOUR_S, DAY_S):
        query = UsageQuery("caller", width_s, at_s - 2 * DAY_S - 5_000, at_s, meter="requests", top=2)
        rows, answer = list(usage_rows(engine, query)), largest_rows(engine, query)
        assert answer.is_exact
        assert list(answer.rows) == rows


def assert_bounded(answer: Traffic, expected: Traffic, query: TrafficQuery) -> None:
    """Amounts are exact, those of others at most the bound, and an exact ranking lists the first ones."""
    assert answer.keys.items() <= expected.keys.items(), query
    others = [amount.whole for key, amount in expected.keys.items() if key not in answer.keys]
    assert max(others, default=0) <= answer.unlisted_at_most, query
    if answer.is_exact:
        amounts = [amount.whole for amount in expected.keys.values()]
        assert [amount.whole for amount in answer.keys.values()] == amounts[: query.top], query


@pytest.fixture
def past(engine: sa.Engine) -> TrafficQuery:
    """Counts of the hour before the last one, which is over; 30 of the first caller, 1 of others."""
    hour_s = now_s(engine) // HOUR_S * HOUR_S - HOUR_S
    rows = [(5, 0, 30, 0, 0), *((5, caller, 1, 0, 0) for caller in range(1, 6))]
    put(engine, hour_s, Counted(rows, 0))
    return TrafficQuery("caller", hour_s - HOUR_S, hour_s, HOUR_S, 1)


def test_a_ranking_is_read_until_a_late_record_comes(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery
) -> None:
    rank_all(upkeep)
    with writing(engine) as db:
        hour = sa.and_(stored_rankings.c.width_s == HOUR_S, stored_rankings.c.begin_s == past.from_s)
        series = sa.func.replace(stored_rankings.c.series, " 30,", " 40,")
        assert db.execute(sa.update(stored_rankings).where(hour).values(series=series)).rowcount == 2
    assert [amount.value for amount in traffic(engine, past).keys.values()] == [40]
    put(engine, past.until_s, Counted([(7, 0, 2, 1, 0)], 1))
    assert [*traffic(engine, past).keys.values()] == [(32, 1)]
    rank_all(upkeep)
    assert [*traffic(engine, past).keys.values()] == [(32, 1)]


def test_a_record_that_comes_while_a_ranking_is_made_outdates_it(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = ranking_upkeep.rank_buckets

    def slowly(*arguments: Any) -> Any:
        ranking = rank(*arguments)
        put(engine, past.until_s, Counted([(7, 0, 1, 0, 0)], 0))
        return ranking

    with monkeypatch.context() as patch:
        patch.setattr(ranking_upkeep, "rank_buckets", slowly)
        for number in range(1, 7):
            upkeep.step("rank")
            assert [*traffic(engine, past).keys.values()] == [(30 + number, 0)]


def test_a_forgotten_name_leaves_rankings_which_stay_right(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery
) -> None:
    rank_all(upkeep)
    texts = sa.select(stored_rankings.c.series)
    name = CALLERS[0].replace('"', '\\"')
    with engine.connect() as db:
        assert any(name in text for text in db.scalars(texts))
    renamed_rows.rename(engine, Renaming(CALLERS[0], PSEUDONYM, "reference"))
    with engine.connect() as db:
        assert not [text for text in db.scalars(texts) if name in text]
    assert upkeep.step("rank") == 0
    assert traffic(engine, past).keys == {PSEUDONYM: (30, 0)}


def test_changes_of_ranked_quarters_are_one_row_each(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery
) -> None:
    put(engine, past.until_s, Counted([(5, 0, 1, 0, 0)], 1))
    rows = sa.select(changed_quarters.c.partition, changed_quarters.c.changes)
    with engine.connect() as db:
        assert sorted(db.execute(rows)) == [(0, 1), (1, 1)]
    rank_all(upkeep)
    with engine.connect() as db:
        [(partition, changes)] = db.execute(rows).all()
    assert partition in (ranking_upkeep.OF_HOURS[2], ranking_upkeep.OF_DAYS[2])
    assert changes == 2


def test_too_much_unranked_time_is_refused(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_all(upkeep)
    put(engine, past.until_s, Counted([(24 * 60, 0, 1, 0, 0)], 0))
    monkeypatch.setattr(rankings, "READ_MAX", 10)
    assert traffic(engine, past).total.value == 35
    with pytest.raises(NotRankedYet, match="hours of this time are not ranked yet"):
        traffic(engine, past._replace(from_s=past.from_s - DAY_S))


def test_old_rankings_are_deleted(
    engine: sa.Engine, upkeep: Upkeep, few: None, past: TrafficQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_all(upkeep)
    monkeypatch.setattr(ranking_upkeep, "KEPT_S", {QUARTER_S: MINUTE_S, HOUR_S: DAY_S})
    rank_all(Upkeep(engine, str))
    with engine.connect() as db:
        assert set(db.scalars(sa.select(stored_rankings.c.width_s))) <= {HOUR_S, DAY_S}
