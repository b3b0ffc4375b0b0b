"""Several limits as one, limits written as text, per plan, and in shards."""

from __future__ import annotations

import itertools
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.limits import (
    AllOf,
    ByPlan,
    Concurrency,
    FixedWindow,
    LeakyQueue,
    Sharded,
    SlidingLog,
    TokenBucket,
    parse,
)
from gatekeeper.model import Refused
from gatekeeper.testing import run
from tests.limits.memory_kinds import KINDS
from tests.limits.oracles import LogOracle, StepClock
from tests.support.depth import deeper

SECOND_NS = 1_000_000_000
modest = settings(max_examples=deeper(15), deadline=None)


@modest
@given(
    st.integers(1, 4),
    st.integers(2, 9),
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from("cpr"), st.integers(0, 20)),
        max_size=50,
    ),
)
def test_all_of_passes_when_each_part_would_and_spends_in_all_or_none(few, many, play):
    clock = StepClock()
    both = AllOf(SlidingLog(few, 10, clock=clock), SlidingLog(many, 40, clock=clock))
    oracles = {key: (LogOracle(few, 10 * SECOND_NS), LogOracle(many, 40 * SECOND_NS)) for key in "ab"}
    for key, cost, action, seconds_pass in play:
        clock.now_ns += seconds_pass * SECOND_NS
        if action == "p":
            both.peek(key, cost)
            continue
        passes = all(oracle.remaining(clock.now_ns) >= cost for oracle in oracles[key])
        if passes:
            for oracle in oracles[key]:
                oracle.allow(clock.now_ns, cost)
        peeked = both.peek(key, cost)
        decision = both.check(key, cost)
        assert decision.allowed == peeked.allowed == passes
        if passes:
            assert decision.remaining == min(oracle.remaining(clock.now_ns) for oracle in oracles[key])
    refused = both.peek("a", 2)
    if not refused and refused.retry_after is not None:
        clock.now_ns += round(refused.retry_after * 1e9) - 1
        assert not both.peek("a", 2)
        clock.now_ns += 1
        assert both.check("a", 2)


def test_a_refusal_is_that_of_the_longest_wait_and_names_the_others():
    clock = StepClock()
    per_second = SlidingLog(1, 1, name="per second", clock=clock)
    per_minute = SlidingLog(1, 60, name="per minute", clock=clock)
    both = AllOf(per_second, per_minute)
    assert both.allow("a")
    refused = both.check("a")
    assert (refused.policy, refused.retry_after, refused.also) == ("per minute", 60.0, ("per second",))
    assert per_second.peek("a").remaining == 0, "the parts stay limiters that can be called"
    clock.now_ns += SECOND_NS
    assert (both.check("a").also, per_second.peek("a").remaining) == ((), 1)


def test_a_reservation_of_all_is_for_the_first_moment_at_which_all_have_permits():
    clock = StepClock()
    log, bucket = SlidingLog(2, 10, clock=clock), TokenBucket(1, 3, clock=clock)
    both = AllOf(log, AllOf(bucket))
    booked = [both.reserve() for _ in range(5)]
    assert [reservation.delay for reservation in booked] == [0.0, 3.0, 10.0, 13.0, 20.0]
    assert booked[-1].cancel()
    assert log.peek().retry_after == bucket.peek().retry_after + 4.0 == 20.0
    assert not booked[1].cancel(), "later bookings exist"
    assert not both.reserve(max_wait=1)
    assert not AllOf(LeakyQueue(1, 10, queue=0, clock=clock), SlidingLog(1, 5, clock=clock)).reserve(cost=2)


def test_tasks_wait_in_order_for_all_parts():
    clock = StepClock()
    both = AllOf(SlidingLog(2, 10, clock=clock), TokenBucket(1, 3, clock=clock))
    served = []

    async def story() -> None:
        async for _ in both.ticks():
            served.append(clock.now_ns // SECOND_NS)
            if len(served) == 5:
                return

    run(story(), clock)
    assert served == [0, 3, 10, 13, 20]


def test_all_of_the_same_limiters_in_opposite_order_does_not_deadlock():
    a, b = SlidingLog(500, 3600), FixedWindow(700, 3600)
    passed: list[bool] = []
    limiters = [AllOf(a, b), AllOf(b, a)]
    threads = [
        threading.Thread(target=lambda both=both: passed.extend([both.allow() for _ in range(300)]))
        for both in limiters * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(passed) == 500
    assert b.peek().remaining == 200


@pytest.mark.parametrize("parts", [[], "twice"])
def test_all_of_no_limiter_or_of_one_twice_raises(parts):
    one = SlidingLog(1, 1)
    with pytest.raises(ValueError, match="each of them once"):
        AllOf(*([one, AllOf(one)] if parts == "twice" else parts))


def test_all_of_takes_limiters_of_a_rate_alone():
    with pytest.raises(TypeError, match="AllOf: expected limiters of a rate, got <Concurrency"):
        AllOf(SlidingLog(1, 1), Concurrency(1))


def test_all_of_refunds_resets_and_survives_a_restart():
    clock = StepClock()

    def make() -> AllOf:
        return AllOf(SlidingLog(3, 10, clock=clock), TokenBucket(5, 10, clock=clock))

    both, after = make(), make()
    both.allow("a", 3)
    both.refund("a", 2)
    assert both.peek("a").remaining == 2
    after.load(json.loads(json.dumps(both.dump())))
    assert after.peek("a") == both.peek("a")
    both.reset("a")
    assert both.peek("a").remaining == 3
    with pytest.raises(ValueError, match="saved: expected AllOf of 2 limiters"):
        both.load({"limiter": "AllOf", "parts": []})


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("10/second", [(10, 1)]),
        ("100 per 2 minutes", [(100, 120)]),
        ("5/30s", [(5, 30)]),
        ("1_000 / hour", [(1000, 3600)]),
        ("10/second; 1000/hour", [(10, 1), (1000, 3600)]),
        ("1/S, 2 per Minute; 3/2d;", [(1, 1), (2, 60), (3, 172_800)]),
    ],
)
def test_rates_are_parsed_in_common_notations(text, rates):
    limiter = parse(text, clock=StepClock())
    parts = limiter._parts if isinstance(limiter, AllOf) else [limiter]
    assert [(part._rule.limit, part._rule.period_ns // SECOND_NS) for part in parts] == rates
    assert limiter.peek().limit == min(limit for limit, _ in rates)


def test_a_rate_can_be_parsed_into_any_limiter():
    bucket = parse("10/second", TokenBucket, burst=3, clock=StepClock())
    assert sum(bucket.allow() for _ in range(9)) == 3
    assert parse("1/s", clock=StepClock()).check(cost=2).policy == "1/s"


@pytest.mark.parametrize(
    "text", ["", ";", "10", "/second", "ten/second", "10/month", "10/second/hour", "0/s", "1.5/s"]
)
def test_text_that_is_not_a_rate_raises(text):
    with pytest.raises(ValueError, match="expected a"):
        parse(text)


def test_a_plan_is_chosen_per_request():
    clock = StepClock()
    plans = ByPlan({"free": SlidingLog(1, 10, clock=clock), "pro": SlidingLog(3, 10, clock=clock)}, "free")
    assert [plans.allow("a", plan="pro") for _ in range(4)] == [True, True, True, False]
    assert [plans.allow("a"), plans.allow("a", plan="gold")] == [True, False], "both by the default plan"
    assert plans.check("b", plan="pro").limit == 3
    assert plans.reserve("a", plan="pro").delay == plans.wait("a", timeout=0).retry_after == 10.0
    assert plans.of("pro").peek("b").remaining == 2
    plans.refund("b", plan="pro")
    plans.reset("a")
    assert plans.peek("a").remaining == 1

    async def wait() -> bool:
        return bool(await plans.wait_async("a", plan="free"))

    assert run(wait(), clock)
    strict = ByPlan({"free": SlidingLog(1, 1)})
    for plan in (None, "gold"):
        with pytest.raises(ValueError, match=r"plan: expected one of \['free'\]"):
            strict.allow(plan=plan)
    with pytest.raises(ValueError, match="default"):
        ByPlan({"free": SlidingLog(1, 1)}, "gold")


def test_shards_decide_as_one_limiter_would():
    clock = StepClock()
    single, sharded = (
        SlidingLog(2, 10, clock=clock),
        Sharded(lambda: SlidingLog(2, 10, clock=clock), shards=8),
    )
    for n, key in itertools.product(range(3), [f"key {n}" for n in range(50)]):
        clock.now_ns += n * SECOND_NS // 50
        assert sharded.check(key) == single.check(key)
        assert sharded.allow(key) == single.allow(key)
        assert sharded.peek(key) == single.peek(key)
    assert len({id(sharded.of(f"key {n}")) for n in range(500)}) == 8
    sharded.reset("key 1")
    sharded.allow("key 1")
    sharded.refund("key 1")
    assert sharded.peek("key 1").remaining == 2
    assert sharded.reserve("key 2").delay == single.reserve("key 2").delay
    assert not sharded.wait("key 2", timeout=0)
    with pytest.raises(ValueError, match="shards: expected a power of two"):
        Sharded(lambda: single, shards=6)


def test_shards_survive_a_restart_with_another_number_of_them():
    clock = StepClock()
    before = Sharded(lambda: TokenBucket(5, 10, clock=clock), shards=8)
    for n in range(100):
        before.allow(f"key {n}", 1 + n % 4)
    before.allow(("a", 1))
    after = Sharded(lambda: TokenBucket(5, 10, clock=clock), shards=2)
    after.load(json.loads(json.dumps(before.dump())))
    keys = [("a", 1), *(f"key {n}" for n in range(100))]
    assert [after.peek(key) for key in keys] == [before.peek(key) for key in keys]


def test_several_threads_share_one_limit():
    """The limit is ten per 0.1 s, to keep the test short."""
    log = SlidingLog(10, 0.1)
    calls: list[str] = []

    def client() -> None:
        calls.extend("call" for _ in range(5) if log.wait("service"))

    began_ns = time.monotonic_ns()
    threads = [threading.Thread(target=client) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 30
    assert time.monotonic_ns() - began_ns >= 200_000_000, "30 calls lie in three periods at least"


def test_a_part_of_all_of_is_configured_by_name_and_keeps_its_history():
    clock = StepClock()
    both = parse("2/second; 3/hour", clock=clock)
    assert both.allow("a", 2)
    both.configure("2/second", limit=9)
    assert (both.peek("a").limit, both.peek("a").remaining) == (3, 1)
    both.configure("3/hour", limit=10)
    assert (both.peek("a").limit, both.peek("a").remaining) == (9, 7)
    for part in ("4/second", ""):
        with pytest.raises(ValueError, match="part: expected the name of one of"):
            both.configure(part, limit=1)
    sharded = Sharded(lambda: SlidingLog(1, 10, clock=clock), shards=4)
    assert [sharded.allow(f"key {n}") for n in range(9)] == [True] * 9
    sharded.configure(limit=2)
    assert [sharded.peek(f"key {n}").remaining for n in range(9)] == [1] * 9


def test_plans_have_guards_and_ticks_can_change_and_survive_a_restart():
    clock = StepClock()

    def make() -> ByPlan:
        return ByPlan({"free": SlidingLog(1, 10, clock=clock), "pro": SlidingLog(2, 10, clock=clock)}, "free")

    plans = make()

    @plans.guard(key=lambda user, plan: user, timeout=0, plan=lambda user, plan: plan)
    def serve(user: str, plan: str) -> str:
        return user

    assert [serve("a", "pro"), serve("a", "pro"), serve("a", "free")] == ["a"] * 3
    with pytest.raises(Refused):
        serve("a", "pro")
    with pytest.raises(Refused):
        plans.enforce("a", plan="pro")
    with pytest.raises(TypeError, match="needs a function to guard"), plans.guard(plan=lambda: "pro"):
        pass
    with plans.guard("b", plan="pro") as decision:
        assert decision.limit == 2
    assert next(plans.ticks("c", plan="pro")).remaining == 1
    plans.configure(plan="pro", limit=3)
    assert plans.peek("a", plan="pro").remaining == 1
    after = make()
    after.load(json.loads(json.dumps(plans.dump())))
    assert after.peek("a").remaining == 0
    with pytest.raises(ValueError, match="plan: expected one of"):
        plans.configure(plan="gold", limit=3)
    with pytest.raises(ValueError, match="saved: expected ByPlan"):
        plans.load({})

    async def methods_for_asyncio() -> list[bool]:
        decisions = [
            await plans.check_async("d"),
            await plans.peek_async("d"),
            await plans.enforce_async("e"),
        ]
        return [*map(bool, decisions), await plans.allow_async("f"), bool(await plans.reserve_async("g"))]

    assert run(methods_for_asyncio(), clock) == [True, False, True, True, True]


@pytest.mark.parametrize("pair", [(0, 1), (0, 0), (4, 6), (3, 7), (9, 0), (1, 8)])
@modest
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["a", "b", ("a", 1)]), st.integers(0, 700)), max_size=60),
)
def test_allow_of_all_equals_check_and_spends_in_all_or_none(pair, limit, play):
    """In a pair of kinds, one of them changed in place (SlidingLog), the other not."""
    clock = StepClock(50)

    def make() -> AllOf:
        first, second = (KINDS[number].make for number in pair)
        return AllOf(first(limit, 1000, clock), second(limit + 1, 2500, clock))

    quick, slow = make(), make()
    for key, ns_pass in play:
        clock.now_ns += ns_pass
        assert quick.allow(key) == slow.check(key).allowed
        assert [part.peek(key) for part in quick._parts] == [part.peek(key) for part in slow._parts]


def test_threads_that_allow_all_in_crossed_orders_neither_hang_nor_lose_a_permit():
    log, bucket = SlidingLog(300, 3600), TokenBucket(300, 3600)
    crossed = [AllOf(log, bucket), AllOf(bucket, log)] * 3
    admitted: list[bool] = []

    def work(both: AllOf) -> None:
        admitted.extend(both.allow("a") for _ in range(200))

    threads = [threading.Thread(target=work, args=(both,), daemon=True) for both in crossed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sum(admitted) == 300


@pytest.mark.parametrize(
    ("text", "limit", "period", "burst"),
    [
        ("60/min", 60, 60, None),
        ("5 per 30 secs", 5, 30, None),
        ("7/2hrs", 7, 7200, None),
        ("10/wk", 10, 604_800, None),
        ("10 per 2 weeks", 10, 1_209_600, None),
        ("100/minute burst 120", 100, 60, 120),
        ("1_000/day Burst 1_0", 1000, 86_400, 10),
    ],
)
def test_rates_as_people_write_them(text, limit, period, burst):
    bucket = parse(text, TokenBucket)
    assert (bucket._rule.limit, bucket._rule.period_ns) == (limit, period * SECOND_NS)
    assert bucket._rule.burst_asked == burst
    if burst is not None:
        with pytest.raises(ValueError, match=r"burst: .*SlidingLog.* has none, got"):
            parse(text)
