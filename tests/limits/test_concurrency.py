"""Concurrency: never above the limit, whatever happens to the work."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from gatekeeper.limits import Concurrency
from gatekeeper.model import Refused
from gatekeeper.testing import ManualClock, run
from tests.limits.oracles import HandClock


def test_never_more_than_the_limit_are_at_work_when_bodies_raise_or_are_cancelled():
    clock, chance = HandClock(), random.Random(5)
    limiter = Concurrency(3, clock=clock)
    at_work, most = Counter(), Counter()

    async def work(key: str, fails: bool) -> None:
        async with limiter.guard(key):
            at_work[key] += 1
            most[key] = max(most[key], at_work[key])
            try:
                await asyncio.sleep(chance.random())
                if fails:
                    raise OSError
            finally:
                at_work[key] -= 1

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
    assert not limiter._waiters._queues


def test_threads_that_wait_and_raise_leave_nobody_in_flight():
    limiter = Concurrency(2)
    at_work, most, passed = 0, 0, 0
    mutex = threading.Lock()

    @limiter.guard()
    def work(fails: bool) -> None:
        nonlocal at_work, most, passed
        with mutex:
            at_work += 1
            most = max(most, at_work)
            passed += 1
        with mutex:
            at_work -= 1
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


def test_who_waits_is_not_overtaken_and_is_served_in_order():
    clock = HandClock()
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
        assert not limiter.allow(), "there is room for one, but others came first"
        limiter.release()
        await large
        limiter.release(cost=2)
        await small

    run(story(), clock)
    assert served == ["large", "small"]


def test_a_refusal_cannot_say_when():
    limiter = Concurrency(1, name="workers")
    assert limiter.check().remaining == 0
    refused = limiter.check()
    assert (refused.allowed, refused.policy, refused.retry_after) == (False, "workers", None)
    assert not limiter.wait(timeout=0.01)
    assert not limiter.wait(cost=2), "at once: it never will"
    with pytest.raises(Refused), limiter.guard(timeout=0):
        pass
    limiter.release()
    limiter.release()
    assert limiter.peek().remaining == 1


def test_a_higher_limit_lets_those_in_who_wait():
    clock = HandClock()
    limiter = Concurrency(1, clock=clock)

    async def story() -> None:
        limiter.allow()
        waiting = asyncio.create_task(limiter.wait_async())
        await asyncio.sleep(0)
        limiter.configure(2)
        assert await waiting

    run(story(), clock)
    assert limiter.in_flight() == 2


def test_on_a_clock_moved_by_hand_waiting_moves_it():
    clock = ManualClock()
    printer = Concurrency(1, clock=clock)
    assert printer.allow("a")
    assert not printer.wait("a", timeout=3600)
    assert clock.uptime_s() == 3600
