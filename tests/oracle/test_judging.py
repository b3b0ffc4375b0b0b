"""Sequences of flushes by two analyzers: each limit sets its lock once, in the flush that reaches it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.earned_notices import NoticeKey
from analyzer.judging.judge import judge, lapsed, lock_keys
from analyzer.judging.kinds.quota import explain
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey, totals_growth
from analyzer.kernel.model import CountRow
from analyzer.plan.meters import JOINS, Meter
from analyzer.plan.plan import make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar, window_at
from gatekeeper.model import Clear, Lock, LockKey, Set
from tests.oracle.slow_judging import Crossing, Flush, Reached, crossings, reached
from tests.support.depth import deeper
from tests.support.stored_counts import tables_of

ACME, ANN = "api_key:acme", "user:ann"
PLAN = make_plan(
    [],
    [Meter("largest", "bytes", "max")],
    [
        Quota("burst", 4, Calendar("minute")),
        Quota("daily", 9, Calendar("day", "Europe/Berlin"), notify=(250, 500, 1_000)),
        Quota("double", 18, Calendar("day", "Europe/Berlin")),  # judged by the total of `daily`
        Quota("export", 3, Calendar("hour", "Asia/Kathmandu"), per="caller+resource"),
        Quota("size", 4, Calendar("hour"), meter="largest", notify=(750,)),
    ],
)
BEGIN_S = int(datetime(2026, 11, 21, 22, 57, 30, tzinfo=UTC).timestamp())  # Berlin's day ends at 23:00


class Database:
    """Totals, each with its `next`, and locks, as SQL keeps them between flushes."""

    def __init__(self) -> None:
        self.totals: dict[TotalKey, int] = {}
        self.next: dict[TotalKey, int] = {}
        self.locks: dict[LockKey, Lock] = {}
        self.log: list[Crossing] = []
        self.notices: dict[NoticeKey, Reached] = {}

    def flush(self, number: int, rows: Sequence[CountRow], now: datetime) -> None:
        standings = []
        for sum_, grown in totals_growth(plan_sums(PLAN).policies_by_sum, tables_of(rows)).items():
            for window_s, key, resource, more in zip(*grown, strict=True):
                total = TotalKey(sum_, key, resource, window_at(sum_.window, window_s))
                self.totals[total] = JOINS[sum_.join].merge(self.totals.get(total, 0), more)
                if self.totals[total] >= self.next.setdefault(
                    total, plan_sums(PLAN).thresholds_by_sum[sum_][0]
                ):
                    standings.append(Standing(total, self.totals[total]))
        locks = {key: self.locks[key] for key in lock_keys(PLAN, standings) if key in self.locks}
        for standing in standings:
            self.next[standing.total] = plan_sums(PLAN).next_judgement(standing, now.timestamp())
        judged = judge(PLAN, standings, locks, Circumstances(now))
        for notice in judged.notices:
            policy, _, key, resource, window_s, threshold = notice.at
            first = Reached(number, policy, key, resource, window_s, threshold, notice.used)
            self.notices.setdefault(notice.at, first)
        for change in judged.changes:
            assert isinstance(change, Set)
            lock = self.locks[change.at] = change.lock
            assert lock.began == now < lock.until
            (used,) = (
                standing.used
                for standing in standings
                for policy in plan_sums(PLAN).policies_by_sum[standing.total.sum]
                if (policy.name, standing.total.key, standing.total.resource, standing.total.window.until_s)
                == (lock.policy, lock.key, lock.resource, lock.until.timestamp())
            )
            assert lock.detail == explain(PLAN.policy(lock.policy), used)
            self.log.append(Crossing(number, lock.policy, lock.key, lock.resource, lock.until, used))

    def end_locks(self, now: datetime) -> None:
        for change in lapsed(self.locks.values(), now):
            assert isinstance(change, Clear)
            del self.locks[change.at]


def a_row(
    now_s: int, off_min: int, key: str, resource: str, value: int, denied: int, meter: str = "requests"
) -> CountRow:
    bucket_s = (now_s + 60 * off_min) // 60 * 60
    grouping = "caller+resource" if resource else "caller"
    return CountRow(grouping, key, resource, meter, 60, bucket_s, value, denied)


def without_smaller_maxima(rows: Iterable[CountRow]) -> list[CountRow]:
    """Returns each row once, and of each bucket of `largest` one, as a counter does."""
    rows, largest = sorted(set(rows)), {}
    for row in rows:
        if row.meter == "largest":
            largest[row[:6]] = row  # sorted by value
    return [row for row in rows if row.meter != "largest" or largest[row[:6]] == row]


# The first number: minutes from now; late ones, and up to five of a clock that runs ahead.
amounts = st.tuples(
    st.sampled_from([-61, -2, -1, 0, 0, 0, 0, 1, 5]),
    st.sampled_from([ACME, ANN]),
    st.sampled_from(["", "", "/a", "/b"]),
    st.integers(0, 4),
    st.integers(0, 9),
    st.sampled_from(["requests", "requests", "largest"]),
)
row_amounts = st.lists(amounts, max_size=5)
# Seconds until the flush, its rows, and whether the warden runs after it.
steps = st.lists(st.tuples(st.integers(0, 45), row_amounts, st.booleans()), min_size=1, max_size=25)


@settings(max_examples=deeper(100))
@given(steps)
@example(
    [
        (0, [(1, ACME, "", 9, 0, "requests")], False),
        (40, [(0, ACME, "", 0, 5, "requests")], False),
        (1, [(0, ACME, "", 1, 0, "requests")], True),
    ]
)
@example([(0, [(0, ACME, "", 3, 0, "largest")], False), (1, [(0, ACME, "", 2, 0, "largest")], False)])
@example(
    [
        (0, [(0, ACME, "", 4, 0, "requests")], False),
        (30, [(-1, ACME, "", 4, 0, "requests")], False),
        (0, [(0, ACME, "", 4, 0, "requests")], False),
    ]
)
def test_each_limit_sets_its_lock_once_in_the_flush_that_reaches_it(steps: list[tuple]) -> None:
    database, flushes, now_s = Database(), [], BEGIN_S
    for number, (later_s, amounts, warden_runs) in enumerate(steps):
        now_s += later_s
        rows = without_smaller_maxima(a_row(now_s, *amount) for amount in amounts)
        flushes.append(Flush(now_s, rows))
        now = datetime.fromtimestamp(now_s, UTC)
        database.flush(number, rows, now)
        if warden_runs:
            database.end_locks(now)
    assert sorted(database.log) == crossings(PLAN, flushes)
    assert sorted(database.notices.values()) == reached(PLAN, flushes)
    event(f"{min(len(database.log), 5)} locks set")


@given(
    st.lists(st.tuples(st.sampled_from([ACME, ANN]), st.integers(1, 9)), min_size=1, max_size=30), st.data()
)
def test_the_order_in_which_two_analyzers_flush_does_not_change_the_locks(
    counted: list[tuple[str, int]], data: st.DataObject
) -> None:
    """All is counted within one minute: the locks are those of the callers at their limit, each set once."""
    now = datetime.fromtimestamp(BEGIN_S, UTC)
    first, second = counted[::2], counted[1::2]
    database = Database()
    number = 0
    while first or second:
        analyzer = first if not second or (first and data.draw(st.booleans())) else second
        key, value = analyzer.pop(0)
        database.flush(
            number, [a_row(BEGIN_S, 0, key, "", value, 0)], now + number * timedelta(milliseconds=1)
        )
        number += 1
    used = {key: sum(value for caller, value in counted if caller == key) for key in (ACME, ANN)}
    limits = {"burst": 4, "daily": 9, "double": 18}
    at_their_limit = {(policy, key) for policy, limit in limits.items() for key in used if used[key] >= limit}
    assert sorted((crossing.policy, crossing.key) for crossing in database.log) == sorted(at_their_limit)


@given(steps)
def test_denied_requests_alone_never_set_a_lock(steps: list[tuple]) -> None:
    database = Database()
    for number, (_, amounts, _) in enumerate(steps):
        rows = [a_row(BEGIN_S, *amount)._replace(value=0) for amount in amounts]
        database.flush(number, rows, datetime.fromtimestamp(BEGIN_S, UTC))
    assert database.log == []
    assert database.totals == {}
