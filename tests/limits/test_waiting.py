"""Reservations, and waiting in order as a task or a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatekeeper.limits import AllOf, FixedWindow, LeakyQueue, SlidingLog, TokenBucket
from gatekeeper.testing import run
from tests.limits.booking_plays import assert_in_order, assert_refunds_give_nothing_back, bookings
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock, worst_in_any
from tests.support.depth import deeper

SECOND_NS = 1_000_000_000
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
modest = settings(max_examples=deeper(15), deadline=None)


@every_kind
@modest
@given(st.integers(1, 6), st.sampled_from([1, 7, 10_000_000_000, 999_999_937]), bookings(most=30))
def test_bookings_keep_the_limit_and_their_order(kind: Kind, limit, period_ns, play):
    """With cancellations in between: promised times stand, and no request overtakes them."""
    clock = StepClock()
    limiter = kind.make(limit, period_ns, clock)
    admitted = assert_in_order(limiter, play, clock, clock.move, period_ns, SECOND_NS)
    assert worst_in_any(admitted, period_ns) <= (limit if kind.exact else 2 * limit)


@every_kind
@modest
@given(st.integers(1, 6), st.lists(st.integers(0, 2), max_size=12), st.integers(1, 2))
def test_a_cancelled_reservation_leaves_no_trace(kind: Kind, limit, before, cost):
    clock = StepClock()
    limiter = kind.make(limit, 1000, clock)
    for spent in before:
        clock.now_ns += 130
        limiter.allow("a", spent)
    before_booking = limiter.peek("a")
    booked = limiter.reserve("a", cost)
    if booked:
        assert booked.cancel()
        assert not booked.cancel(), "a second call gives nothing back"
    assert limiter.peek("a") == before_booking


@every_kind
@pytest.mark.parametrize("bookings_ahead", [1, 3, 30])
def test_a_refund_while_a_booking_lies_ahead_gives_nothing_of_the_present_back(kind: Kind, bookings_ahead):
    assert_refunds_give_nothing_back(kind.make(10, 1000, StepClock(50)), bookings_ahead)


def test_a_part_asked_alone_does_not_overtake_a_booking_of_all():
    """The booking lies in a log that is not full, whose oldest admission has left the period."""
    clock = StepClock()
    wide, narrow = SlidingLog(3, 10, clock=clock), SlidingLog(1, 30, clock=clock)
    both = AllOf(wide, narrow)
    assert both.allow("a")
    assert wide.allow("a")
    booked = both.reserve("a")
    assert booked.delay == 30.0
    clock.now_ns = 11 * SECOND_NS
    assert not wide.peek("a")
    assert [wide.allow("a") for _ in range(3)] == [False] * 3, "also when the key is in the young generation"
    clock.now_ns = 30 * SECOND_NS
    assert wide.allow("a")


NEW_RINGS: dict[str, Callable[[AllOf, SlidingLog], object]] = {
    "refund": lambda both, log: log.refund("a"),
    "configure": lambda both, log: log.configure(limit=9),
    "load": lambda both, log: log.load(log.dump()),
    "cancel": lambda both, log: both.reserve("a").cancel(),
}


@pytest.mark.parametrize("change", NEW_RINGS.values(), ids=NEW_RINGS)
def test_no_change_of_a_log_forgets_that_a_booking_lies_ahead(change):
    clock = StepClock()
    log, bucket = SlidingLog(5, 60, clock=clock), TokenBucket(1, 10, clock=clock)
    both = AllOf(log, bucket)
    assert both.allow("a")
    assert both.reserve("a").delay == 10
    change(both, log)
    assert not log.allow("a")
    clock.now_ns += 10 * SECOND_NS
    assert log.allow("a")


@every_kind
def test_bookings_survive_a_slower_limit(kind: Kind):
    """However far ahead they then lie, and however often the generations rotate meanwhile."""
    clock = StepClock()
    limiter = kind.make(4, 1000, clock)
    for _ in range(12):
        assert limiter.reserve("a")
    limiter.configure(limit=2, period=4e-6)
    promised = limiter.peek("a")
    assert promised.retry_after > 0
    end_ns = clock.now_ns + round(promised.retry_after * SECOND_NS)
    number = 0
    while clock.now_ns < end_ns - 1:
        clock.now_ns = min(clock.now_ns + 97, end_ns - 1)
        limiter.allow(f"another {number}")
        number += 1
        assert not limiter.peek("a"), f"{end_ns - clock.now_ns} ns before the promised moment"
    clock.now_ns = end_ns
    assert limiter.allow("a")


@every_kind
def test_a_reservation_is_not_forgotten_while_it_lies_ahead(kind: Kind):
    """Generations rotate many times before the last of them is due."""
    clock = StepClock()
    limiter = kind.make(2, 1000, clock)
    booked = [limiter.reserve("a") for _ in range(20)]
    while clock.now_ns < booked[-1].due_ns - 1:
        clock.now_ns = min(clock.now_ns + 50, booked[-1].due_ns - 1)
        limiter.allow("another")
        assert not limiter.peek("a")


def test_a_reservation_has_its_delay_and_is_not_made_beyond_max_wait():
    log = SlidingLog(1, 10, clock=StepClock())
    assert log.reserve().delay == 0.0
    assert (bool(late := log.reserve(max_wait=9.9)), late.delay) == (False, 10.0)
    assert (bool(never := log.reserve(cost=2)), never.delay) == (False, None)
    assert [log.reserve(max_wait=25).delay for _ in range(2)] == [10.0, 20.0]
    with pytest.raises(ValueError, match="max_wait: expected seconds from 0"):
        log.reserve(max_wait=-1)


def test_a_compact_log_books_four_periods_ahead_and_no_further():
    clock = StepClock()
    log = SlidingLog(1, 10, compact=True, clock=clock)
    delays = [log.reserve().delay for _ in range(6)]
    assert [delay // 10 for delay in delays[:4]] == [0, 1, 2, 3]
    assert not log.reserve()
    assert log.reserve().decision.retry_after > 0


@every_kind
def test_waiting_tasks_are_served_in_order_at_the_exact_time(kind: Kind):
    clock = StepClock()
    limiter = kind.make(2, 10 * SECOND_NS, clock)
    served: list[tuple[int, int]] = []

    async def wait_once(number: int) -> None:
        assert await limiter.wait_async()
        served.append((number, clock.now_ns))

    async def story() -> None:
        await asyncio.gather(*(wait_once(number) for number in range(8)))

    run(story(), clock)
    twin_clock = StepClock()
    twin = kind.make(2, 10 * SECOND_NS, twin_clock)
    due = [twin.reserve().due_ns for _ in range(8)]
    assert [number for number, _ in served] == list(range(8))
    assert all(0 <= at - expected <= 1_000 for (_, at), expected in zip(served, due, strict=True))


@every_kind
def test_a_cancelled_task_spends_nothing_and_delays_no_other(kind: Kind):
    """The first waiter and one in the middle leave; the others are served as if those never came."""
    clock = StepClock()
    limiter = kind.make(1, 10 * SECOND_NS, clock)
    served: list[tuple[str, float]] = []

    async def wait_once(name: str) -> None:
        await limiter.wait_async()
        served.append((name, clock.now_ns))

    async def story() -> None:
        while limiter.allow():
            pass
        tasks = {name: asyncio.create_task(wait_once(name)) for name in "abcd"}
        await asyncio.sleep(0.5)
        tasks["a"].cancel()
        tasks["c"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    run(story(), clock)
    twin = kind.make(1, 10 * SECOND_NS, StepClock())
    while twin.allow():
        pass
    due = [twin.reserve().due_ns for _ in range(2)]
    assert [name for name, _ in served] == ["b", "d"]
    assert all(0 <= at - expected <= 1_000 for (_, at), expected in zip(served, due, strict=True))


def test_a_first_waiter_is_refused_at_once_if_its_timeout_does_not_suffice_and_others_in_time():
    clock = StepClock()
    log = SlidingLog(1, 10, clock=clock)

    async def story() -> list[tuple[bool, int]]:
        await log.wait_async()
        first = asyncio.create_task(log.wait_async())
        await asyncio.sleep(0)
        behind = await log.wait_async(timeout=3)
        refused_at = clock.now_ns
        other_key = await log.wait_async("another key", timeout=0)
        return [
            (bool(behind), refused_at),
            (bool(other_key), clock.now_ns),
            (bool(await first), clock.now_ns),
        ]

    behind, other, first = run(story(), clock)
    assert behind == (False, 3 * SECOND_NS)
    assert other == (True, 3 * SECOND_NS)
    assert first == (True, 10 * SECOND_NS)
    alone = SlidingLog(1, 10)
    alone.allow()
    began = time.monotonic()
    assert not alone.wait(timeout=9)
    assert not alone.wait(cost=2)
    assert time.monotonic() - began < 5


def test_a_full_queue_refuses():
    clock = StepClock()
    queue = LeakyQueue(1, 10, queue=2, clock=clock)

    async def story() -> list[bool]:
        return [bool(decision) for decision in await asyncio.gather(*(queue.wait_async() for _ in range(5)))]

    assert run(story(), clock) == [True, True, True, False, False]
    assert clock.now_ns == 20 * SECOND_NS
    reservations = LeakyQueue(1, 10, queue=2, clock=StepClock())
    assert [reservations.reserve().delay for _ in range(3)] == [0.0, 10.0, 20.0]
    full = reservations.reserve()
    assert (bool(full), full.decision.retry_after) == (False, 10.0)


def test_threads_are_served_in_order_of_arrival():
    bucket = TokenBucket(200, 1, burst=1)
    served: list[int] = []

    def wait_once(number: int) -> None:
        if bucket.wait("k"):
            served.append(number)

    bucket.allow("k")
    threads = [threading.Thread(target=wait_once, args=(number,)) for number in range(6)]
    for number, thread in enumerate(threads):
        thread.start()
        while bucket._keys.waiters.waiting("k") + len(served) <= number:
            time.sleep(0)
    for thread in threads:
        thread.join()
    assert served == list(range(6))


def test_a_thread_waits_as_long_as_the_limit_requires():
    log = SlidingLog(3, 0.03)
    began_ns = time.monotonic_ns()
    assert all(log.wait() for _ in range(10))
    assert time.monotonic_ns() - began_ns >= 90_000_000


def test_threads_and_tasks_wait_in_one_queue():
    bucket = TokenBucket(10, 1, burst=1)
    served: list[str] = []

    def thread() -> None:
        assert bucket.wait()
        served.append("thread")

    async def tasks() -> None:
        async def task() -> None:
            assert await bucket.wait_async()
            served.append("task")

        first = asyncio.create_task(task())
        await asyncio.sleep(0)
        other = threading.Thread(target=thread)
        other.start()
        while bucket._keys.waiters.waiting("") < 2 and not served:  # unless the thread starts too late
            await asyncio.sleep(0)
        await asyncio.gather(first, task())
        await asyncio.to_thread(other.join)

    bucket.allow()
    asyncio.run(tasks())
    assert served == ["task", "thread", "task"]


def test_waiters_of_a_closed_loop_delay_no_other_waiter():
    log = FixedWindow(1, 0.05)
    loop = asyncio.new_event_loop()
    log.allow()
    waiting = [log.wait_async() for _ in range(2)]
    stuck = [loop.create_task(coroutine) for coroutine in waiting]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    log._keys.exclusively(lambda: log._keys.waiters.wake(""))
    assert log.wait(timeout=5)
    for task, coroutine in zip(stuck, waiting, strict=True):
        task._log_destroy_pending = False
        coroutine.close()
