"""Blocks, decorators, loops, exceptions, and the methods for asyncio."""

from __future__ import annotations

import asyncio

import pytest

from gatekeeper.limits import SlidingLog, TokenBucket
from gatekeeper.model import Refused
from gatekeeper.testing import run
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock

SECOND_NS = 1_000_000_000


def test_enforce_raises_the_decision_that_check_returns():
    log = SlidingLog(1, 10, name="burst", clock=StepClock())
    assert log.enforce("a").remaining == 0
    with pytest.raises(Refused) as refused:
        log.enforce("a")
    assert refused.value.decision == log.check("a")
    assert refused.value.decision.policy == "burst"


def test_a_guarded_function_raises_when_its_timeout_does_not_suffice():
    log = SlidingLog(2, 10, clock=StepClock())

    @log.guard(key=lambda name, **_: ("greet", name), timeout=0)
    def greet(name: str, loud: bool = False) -> str:
        """Say hello."""
        return f"hello {name}"

    assert [greet("a"), greet("a", loud=True), greet("b")] == ["hello a", "hello a", "hello b"]
    with pytest.raises(Refused):
        greet("a")
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")


def test_a_guarded_coroutine_waits_for_its_turn():
    clock = StepClock()
    log = SlidingLog(1, 10, clock=clock)

    @log.guard()
    async def now() -> int:
        return clock.now_ns

    async def story() -> list[int]:
        return await asyncio.gather(now(), now(), now())

    assert asyncio.iscoroutinefunction(now)
    assert run(story(), clock) == [0, 10 * SECOND_NS, 20 * SECOND_NS]


def test_a_block_takes_one_permit():
    clock = StepClock()
    log = SlidingLog(3, 10, clock=clock)
    with log as decision:
        assert decision.remaining == 2
    with log.guard("b", cost=2):
        assert log.peek("b").remaining == 1

    async def story() -> None:
        async with log:
            assert log.peek().remaining == 1
        async with log.guard("b", timeout=0):
            assert log.peek("b").remaining == 0

    run(story(), clock)
    with pytest.raises(TypeError, match="needs a function to guard"), log.guard(key=lambda: "x"):
        pass


def test_ticks_run_at_the_pace_of_the_limiter():
    clock = StepClock()
    bucket = TokenBucket(1, 10, clock=clock)
    seen = []

    async def story() -> None:
        async for _ in bucket.ticks():
            seen.append(clock.now_ns // SECOND_NS)
            if len(seen) == 4:
                return

    run(story(), clock)
    assert seen == [0, 10, 20, 30]
    assert next(iter(TokenBucket(1, 1).ticks())).allowed
    with pytest.raises(Refused):
        next(bucket.ticks(cost=2))


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_methods_for_asyncio_decide_alike_and_do_not_suspend(kind: Kind):
    clock = StepClock()
    limiter, twin = kind.make(3, 1000, clock), kind.make(3, 1000, clock)

    def result_without_suspending(coroutine):
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        return done.value.value

    for _ in range(5):
        assert result_without_suspending(twin.peek_async("a")) == limiter.peek("a")
        assert result_without_suspending(twin.check_async("a")) == limiter.check("a")
        assert result_without_suspending(twin.allow_async("a")) == limiter.allow("a")
    assert result_without_suspending(twin.reserve_async("a")).delay == limiter.reserve("a").delay
    assert result_without_suspending(twin.enforce_async("c", 0)) == limiter.enforce("c", 0)
