"""Concurrency: never above the limit, even if the work raises or is cancelled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from gatekeeper.limits import Concurrency
from gatekeeper.model import Refused
from gatekeeper.testing import ManualClock, run
from tests.limits.oracles import StepClock


def test_never_more_than_the_limit_are_in_flight_when_work_raises_or_is_cancelled():
    clock, chance = StepClock(), random.Random(5)
    limiter = Concurrency(3, clock=clock)
    in_flight, most = Counter(), Counter()

    async def work(key: str, fails: bool) -> None:
        async with limiter.guard(key):
            in_flight[key] += 1
            most[key] = max(most[key], in_flight[key])
            try:
                await asyncio.sleep(chance.random())
                if fails:
                    raise OSError
            finally:
                in_flight[key] -= 1

    async def story() -> None:
        tasks = []
        for n in range(300):
            tasks.append(asyncio.create_task(work("ab"[n % 2], chance.random() < 0.3)))
            await asyncio.sleep(chance.random() / 10)
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(story(), clock)
    assert most == {"a": 3, "b": 3}
    assert limiter.in_flight("a") == limiter.in_flight("b") == 0
    assert not limiter._waiters.queues


def test_threads_that_wait_and_raise_leave_no_permit_in_use():
    limiter = Concurrency(2)
    in_flight, most, passed = 0, 0, 0
    mutex = threading.Lock()

    @limiter.guard()
    def work(fails: bool) -> None:
        nonlocal in_flight, most, passed
        with mutex:
            in_flight += 1
            most = max(most, in_flight)
            passed += 1
        with mutex:
            in_flight -= 1
        if fails:
            raise OSError

    def worker(seed: int) -> None:
        for n in range(100):
            try:
                work((n + seed) % 3 == 0)
            except OSError:
                continue

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (passed, limiter.in_flight()) == (800, 0)
    assert most <= 2


def test_waiters_are_not_overtaken_and_are_served_in_order():
    clock = StepClock()
    limiter = Concurrency(2, clock=clock)
    served: list[str] = []

    async def one(name: str, cost: int) -> None:
        assert await limiter.wait_async(cost=cost)
        served.append(name)

    async def story() -> None:
        assert limiter.allow()
        large = asyncio.create_task(one("large", 2))
        await asyncio.sleep(0)
        small = asyncio.create_task(one("small", 1))
        await asyncio.sleep(0)
        assert not limiter.allow(), "there is room for one, but a waiter came first"
        limiter.release()
        await large
        limiter.release(cost=2)
        await small

    run(story(), clock)
    assert served == ["large", "small"]


def test_a_refusal_has_no_retry_after():
    limiter = Concurrency(1, name="workers")
    assert limiter.check().remaining == 0
    refused = limiter.check()
    assert (refused.allowed, refused.policy, refused.retry_after) == (False, "workers", None)
    assert not limiter.wait(timeout=0.01)
    assert not limiter.wait(cost=2), "at once, because it never passes"
    with pytest.raises(Refused), limiter.guard(timeout=0):
        pass
    limiter.release()
    limiter.release()
    assert limiter.peek().remaining == 1


def test_a_higher_limit_admits_waiters():
    clock = StepClock()
    limiter = Concurrency(1, clock=clock)

    async def story() -> None:
        limiter.allow()
        waiting = asyncio.create_task(limiter.wait_async())
        await asyncio.sleep(0)
        limiter.configure(2)
        assert await waiting

    run(story(), clock)
    assert limiter.in_flight() == 2


def test_waiting_on_a_manual_clock_moves_the_clock():
    clock = ManualClock()
    printer = Concurrency(1, clock=clock)
    assert printer.allow("a")
    assert not printer.wait("a", timeout=3600)
    assert clock.uptime_s() == 3600
