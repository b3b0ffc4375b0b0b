"""Order and spacing of departures: the four examples of TPControl, and beyond them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from enum import IntEnum
from typing import Any

import pytest

from gatekeeper.limits import PriorityScheduler
from gatekeeper.testing import run
from tests.limits.oracles import StepClock

MS_NS = 1_000_000


def departures(
    scheduler: PriorityScheduler, clock: StepClock, priorities: list[int]
) -> list[tuple[int, int]]:
    """Returns milliseconds and priority of each departure, when all arrive at once in this order."""
    departed: list[tuple[int, int]] = []

    async def worker(priority: int) -> None:
        assert await scheduler.acquire_async(priority)
        departed.append((clock.now_ns // MS_NS, priority))

    async def story() -> None:
        await asyncio.gather(*(worker(priority) for priority in priorities))

    run(story(), clock)
    return departed


def test_five_a_second_depart_two_hundred_milliseconds_apart():
    clock = StepClock()
    departed = departures(PriorityScheduler(5, 1, clock=clock), clock, [0] * 5)
    assert departed == [(0, 0), (200, 0), (400, 0), (600, 0), (800, 0)]


def test_a_burst_of_five_departs_at_once_and_the_rest_evenly():
    clock = StepClock()
    departed = departures(PriorityScheduler(5, 1, burst=5, clock=clock), clock, [0] * 10)
    assert [at for at, _ in departed] == [0, 0, 0, 0, 0, 200, 400, 600, 800, 1000]


def test_three_priorities_depart_in_their_order_and_evenly():
    clock = StepClock()
    scheduler = PriorityScheduler(5, 1, priorities=3, clock=clock)
    assert scheduler.try_acquire()
    departed = departures(scheduler, clock, [2, 1, 0] * 3)
    assert departed == [(200 * (n + 1), priority) for n, priority in enumerate([0, 0, 0, 1, 1, 1, 2, 2, 2])]


def test_ten_in_three_seconds_with_a_burst_and_three_priorities():
    clock = StepClock()
    departed = departures(PriorityScheduler(10, 3, 3, 5, clock=clock), clock, [0, 1, 2] * 4)
    assert [at for at, _ in departed] == [0] * 5 + [300 * n for n in range(1, 8)]
    assert [priority for _, priority in departed] == [0, 1, 2, 0, 1, 0, 0, 1, 1, 2, 2, 2]


def test_a_late_waiter_of_higher_priority_departs_first_and_the_spacing_holds():
    clock = StepClock()
    scheduler = PriorityScheduler(1, 1, 2, clock=clock)
    departed: list[tuple[str, int]] = []

    async def worker(name: str, priority: int, after: float) -> None:
        await asyncio.sleep(after)
        assert await scheduler.acquire_async(priority)
        departed.append((name, clock.now_ns // MS_NS))

    async def story() -> None:
        await asyncio.gather(worker("a", 1, 0), worker("b", 1, 0.1), worker("c", 1, 0.2), worker("d", 0, 1.5))

    run(story(), clock)
    assert departed == [("a", 0), ("b", 1000), ("d", 2000), ("c", 3000)]


@pytest.mark.parametrize(("age_after", "unimportant_at"), [(None, 20), (3, 6)])
def test_a_flood_of_high_priority_does_not_starve_waiters_that_age(age_after, unimportant_at):
    clock = StepClock()
    scheduler = PriorityScheduler(1, 1, 3, age_after=age_after, clock=clock)
    departed: list[str] = []

    async def worker(name: str, priority: int) -> None:
        assert await scheduler.acquire_async(priority)
        departed.append(name)

    async def story() -> None:
        tasks = [asyncio.create_task(worker("important", 0)) for _ in range(2)]
        tasks.append(asyncio.create_task(worker("unimportant", 2)))
        for _ in range(18):
            await asyncio.sleep(0.9)
            tasks.append(asyncio.create_task(worker("important", 0)))
        await asyncio.gather(*tasks)

    run(story(), clock)
    assert abs(departed.index("unimportant") - unimportant_at) <= 1


def test_waiters_that_leave_use_nothing_up_and_delay_no_other():
    clock, chance = StepClock(), random.Random(3)
    scheduler = PriorityScheduler(10, 1, 3, clock=clock)
    departed: list[int] = []

    async def worker() -> None:
        timeout = chance.choice([None, None, 0.3])
        if await scheduler.acquire_async(chance.randrange(3), timeout):
            departed.append(clock.now_ns // MS_NS)

    async def story() -> None:
        tasks = [asyncio.create_task(worker()) for _ in range(60)]
        await asyncio.sleep(0.55)
        for task in chance.sample(tasks, 15):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(story(), clock)
    assert len(departed) > 20
    assert departed == [100 * n for n in range(len(departed))]
    assert scheduler.waiting() == 0


def test_try_acquire_overtakes_no_waiter_of_its_priority_or_above():
    clock = StepClock()
    scheduler = PriorityScheduler(1, 1, 3, clock=clock)

    async def story() -> None:
        assert scheduler.try_acquire(2)
        assert not scheduler.try_acquire(0), "no departure is free"
        waiting = asyncio.create_task(scheduler.acquire_async(1))
        await asyncio.sleep(0)
        clock.now_ns += 1000 * MS_NS
        assert not scheduler.try_acquire(1)
        assert not scheduler.try_acquire(2)
        assert scheduler.try_acquire(0)
        assert await waiting

    run(story(), clock)
    for priority in (3, -1):
        with pytest.raises(ValueError, match="priority: expected 0 to 2"):
            scheduler.try_acquire(priority)


def test_a_priority_may_be_a_member_of_an_enumeration():
    class Importance(IntEnum):
        HIGH = 0
        LOW = 1

    scheduler = PriorityScheduler(2, 1, priorities=2, clock=StepClock())
    assert scheduler.try_acquire(Importance.LOW)
    with pytest.raises(ValueError, match="priority: expected 0 to 1, got 'high'"):
        scheduler.try_acquire("high")


def test_jobs_run_in_order_of_priority_and_leave_no_thread():
    scheduler = PriorityScheduler(100, 1, 2)
    ran: list[str] = []
    assert scheduler.try_acquire()
    futures = [scheduler.submit(lambda n=n: ran.append(f"low {n}"), 1) for n in range(3)]
    futures += [scheduler.submit(lambda n=n: ran.append(f"high {n}")) for n in range(3)]
    cancelled = scheduler.submit(lambda: ran.append("never"))
    assert cancelled.cancel()
    failed = scheduler.submit(lambda: 1 // 0, 1)
    began = time.monotonic()
    for future in futures:
        future.result(5)
    with pytest.raises(ZeroDivisionError):
        failed.result(5)
    assert ran == ["high 0", "high 1", "high 2", "low 0", "low 1", "low 2"]
    assert time.monotonic() - began < 5
    while scheduler._threads:
        time.sleep(0.001)
    assert "priority scheduler" not in [thread.name for thread in threading.enumerate()]


def test_a_slow_job_does_not_delay_the_next():
    scheduler = PriorityScheduler(1000, 1)
    done = threading.Event()
    slow = scheduler.submit(lambda: done.wait(10))
    assert scheduler.submit(lambda: "ran").result(5) == "ran"
    done.set()
    assert slow.result(5)
    scheduler.close(5)


def test_closing_refuses_waiters_cancels_jobs_and_waits_for_running_ones():
    scheduler = PriorityScheduler(1, 60, 2)
    started, may_end = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        may_end.wait(5)
        return "done"

    running = scheduler.submit(work)
    assert started.wait(5)
    pending = scheduler.submit(lambda: "never")
    acquired: list[bool] = []
    waiting = threading.Thread(target=lambda: acquired.append(scheduler.acquire(1)))
    waiting.start()
    while scheduler.waiting() < 2:
        time.sleep(0)
    threading.Timer(0.02, may_end.set).start()
    with scheduler:
        pass
    waiting.join(5)
    assert acquired == [False]
    assert running.result(0) == "done"
    with pytest.raises(CancelledError):
        pending.result(0)
    assert not scheduler.acquire()
    assert not scheduler.try_acquire()
    scheduler.close()
    with pytest.raises(RuntimeError, match="closed"):
        scheduler.submit(work)


def test_many_threads_and_jobs_all_have_their_turn():
    scheduler = PriorityScheduler(4000, 1, 3)
    departed: list[bool] = []

    def worker(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            departed.append(scheduler.acquire(chance.randrange(3), timeout=20))
            departed.append(scheduler.submit(lambda: True, chance.randrange(3)).result(20))

    began_ns = time.monotonic_ns()
    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert departed == [True] * 240
    assert time.monotonic_ns() - began_ns >= 239 * 250_000
    assert scheduler.waiting() == 0


def test_another_throughput_applies_at_once_and_waiters_keep_their_places():
    clock = StepClock()
    scheduler = PriorityScheduler(1, 1, 2, clock=clock)
    departed: list[tuple[str, int]] = []

    async def worker(name: str, priority: int) -> None:
        assert await scheduler.acquire_async(priority)
        departed.append((name, clock.now_ns // MS_NS))

    async def story() -> None:
        arrivals = [("a", 1), ("b", 1), ("c", 0), ("d", 1)]
        tasks = [asyncio.create_task(worker(*arrival)) for arrival in arrivals]
        await asyncio.sleep(0.5)
        scheduler.configure(limit=10)
        await asyncio.gather(*tasks)

    run(story(), clock)
    assert departed == [("a", 0), ("c", 550), ("b", 650), ("d", 750)]
    for wrong in ({"limit": 0}, {"period": 0}, {"burst": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            scheduler.configure(**wrong)


class WatchedQueue(deque[Any]):
    """A queue that counts how often all of it is read."""

    readings = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).readings += 1
        return super().__iter__()


def test_a_job_does_not_read_the_whole_queue():
    """Ten thousand jobs that are submitted at once would otherwise need a hundred million steps."""
    scheduler = PriorityScheduler(100_000, 1, priorities=2)
    scheduler._queues = [WatchedQueue(), WatchedQueue()]
    jobs = [scheduler.submit(lambda n=n: n, priority=n % 2) for n in range(200)]
    assert [job.result(10) for job in jobs] == [*range(200)]
    assert WatchedQueue.readings == 0
    scheduler.close()
