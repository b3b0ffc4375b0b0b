"""The pytest plugin: a clock moved by hand, limiters that start afresh, locked callers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from gatekeeper import (
    AllOf,
    ByPlan,
    Concurrency,
    Gate,
    LeakyQueue,
    PriorityScheduler,
    Sharded,
    SlidingLog,
    TokenBucket,
)
from gatekeeper.testing import ManualClock, fresh, run
from tests.support.feed import HandFeed

UPLOADS = SlidingLog(limit=2, period=60)  # as in an application's module
GATE = Gate(HandFeed())


@pytest.mark.parametrize("test", ["the first", "the second"])
def test_a_limiter_that_all_tests_share_starts_afresh_in_each(test, fresh_limiters, manual_clock):
    fresh_limiters(UPLOADS)
    assert [UPLOADS.allow(), UPLOADS.allow(), UPLOADS.allow()] == [True, True, False]
    manual_clock.advance(60)
    assert UPLOADS.allow()


@pytest.mark.parametrize("test", ["the first", "the second"])
def test_callers_are_locked_for_one_test(test, lock_callers):
    assert GATE.allow("api_key:acme")
    lock_callers(GATE, "api_key:acme", policy="daily")
    assert GATE.check("api_key:acme").policy == "daily"


def test_composite_limiters_start_afresh_and_continue_afterwards():
    both = AllOf(SlidingLog(3, 60), TokenBucket(2, 60))
    plans = ByPlan({"free": SlidingLog(1, 60)}, "free")
    sharded = Sharded(lambda: SlidingLog(1, 60), shards=2)
    for limiter in (both, plans, sharded):
        assert limiter.allow("a")
    with fresh(both, plans, sharded) as clock:
        assert [both.allow("a"), both.allow("a"), both.allow("a")] == [True, True, False]
        assert plans.allow("a")
        assert sharded.allow("a")
        clock.advance(60)
        assert both.allow("a")
    assert both.peek("a").remaining == 1
    assert not plans.allow("a")
    assert not sharded.allow("a")
    with pytest.raises(TypeError, match="a limiter of a rate in this process"), fresh(Concurrency(1)):
        pass


def test_a_thread_that_waits_moves_the_clock(manual_clock: ManualClock):
    queue = LeakyQueue(limit=1, period=3600, clock=manual_clock)
    assert [bool(queue.wait()) for _ in range(3)] == [True] * 3
    assert manual_clock.uptime_s() == 7200
    scheduler = PriorityScheduler(limit=1, period=3600, clock=manual_clock)
    assert [scheduler.acquire() for _ in range(2)] == [True] * 2
    assert not scheduler.acquire(timeout=60)
    assert manual_clock.uptime_s() == 7200 + 3660


def test_sleeping_tasks_move_the_clock_to_when_the_first_wakes(manual_clock: ManualClock):
    log, served = SlidingLog(limit=1, period=100, clock=manual_clock), []

    async def serve(name: str) -> None:
        await log.wait_async()
        served.append((name, manual_clock.uptime_s()))

    async def main() -> str:
        tasks = [asyncio.create_task(serve(name)) for name in "abc"]
        await asyncio.sleep(50)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return "done"

    assert run(main(), manual_clock) == "done"
    assert served == [("a", 0.0), ("c", 100.0)]


def test_pytest_finds_the_fixtures_and_imports_nothing_for_them():
    assert [point.value for point in entry_points(group="pytest11", name="gatelock")] == [
        "gatekeeper.testing.plugin"
    ]
    code = (
        "import sys; import gatekeeper.testing.plugin; print(*(m for m in sys.modules if 'gatekeeper' in m))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert set(loaded) == {"gatekeeper", "gatekeeper.testing", "gatekeeper.testing.plugin"}
