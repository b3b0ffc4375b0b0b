"""Limiters used by real threads, signal handlers and forked processes."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gatekeeper.limits import SlidingLog, TokenBucket
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock

HOUR_NS = 3_600_000_000_000
THREADS = 8


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race(body, threads: int = THREADS) -> None:
    """Runs `body` in each of the threads, which start together."""
    barrier = threading.Barrier(threads)

    def run() -> None:
        barrier.wait()
        body()

    racers = [threading.Thread(target=run) for _ in range(threads)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()


@pytest.mark.usefixtures("tiny_switch_interval")
@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("warm", [True, False], ids=["warm key", "new key"])
def test_racing_threads_get_exactly_the_permits_that_there_are(kind: Kind, warm: bool):
    """No request is refused because another thread holds the mutex: no permit is left over."""
    for _ in range(4):
        limiter = kind.make(500, 10 * HOUR_NS, time.monotonic_ns)
        if warm:
            limiter.refund()
            assert limiter.allow()
        available = limiter.peek().remaining
        passed: list[bool] = []
        race(lambda limiter=limiter, passed=passed: passed.extend(limiter.allow() for _ in range(120)))
        assert sum(passed) == min(available, THREADS * 120)


@pytest.mark.usefixtures("tiny_switch_interval")
def test_racing_threads_on_many_keys_raise_nothing_while_generations_rotate():
    """A period of 50 microseconds rotates the generations thousands of times meanwhile."""
    bucket = TokenBucket(1_000_000, 1, 5, clock=time.monotonic_ns)
    log = SlidingLog(5, 0.00005)
    race(lambda: [bucket.allow(f"{n % 7}") and log.check(f"{n % 11}") for n in range(3_000)])
    assert log.peek("new").remaining == 5


def test_an_exception_raised_by_a_signal_handler_leaves_no_mutex_held():
    """Even one that comes between acquiring the mutex and the block that releases it."""

    class InterruptError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptError

    bucket, log = TokenBucket(10**6, 1), SlidingLog(5, 1)

    def decide_until_interrupted(after_s: float) -> bool:
        """Whether the timer's signal came. Bounded: a busy virtual machine may lose the timer."""
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            for _ in range(100_000):
                bucket.allow("k")
                log.allow("k")
        except InterruptError:
            return True
        return False

    interrupted = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for round_ in range(400):
            interrupted += decide_until_interrupted(0.0005 + round_ * 1e-7)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 200
    decisions: list[bool] = []
    other = threading.Thread(
        target=lambda: decisions.extend([bucket.allow("k"), log.allow("new")]), daemon=True
    )
    other.start()
    other.join(5)
    assert decisions == [True, True], "this thread still holds the mutex"


@pytest.mark.parametrize("cost", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_an_exception_on_entry_of_any_function_leaves_a_limiter_that_decides(kind: Kind, cost: int):
    """There CPython runs signal handlers; with a key that is new, young, or of the old generation."""

    class InterruptError(Exception):
        pass

    def raise_at(count: int):
        def trace(*_: object) -> None:
            nonlocal count
            count -= 1
            if count == 0:
                raise InterruptError

        return trace

    interrupted = True
    for count in itertools.count(1):
        if not interrupted:
            break
        interrupted = False
        for generations in (None, 0, 1):
            clock = StepClock()
            limiter = kind.make(10, 1000, clock)
            if generations is not None:
                for _ in range(7):  # the ring of a log begins to turn
                    limiter.allow("a", cost)
                    clock.now_ns += 300
                clock.now_ns += generations * limiter._rule.forget_after_ns
            sys.settrace(raise_at(count))
            try:
                limiter.allow("a", cost)
            except InterruptError:
                interrupted = True
            finally:
                sys.settrace(None)
            assert not limiter._keys.mutex._is_owned()
            clock.now_ns += 1
            limiter.allow("a", cost)
            clock.now_ns += 1_000_000
            assert limiter.peek("a") == limiter.peek("new")
            assert limiter.allow("a")
    assert count > 4


def test_a_thread_that_holds_the_mutex_may_call_the_limiter():
    bucket = TokenBucket(10**6, 1)
    bucket._keys.mutex.acquire(False)
    try:
        assert bucket.allow()
    finally:
        bucket._keys.mutex.release()


def test_a_forked_child_does_not_inherit_a_held_mutex():
    script = """
import os, threading
from gatekeeper.limits import TokenBucket
bucket = TokenBucket(10, 1)
held, done = threading.Event(), threading.Event()
def hold():
    bucket._keys.mutex.acquire()
    held.set()
    done.wait()
    bucket._keys.mutex.release()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if bucket.allow() else 1)
status = os.waitpid(child, 0)[1]
done.set()
holder.join()
print(os.waitstatus_to_exitcode(status), bucket.allow())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert ran.stdout.split() == ["0", "True"], ran.stderr


def test_no_limiter_starts_a_thread():
    """All decisions, and forgetting of keys, happen in the calling thread."""
    before = threading.active_count()
    limiters = [kind.make(3, 50_000, time.monotonic_ns) for kind in KINDS]
    for n in range(300):
        for limiter in limiters:
            limiter.allow(f"key {n % 7}")
    assert threading.active_count() == before
