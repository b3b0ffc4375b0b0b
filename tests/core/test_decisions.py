"""Which locks must change: a table of cases, and the sentence that explains."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from analyzer.core.counting.meters import Meter
from analyzer.core.judging.judge import (
    JudgedSeries,
    Standing,
    changes,
    decide,
    ended,
    explain,
    lock_key,
    outlived,
    totals_of,
)
from analyzer.core.judging.plan import Plan, plan_of
from analyzer.core.judging.policies import Calendar, Quota
from analyzer.core.judging.windows import Window
from analyzer.core.model import CountRow
from gatekeeper.model import Clear, Lock, LockKey, Rate, Set

DAILY = Quota("daily", 10, Calendar("day", "Europe/Berlin"))
BEGIN, END = datetime(2026, 11, 20, 23, tzinfo=UTC), datetime(2026, 11, 21, 23, tzinfo=UTC)
TODAY = Window(int(BEGIN.timestamp()), int(END.timestamp()))
NOON = datetime(2026, 11, 21, 11, 0, 0, 250_000, tzinfo=UTC)
ACME = JudgedSeries("daily", "api_key:acme", "", TODAY)
LOCK = Lock(
    scope="caller",
    key="api_key:acme",
    policy="daily",
    began=NOON,
    until=END,
    kind="quota",
    action="deny",
    status=429,
    reason="quota-exceeded",
    detail="10 requests per day (Europe/Berlin), 12 counted",
    on_stale="keep",
)
BEFORE, AFTER = timedelta(milliseconds=-1), timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("used", "lock", "now", "change"),
    [
        # used  lock                                  now               change
        (9, None, NOON, None),
        (10, None, NOON, Set(replace(LOCK, detail=LOCK.detail.replace("12", "10")))),
        (12, None, NOON, Set(LOCK)),
        # It is written once, however long the flood lasts.
        (12, LOCK, NOON + AFTER, None),
        (10**9, LOCK, NOON + AFTER, None),
        (12, replace(LOCK, until=END + AFTER), NOON, None),  # somebody gave it a later end
        # A lock of yesterday's that nobody has ended yet.
        (9, replace(LOCK, until=BEGIN), NOON, None),
        (12, replace(LOCK, until=BEGIN), NOON, Set(LOCK)),
        # The edges of the window, half-open.
        (12, None, BEGIN + BEFORE, None),  # a clock that runs ahead
        (12, None, BEGIN, Set(replace(LOCK, began=BEGIN))),
        (12, None, END + BEFORE, Set(replace(LOCK, began=END + BEFORE))),
        (12, None, END, None),  # late records
        (12, LOCK, END + AFTER, None),
    ],
)
def test_what_must_change_for_a_lock_to_agree_with_its_policy(
    used: int, lock: Lock | None, now: datetime, change: Set | None
) -> None:
    assert decide(DAILY, Standing(ACME, used), lock, now) == change


def test_a_lock_says_what_its_policy_says() -> None:
    policy = replace(DAILY, status=403, on_stale="allow", per="caller+resource")
    change = decide(policy, Standing(ACME._replace(resource="/v1/{id}"), 12), None, NOON)
    assert change == Set(replace(LOCK, status=403, on_stale="allow", resource="/v1/{id}"))


def test_a_lock_does_what_its_policy_says() -> None:
    slows = replace(DAILY, action="slow", slow=Rate(10, 1.0))
    assert decide(slows, Standing(ACME, 12), None, NOON) == Set(replace(LOCK, action="slow", slow=Rate(10)))
    tags = replace(DAILY, action="tag")
    assert decide(tags, Standing(ACME, 12), None, NOON) == Set(replace(LOCK, action="tag"))


def test_a_limit_of_nothing_locks_at_the_first_request() -> None:
    assert decide(replace(DAILY, limit=0), Standing(ACME, 1), None, NOON) is not None


@pytest.mark.parametrize(
    ("policy", "used", "sentence"),
    [
        (replace(DAILY, limit=100_000), 100_214, "100,000 requests per day (Europe/Berlin), 100,214 counted"),
        (
            Quota("tokens", 5_000_000, Calendar("month"), meter="tokens"),
            5_000_001,
            "5,000,000 tokens per month (UTC), 5,000,001 counted",
        ),
        (
            Quota("burst", 1, Calendar("minute", "Asia/Kathmandu"), per="caller+resource"),
            1,
            "1 requests per minute (Asia/Kathmandu), 1 counted",
        ),
    ],
)
def test_the_sentence_that_explains(policy: Quota, used: int, sentence: str) -> None:
    assert explain(policy, used) == sentence
    series = JudgedSeries(policy.name, "user:ann", "", TODAY)
    change = decide(policy, Standing(series, used), None, NOON)
    assert isinstance(change, Set)
    assert change.lock.detail == sentence


# From rows to totals

HOURLY = Quota("hourly", 3, Calendar("hour"), per="caller+resource")
TOKENS = Quota("tokens", 500, Calendar("day"), meter="tokens")
PLAN = plan_of([], [Meter("tokens", "tokens")], [DAILY, HOURLY, TOKENS])


def a_row(
    value: int, at: str = "10:00", *, denied: int = 0, resource: str = "", meter: str = "requests"
) -> CountRow:
    second = int(datetime.fromisoformat(f"2026-11-21T{at}Z").timestamp())
    grouping = "caller+resource" if resource else "caller"
    return CountRow(grouping, "user:ann", resource, meter, 60, second, value, denied)


def grown(*rows: CountRow) -> dict[tuple[str, str], int]:
    return {(series.policy, series.resource): n for series, n in totals_of(PLAN, rows).items()}


def test_a_row_counts_for_the_policies_of_its_grouping_and_meter() -> None:
    assert grown(a_row(2)) == {("daily", ""): 2}
    assert grown(a_row(2, resource="/a")) == {("hourly", "/a"): 2}
    assert grown(a_row(70, meter="tokens")) == {("tokens", ""): 70}
    assert grown(a_row(70, meter="bytes")) == {}


def test_denied_requests_count_nowhere() -> None:
    assert grown(a_row(0, denied=900)) == {}
    assert grown(a_row(1, denied=900)) == {("daily", ""): 1}


def test_rows_of_one_window_are_one_total_and_come_sorted() -> None:
    rows = [a_row(1, "22:59"), a_row(2, "10:00"), a_row(4, "23:00"), a_row(8, "00:00")]
    totals = totals_of(PLAN, rows)
    assert totals == {
        JudgedSeries("daily", "user:ann", "", TODAY): 1 + 2 + 8,
        JudgedSeries("daily", "user:ann", "", Window(TODAY.until_s, TODAY.until_s + 86_400)): 4,
    }
    assert list(totals) == sorted(totals)


def test_two_policies_on_one_series_have_a_total_each() -> None:
    both = plan_of([], [], [DAILY, replace(DAILY, name="hard", limit=99)])
    assert [(series.policy, n) for series, n in totals_of(both, [a_row(5)]).items()] == [
        ("daily", 5),
        ("hard", 5),
    ]


def test_without_policies_nothing_is_judged() -> None:
    assert totals_of(Plan(), [a_row(5)]) == {}


def test_what_is_below_its_limit_changes_nothing() -> None:
    below, reached = Standing(ACME, 9), Standing(ACME, 12)
    assert changes(PLAN, [below, reached, below], {}, NOON) == [Set(LOCK)]


def test_each_standing_is_judged_beside_its_own_lock() -> None:
    ann = ACME._replace(key="user:ann")
    locks = {lock_key(ACME): LOCK}
    changed = changes(PLAN, [Standing(ACME, 12), Standing(ann, 12)], locks, NOON)
    assert changed == [Set(replace(LOCK, key="user:ann"))]


# The end of locks


def test_locks_end_when_their_time_is_over() -> None:
    over, at_its_end, not_yet = (replace(LOCK, key=f"user:{n}", until=END + n * AFTER) for n in (-1, 0, 1))
    assert ended([over, at_its_end, not_yet], END) == [Clear(over.at), Clear(at_its_end.at)]


def test_locks_outlive_their_policy_by_no_activation() -> None:
    stays, goes = LOCK, replace(LOCK, policy="gone")
    assert outlived([stays, goes], PLAN) == [Clear(LockKey("caller", "api_key:acme", "", "gone"))]
