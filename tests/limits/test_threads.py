"""Limiters between threads, signals and forked processes: real ones, for a moment each."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gatekeeper.limits import SlidingLog, TokenBucket
from tests.limits.kinds import KINDS, Kind

HOUR_NS = 3_600_000_000_000
THREADS = 8


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race(body, threads: int = THREADS) -> None:
    """Run `body` in each of the threads, which start together."""
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
def test_racing_threads_get_exactly_what_there_is(kind: Kind, warm: bool):
    """Nobody is refused because somebody else was inside, either: no permit is left over."""
    for _ in range(4):
        limiter = kind.make(500, 10 * HOUR_NS, time.monotonic_ns)
        if warm:
            limiter.refund()
            assert limiter.allow()
        there = limiter.peek().remaining
        passed: list[bool] = []
        race(lambda limiter=limiter, passed=passed: passed.extend(limiter.allow() for _ in range(120)))
        assert sum(passed) == min(there, THREADS * 120)


@pytest.mark.usefixtures("tiny_switch_interval")
def test_racing_threads_on_many_keys_lose_none_while_generations_turn():
    """A period of 50 microseconds turns the generations thousands of times under the threads."""
    bucket = TokenBucket(1_000_000, 1, 5, clock=time.monotonic_ns)
    log = SlidingLog(5, 0.00005)
    race(lambda: [bucket.allow(f"{n % 7}") and log.check(f"{n % 11}") for n in range(3_000)])
    assert log.peek("new").remaining == 5


def test_an_exception_out_of_a_signal_handler_leaves_no_limiter_shut():
    """Also one that comes between taking the mutex and the block that gives it back."""

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
    answers: list[bool] = []
    other = threading.Thread(
        target=lambda: answers.extend([bucket.allow("k"), log.allow("new")]), daemon=True
    )
    other.start()
    other.join(5)
    assert answers == [True, True], "the mutex was left held by this thread"


def test_a_handler_that_asks_the_limiter_inside_which_it_interrupts_gets_an_answer():
    bucket = TokenBucket(10**6, 1)
    bucket._keys.mutex.acquire(False)
    try:
        assert bucket.allow()
    finally:
        bucket._keys.mutex.release()


def test_a_forked_child_does_not_inherit_a_mutex_that_nobody_will_give_back():
    script = """
import os, threading
from gatekeeper.limits import TokenBucket
bucket = TokenBucket(10, 1)
inside, done = threading.Event(), threading.Event()
def hold():
    bucket._keys.mutex.acquire()
    inside.set()
    done.wait()
    bucket._keys.mutex.release()
holder = threading.Thread(target=hold)
holder.start()
inside.wait()
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
    """Forgetting, waiting for nobody, and being refused all happen in the thread that asks."""
    before = threading.active_count()
    limiters = [kind.make(3, 50_000, time.monotonic_ns) for kind in KINDS]
    for n in range(300):
        for limiter in limiters:
            limiter.allow(f"key {n % 7}")
    assert threading.active_count() == before
