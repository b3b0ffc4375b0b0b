"""Which locks must change: a table of cases, the sentences that explain, running totals and their `next`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.judge import judge, judge_policies, lapsed, lock_keys
from analyzer.judging.kinds import KINDS
from analyzer.judging.kinds.quota import describe, explain
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.totals import Standing, TotalKey, totals_growth
from analyzer.kernel.model import CountRow
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.sums import NEVER, Sum
from analyzer.plan.windows import Calendar, Window
from gatekeeper.model import Clear, Lock, LockKey, Rate, Set
from tests.support.stored_counts import tables_of

DAILY = Quota("daily", 10, Calendar("day", "Europe/Berlin"))
BEGIN, END = datetime(2026, 11, 20, 23, tzinfo=UTC), datetime(2026, 11, 21, 23, tzinfo=UTC)
TODAY = Window(int(BEGIN.timestamp()), int(END.timestamp()))
NOON = datetime(2026, 11, 21, 11, 0, 0, 250_000, tzinfo=UTC)
AT_NOON = Circumstances(NOON)
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


def changed(policy: Quota, **changes: Any) -> Quota:
    return msgspec.structs.replace(policy, **changes)


def standing(policy: Quota, used: int, *, key: str = "api_key:acme", resource: str = "") -> Standing:
    """Today's total of a series, by what the policy sums."""
    return Standing(TotalKey(KINDS["quota"].judged_sum(policy), key, resource, TODAY), used)


def judged(policy: Quota, used: int, lock: Lock | None, now: datetime, resource: str = "") -> list[Any]:
    plan, at = make_plan([], [], [policy]), standing(policy, used, resource=resource)
    locks = {} if lock is None else {lock.at: lock}
    return list(judge(plan, [at], locks, Circumstances(now)).changes)


@pytest.mark.parametrize(
    ("used", "lock", "now", "change"),
    [
        # used  lock                                  now               change
        (9, None, NOON, None),
        (10, None, NOON, Set(replace(LOCK, detail=LOCK.detail.replace("12", "10")))),
        (12, None, NOON, Set(LOCK)),
        # It is written once, for a flood of any length.
        (12, LOCK, NOON + AFTER, None),
        (10**9, LOCK, NOON + AFTER, None),
        (12, replace(LOCK, until=END + AFTER), NOON, None),  # an operator gave it a later end
        # Yesterday's lock, which the warden has not ended yet.
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
def test_a_total_at_its_limit_sets_or_extends_the_lock(
    used: int, lock: Lock | None, now: datetime, change: Set | None
) -> None:
    assert judged(DAILY, used, lock, now) == ([] if change is None else [change])


def test_a_lock_has_the_values_of_its_policy() -> None:
    policy = changed(DAILY, status=403, on_stale="allow", per="caller+resource")
    wanted = replace(LOCK, status=403, on_stale="allow", resource="/v1/{id}")
    assert judged(policy, 12, None, NOON, resource="/v1/{id}") == [Set(wanted)]
    slows = changed(DAILY, action="slow", slow=Rate(10, 1.0))
    assert judged(slows, 12, None, NOON) == [Set(replace(LOCK, action="slow", slow=Rate(10)))]
    assert judged(changed(DAILY, action="tag"), 12, None, NOON) == [Set(replace(LOCK, action="tag"))]


@pytest.mark.parametrize(
    ("per", "scope"),
    [
        ("caller", "caller"),
        ("caller+resource", "caller"),
        ("tenant", "tenant"),
        ("resource", "resource"),
        ("address", "address"),
        ("address/24", "range"),
        ("address6/56+resource", "range"),
        ("everyone", "everyone"),
    ],
)
def test_a_lock_has_the_scope_of_its_grouping(per: str, scope: str) -> None:
    policy = changed(DAILY, per=per)
    resource = "/a" if per.endswith("+resource") else ""
    (change,) = judged(policy, 12, None, NOON, resource=resource)
    assert change.lock.scope == scope
    assert lock_keys(make_plan([], [], [policy]), [standing(policy, 12, resource=resource)]) == [change.at]


def test_a_limit_of_0_locks_at_the_first_request() -> None:
    assert len(judged(changed(DAILY, limit=0), 1, None, NOON)) == 1


@pytest.mark.parametrize(
    ("policy", "used", "sentence"),
    [
        (changed(DAILY, limit=100_000), 100_214, "100,000 requests per day (Europe/Berlin), 100,214 counted"),
        (
            Quota("tokens", 5_000_000, Calendar("month"), meter="tokens"),
            5_000_001,
            "5,000,000 tokens per month (UTC), 5,000,001 counted",
        ),
    ],
)
def test_a_refusal_explains_itself(policy: Quota, used: int, sentence: str) -> None:
    assert explain(policy, used) == sentence
    at = Standing(standing(policy, used).total._replace(window=TODAY), used)
    (change,) = judge(make_plan([], [], [policy]), [at], {}, AT_NOON).changes
    assert isinstance(change, Set)
    assert change.lock.detail == sentence


def test_each_action_is_described() -> None:
    assert describe(changed(DAILY, action="tag")).endswith("then the application is notified until it ends")
    assert describe(changed(DAILY, action="slow", slow=Rate(5, 2.0))).endswith(
        "then 5 in 2 s through each process, and 429 for the rest, until it ends"
    )


# From rows to running totals

HOURLY = Quota("hourly", 3, Calendar("hour"), per="caller+resource")
TOKENS = Quota("tokens", 500, Calendar("day"), meter="tokens")
PLAN = make_plan([], [Meter("tokens", "tokens")], [DAILY, HOURLY, TOKENS])
DAY_OF_BERLIN = Sum("caller", "requests", Calendar("day", "Europe/Berlin"))


def a_row(
    value: int, at: str = "10:00", *, denied: int = 0, resource: str = "", meter: str = "requests"
) -> CountRow:
    second = int(datetime.fromisoformat(f"2026-11-21T{at}Z").timestamp())
    grouping = "caller+resource" if resource else "caller"
    return CountRow(grouping, "user:ann", resource, meter, 60, second, value, denied)


def grown(*rows: CountRow, plan: Plan = PLAN) -> dict[tuple[str, str, str], int]:
    return {
        (sum_.grouping, sum_.meter, resource): number
        for sum_, grown in totals_growth(plan_sums(plan).policies_by_sum, tables_of(rows)).items()
        for resource, number in zip(grown.resources, grown.amounts, strict=True)
    }


def test_a_row_adds_to_the_sums_of_its_grouping_and_meter() -> None:
    assert grown(a_row(2)) == {("caller", "requests", ""): 2}
    assert grown(a_row(2, resource="/a")) == {("caller+resource", "requests", "/a"): 2}
    assert grown(a_row(70, meter="tokens")) == {("caller", "tokens", ""): 70}
    assert grown(a_row(70, meter="bytes")) == {}


def test_denied_requests_add_to_no_total() -> None:
    assert grown(a_row(0, denied=900)) == {}
    assert grown(a_row(1, denied=900)) == {("caller", "requests", ""): 1}


def test_the_overflow_adds_to_no_total_of_callers() -> None:
    for row in (a_row(5), a_row(5, resource="/a")):
        assert grown(row._replace(key="overflow:")) == {}
    tenants = make_plan([], [], [changed(DAILY, per="tenant")])
    row = a_row(5)._replace(key="overflow:", grouping="tenant")  # a tenant may have any name
    assert grown(row, plan=tenants) == {("tenant", "requests", ""): 5}


@pytest.mark.parametrize(
    ("grouping", "key", "resource", "grows"),
    [
        ("caller+resource", "user:ann", "", False),
        ("caller+resource", "user:ann", "/a", True),
        ("tenant", "", "", False),
        ("tenant+resource", "", "/a", False),
        ("resource", "", "", False),
        ("address/24", "", "", False),
        ("caller", "", "", False),
        ("caller", "unnamed:", "", True),
        ("everyone", "", "", True),
    ],
)
@pytest.mark.parametrize("minutes", [("10:00",), ("10:00", "10:01"), ("10:00", "22:59", "23:00")])
def test_an_empty_part_of_a_key_grows_no_total(
    grouping: str, key: str, resource: str, grows: bool, minutes: tuple[str, ...]
) -> None:
    """One bucket, several of one window, several windows."""
    plan = make_plan([], [], [changed(DAILY, per=grouping)])
    rows = [
        a_row(2, minute)._replace(grouping=grouping, key=name, resource=part)
        for minute in minutes
        for name, part in {(key, resource), ("full", "/full" if "+" in grouping else "")}
    ]
    [growth] = totals_growth(plan_sums(plan).policies_by_sum, tables_of(rows)).values()
    found = set(zip(growth.keys, growth.resources, strict=True))
    assert ((key, resource) in found) == grows
    assert len(found) == 1 + grows


def test_rows_of_one_window_are_one_total_and_come_sorted() -> None:
    rows = [a_row(1, "22:59"), a_row(2, "10:00"), a_row(4, "23:00"), a_row(8, "00:00")]
    assert totals_growth(plan_sums(PLAN).policies_by_sum, tables_of(rows))[DAY_OF_BERLIN] == (
        [TODAY.start_s, TODAY.until_s],
        ["user:ann", "user:ann"],
        ["", ""],
        [1 + 2 + 8, 4],
    )


def test_the_growth_of_a_maximum_is_the_largest_value_of_its_window() -> None:
    plan = make_plan([], [Meter("largest", "bytes", "max")], [changed(DAILY, meter="largest")])
    rows = [
        a_row(value, minute)._replace(meter="largest")
        for value, minute in ((5, "10:00"), (7, "10:01"), (2, "10:02"), (1, "23:00"))
    ]
    (growth,) = totals_growth(plan_sums(plan).policies_by_sum, tables_of(rows[:3])).values()
    assert growth.amounts == [7]  # one window, several buckets
    (growth,) = totals_growth(plan_sums(plan).policies_by_sum, tables_of(rows)).values()
    assert growth.amounts == [7, 1]


def test_a_sum_that_is_being_filled_grows_only_by_what_the_filling_has_passed() -> None:
    """The filling will find the rest in the buckets."""
    rows = [
        a_row(1, "10:00"),
        a_row(2, "10:01"),
        a_row(4, "10:01")._replace(key="user:bob"),
        a_row(8, "10:02"),
    ]
    at_s = rows[1].bucket_s
    for position, amounts in (
        ((at_s, "user:bob", ""), {"user:ann": 3}),
        ((at_s, "user:c", ""), {"user:ann": 3, "user:bob": 4}),
        ((at_s, "", ""), {"user:ann": 1}),
    ):
        grown = totals_growth([DAY_OF_BERLIN], tables_of(rows), {DAY_OF_BERLIN: position})[DAY_OF_BERLIN]
        assert dict(zip(grown.keys, grown.amounts, strict=True)) == amounts
    assert totals_growth([DAY_OF_BERLIN], tables_of(rows), {DAY_OF_BERLIN: (0, "", "")}) == {}


def test_policies_that_sum_the_same_share_one_total() -> None:
    plan = make_plan([], [], [DAILY, changed(DAILY, name="hard", limit=99), TOKENS])
    assert grown(a_row(5), plan=plan) == {("caller", "requests", ""): 5}
    assert [policy.name for policy in plan_sums(plan).policies_by_sum[DAY_OF_BERLIN]] == ["daily", "hard"]
    changes = judge(plan, [standing(DAILY, 99)], {}, AT_NOON).changes
    assert [change.at.policy for change in changes] == ["daily", "hard"]
    assert [change.at.policy for change in judge(plan, [standing(DAILY, 98)], {}, AT_NOON).changes] == [
        "daily"
    ]


def test_a_total_is_judged_again_at_its_next_threshold() -> None:
    plan = make_plan([], [], [DAILY, changed(DAILY, name="hard", limit=99)])
    following = [
        plan_sums(plan).next_judgement(standing(DAILY, used), NOON.timestamp()) for used in (0, 9, 10, 98, 99)
    ]
    assert following == [10, 10, 99, 99, NEVER]
    # A window that has not begun is judged by the first record after its beginning; one that is over, never.
    assert plan_sums(plan).next_judgement(standing(DAILY, 200), BEGIN.timestamp() - 1) == 10
    assert plan_sums(plan).next_judgement(standing(DAILY, 200), END.timestamp() + 1) == NEVER


# A change of plan


def test_changed_policies_rewrite_the_locks_that_are_earned() -> None:
    stricter = changed(DAILY, limit=5)
    plan = make_plan([], [], [stricter])
    assert judge_policies(plan, {"daily", "old"}, [standing(stricter, 7)], AT_NOON) == [
        Set(replace(LOCK, detail="5 requests per day (Europe/Berlin), 7 counted")),
    ]


def test_a_policy_that_did_not_change_keeps_its_locks() -> None:
    both = [DAILY, changed(DAILY, name="hard", limit=99)]
    assert judge_policies(make_plan([], [], both), {"hard"}, [standing(DAILY, 12)], AT_NOON) == []


# The end of a lock


def test_a_lock_ends_at_its_time() -> None:
    later = replace(LOCK, key="user:bob", until=END + AFTER)
    assert lapsed([LOCK, later], END) == [Clear(LockKey("caller", "api_key:acme", "", "daily"))]
    assert lapsed([LOCK, later], END + BEFORE) == []


def test_without_policies_nothing_is_judged() -> None:
    assert totals_growth(plan_sums(Plan()).policies_by_sum, tables_of([a_row(5)])) == {}


def test_each_total_is_judged_with_its_own_lock() -> None:
    plan, acme, ann = make_plan([], [], [DAILY]), standing(DAILY, 12), standing(DAILY, 12, key="user:ann")
    below = standing(DAILY, 9, key="user:bob")
    assert judge(plan, [acme, below, ann], {LOCK.at: LOCK}, AT_NOON).changes == [
        Set(replace(LOCK, key="user:ann"))
    ]
