"""Wrong use is reported where it is written: arguments, keys, decorators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from gatekeeper.limits import (
    AllOf,
    AsyncKeyedScheduler,
    ByPlan,
    Concurrency,
    FixedWindow,
    LeakyQueue,
    PriorityScheduler,
    Sharded,
    SlidingLog,
    TokenBucket,
    parse,
)
from gatekeeper.model import Refused
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: SlidingLog(2, "1m"),
            "period: expected seconds as a number, such as 60, or a timedelta, got '1m'",
        ),
        (lambda: TokenBucket.strict(2, None), "period: expected seconds"),
        (lambda: SlidingLog(2, True), "period: expected seconds"),
        (lambda: SlidingLog(2, 1).configure(period="1m"), "period: expected seconds"),
        (lambda: PriorityScheduler(2, "1m"), "period: expected seconds"),
        (lambda: PriorityScheduler(2, 1, age_after="5"), "age_after: expected seconds"),
        (lambda: SlidingLog(2, 1, name=3), "name: expected text, got 3"),
        (lambda: Concurrency(2, name=3), "name: expected text, got 3"),
        (lambda: AllOf(SlidingLog(2, 1), name=3), "name: expected text, got 3"),
        (lambda: SlidingLog(2, 1, clock=3), "clock: expected a function, got 3"),
        (lambda: Concurrency(2, clock=3), "clock: expected a function, got 3"),
        (lambda: SlidingLog(2, 1, compact="no"), "compact: expected True or False, got 'no'"),
        (lambda: FixedWindow(2, 1, aligned=1), "aligned: expected True or False, got 1"),
        (lambda: TokenBucket(1, 1, store=object()), "store: expected a store, such as RedisStore"),
        (lambda: Concurrency(1, store=object()), "store: expected a store, such as RedisStore"),
        (lambda: SlidingLog(2, 1).wait("a", timeout="3"), "timeout: expected seconds"),
        (lambda: SlidingLog(2, 1).reserve("a", max_wait="3"), "max_wait: expected seconds"),
        (
            lambda: SlidingLog(2, 1).check_many("abc"),
            "keys: expected several keys, such as a list, got 'abc'",
        ),
        (
            lambda: AllOf(TokenBucket(1, 1), Concurrency(1)),
            "AllOf: expected limiters of a rate, got <Concurrency",
        ),
        (lambda: AllOf([TokenBucket(1, 1)]), "AllOf: expected limiters of a rate"),
        (lambda: Sharded(TokenBucket(1, 1)), "make: expected a function, got <TokenBucket"),
        (lambda: Sharded(lambda: 3), "make: expected a limiter, got 3"),
        (lambda: ByPlan(3), "limiters: expected a limiter per plan"),
        (lambda: ByPlan({"free": 3}), "free: expected a limiter, got 3"),
        (lambda: ByPlan({"free": SlidingLog}), "free: expected a limiter, got <class"),
        (lambda: parse(None), "text: expected text, got None"),
        (lambda: parse(b"1/s"), "text: expected text, got b'1/s'"),
        (lambda: PriorityScheduler(2, 1).submit("no function"), "function: expected a function"),
    ],
)
def test_an_argument_of_another_type_is_named(wrong: Callable[[], object], message: str):
    with pytest.raises(TypeError) as raised:
        wrong()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("key", [None, b"acme", 7, ["a"], ("a", None), ("a", 1.5)])
@pytest.mark.parametrize("call", ["allow", "check", "peek", "reserve", "wait"])
def test_a_key_of_another_type_is_not_counted(call: str, key: Any):
    limiters = [kind.make(5, 1000, StepClock()) for kind in KINDS] + [
        AllOf(SlidingLog(1, 1), SlidingLog(2, 1))
    ]
    for limiter in limiters:
        if isinstance(key, list):
            with pytest.raises(TypeError):  # dict's own message
                getattr(limiter, call)(key)
        else:
            with pytest.raises(TypeError, match="key: expected text, or a tuple of text and whole numbers"):
                getattr(limiter, call)(key)
    with pytest.raises(TypeError):
        Concurrency(1).allow(key)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("call", ["allow", "check"])
def test_a_cost_that_equals_1_leaves_no_float_behind(kind: Kind, call: str) -> None:
    limiter = kind.make(3, 10, StepClock())
    assert getattr(limiter, call)("a", 1.0)
    numbers = [number for _, state in limiter.dump()["keys"] for number in state]
    assert {type(number) for number in numbers} == {int}


def test_a_guard_is_checked_when_it_is_written():
    log = SlidingLog(5, 1)
    for timeout, error in ((-2, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="timeout: expected seconds"):
            log.guard(timeout=timeout)
    with pytest.raises(ValueError, match="cost: expected a whole number"):
        log.guard("a", -1)
    with pytest.raises(TypeError, match="expected one key, got 'a' and 'b'"):
        log.guard("a", key="b")
    plans = ByPlan({"free": log}, default="free")
    for limiter in (log, plans, Concurrency(1), Sharded(lambda: SlidingLog(1, 1))):
        with pytest.raises(TypeError, match="with parentheses"):

            @limiter.guard
            def search() -> None: ...


def test_a_guard_does_not_take_generator_functions():
    log = SlidingLog(5, 1)

    def lines() -> Iterator[str]:
        yield "a"

    async def pages() -> AsyncIterator[str]:
        yield "a"

    for function in (lines, pages):
        with pytest.raises(TypeError, match=r"is a generator function.*write `with limiter.guard"):
            log.guard()(function)
    with pytest.raises(TypeError, match="guard: expected a function, got 3"):
        log.guard()(3)  # type: ignore[arg-type]  # that is the test


def test_a_guard_awaits_an_object_whose_call_is_a_coroutine_function():
    at_work = Concurrency(1)

    class Search:
        async def __call__(self, word: str) -> str:
            await asyncio.sleep(0)
            assert at_work.in_flight() == 1
            return word

    guarded = at_work.guard(timeout=0)(Search())

    async def story() -> None:
        assert await guarded("a") == "a"
        with pytest.raises(Refused):
            await asyncio.gather(guarded("a"), guarded("b"))

    asyncio.run(story())
    assert at_work.in_flight() == 0


@pytest.mark.parametrize("overflow", ["shared", "deny", "allow"])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_cost_above_the_limit_does_not_pass_by_overflow(kind: Kind, overflow: str):
    limiter = kind.make(3, 1000, StepClock())
    limiter._keys.max_keys, limiter._keys.overflow = 1, overflow
    both = AllOf(limiter, SlidingLog(100, 1, clock=StepClock()))
    assert limiter.allow("a")
    for asked in (limiter, both):
        assert not asked.allow("b", 4)
        refused = asked.check("c", 4)
        assert (refused.allowed, refused.retry_after) == (False, None)
        assert not asked.peek("c", 4)
        assert not asked.reserve("d", 4)


@pytest.mark.parametrize(
    "make", [lambda **more: TokenBucket(10, 1, **more), lambda **more: TokenBucket.strict(99, 1, **more)]
)
def test_the_limit_of_a_bucket_is_its_burst(make: Callable[..., TokenBucket]):
    bucket = make(burst=50, max_keys=1, overflow="deny", clock=StepClock())
    passed = bucket.check("a")
    assert (passed.limit, passed.remaining) == (50, 49)
    assert [bucket.peek("a").limit, bucket.check("a", 50).limit, bucket.check("b").limit] == [50] * 3


def test_all_limiters_have_a_repr():
    assert repr(Sharded(lambda: SlidingLog(2, 1), 4)) == "<Sharded <SlidingLog '': 2 in any 1 s> in 4 shards>"
    assert repr(ByPlan({"free": SlidingLog(2, 1)}, default="free")) == (
        "<ByPlan {'free': <SlidingLog '': 2 in any 1 s>}, default='free'>"
    )
    assert repr(PriorityScheduler(10, 1, 3)) == "<PriorityScheduler: 10 per 1 s, 1 at once, 3 priorities>"
    assert repr(AsyncKeyedScheduler(2)) == "<AsyncKeyedScheduler: 2 workers, 0 keys with jobs>"
    log = SlidingLog(2, 1)
    assert (
        repr(log.guard("a")) == "<PermitGuard <SlidingLog '': 2 in any 1 s>, key='a', cost=1, timeout=None>"
    )
    assert repr(log.ticks("a")) == "<Ticks <SlidingLog '': 2 in any 1 s>, key='a', cost=1>"
    assert repr(LeakyQueue(2, 1)) == "<LeakyQueue '': 2 per 1 s, one by one>"
