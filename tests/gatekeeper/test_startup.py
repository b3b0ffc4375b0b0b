"""The first requests of a process wait at the guard for the first answer of the lock feed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gatekeeper import Gate
from gatekeeper.adapters.admission_control import AdmissionController, RequestIdentity
from gatekeeper.adapters.asgi import Guard
from gatekeeper.clock import SystemClock
from gatekeeper.model import Cursor, Update
from gatekeeper.testing import ManualClock, locked
from tests.support.feed import HandFeed, a_lock

ACME = RequestIdentity("api_key:acme")
BOB = RequestIdentity("user:bob")


class SlowFeed(HandFeed):
    """A feed that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__(a_lock(ends_in=10**9))
        self.may_answer = threading.Event()
        self.asked = threading.Event()

    def fetch(self, since: Cursor | None) -> Update:
        self.asked.set()
        self.may_answer.wait(30)
        return super().fetch(since)


class NotedClock(SystemClock):
    """A system clock that notes how long waits may take."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, event: threading.Event, timeout: float) -> bool:
        self.waits.append(timeout)
        return super().wait(event, timeout)


CheckOne = Callable[[AdmissionController, RequestIdentity], bool]


def check(admission: AdmissionController, identity: RequestIdentity) -> bool:
    return admission.check(identity).decision.allowed


def check_async(admission: AdmissionController, identity: RequestIdentity) -> bool:
    return asyncio.run(admission.check_async(identity)).decision.allowed


@pytest.mark.parametrize("check_one", [check, check_async])
def test_no_request_of_a_locked_caller_passes_before_the_first_answer(check_one: CheckOne) -> None:
    feed = SlowFeed()
    with Gate(feed, startup_wait=30) as gate, ThreadPoolExecutor(8) as pool:
        admission = AdmissionController(gate, awaited=check_one is check_async)
        answers = [pool.submit(check_one, admission, ACME) for _ in range(8)]
        assert feed.asked.wait(30)
        assert not any(answer.done() for answer in answers)
        feed.may_answer.set()
        assert [answer.result(30) for answer in answers] == [False] * 8
        assert check_one(admission, BOB)


@pytest.mark.parametrize("check_one", [check, check_async])
def test_a_source_that_does_not_answer_delays_the_first_request_alone(check_one: CheckOne) -> None:
    feed, clock = SlowFeed(), NotedClock()
    gate = Gate(feed, clock=clock)
    admission = AdmissionController(gate, awaited=check_one is check_async)
    assert [check_one(admission, ACME) for _ in range(3)] == [True, True, True]
    assert clock.waits == [0.5]
    feed.may_answer.set()
    gate.close()


def test_requests_that_arrive_meanwhile_wait_for_the_rest_of_the_time() -> None:
    clock = ManualClock()
    gate = Gate(HandFeed(), clock=clock)
    assert gate.startup.is_due
    feed = gate._options.source
    assert isinstance(feed, HandFeed)
    feed.away = True
    gate.startup.wait()
    assert (clock.uptime_s(), gate.startup.is_due) == (0.5, False)
    gate.startup.wait()
    assert clock.uptime_s() == 0.5


@pytest.mark.parametrize("startup_wait", [0, 0.0])
def test_without_the_wait_no_request_is_delayed(startup_wait: float) -> None:
    feed, clock = SlowFeed(), NotedClock()
    gate = Gate(feed, clock=clock, startup_wait=startup_wait)
    assert AdmissionController(gate).check(ACME).decision.allowed
    assert clock.waits == []
    feed.may_answer.set()
    gate.close()


def test_a_gate_that_is_off_or_closed_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = NotedClock()
    closed = Gate(HandFeed(a_lock()), clock=clock)
    closed.close()
    AdmissionController(closed).check(ACME)
    monkeypatch.setenv("GATEKEEPER", "off")
    off = Gate(SlowFeed(), clock=clock)
    assert AdmissionController(off).check(ACME).decision.allowed
    assert clock.waits == []
    off._options.source.may_answer.set()
    off.close()


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan")])
def test_an_impossible_wait_raises_when_the_gate_is_made(wrong: float) -> None:
    with pytest.raises(ValueError, match="startup_wait"):
        Gate(HandFeed(), startup_wait=wrong)


def test_each_forked_process_waits_again() -> None:
    gate = Gate(HandFeed(a_lock(ends_in=10**9)))
    admission = AdmissionController(gate)
    assert not admission.check(ACME).decision.allowed
    assert not gate.startup.is_due
    child = os.fork()
    if not child:
        os._exit(0 if gate.startup.is_due and not admission.check(ACME).decision.allowed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.close()


def test_callers_that_a_test_locks_are_locked_at_once_and_the_source_is_not_asked() -> None:
    feed = SlowFeed()
    gate = Gate(feed)
    admission = AdmissionController(gate)
    with locked(gate, "user:bob"):
        assert not admission.check(BOB).decision.allowed
    assert not feed.asked.is_set()
    assert gate.startup.is_due


async def lifespan(app: Any) -> list[str]:
    """Returns the messages of an application's start."""
    sent: list[str] = []
    arrived = asyncio.Queue[dict[str, str]]()
    for kind in ("startup", "shutdown"):
        arrived.put_nowait({"type": f"lifespan.{kind}"})

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, arrived.get, send)
    return sent


async def application(scope: Any, receive: Any, send: Any) -> None:
    for kind in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{kind}"
        await send({"type": f"lifespan.{kind}.complete"})


def test_an_asgi_application_starts_after_the_first_answer_and_its_loop_continues_meanwhile() -> None:
    feed = SlowFeed()

    async def start() -> int:
        starting = asyncio.create_task(lifespan(Guard(application, gate)))
        turns = 0
        while not feed.asked.is_set() or turns < 3:
            await asyncio.sleep(0.01)
            turns += 1
        assert not starting.done()
        feed.may_answer.set()
        assert await starting == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        return gate.version

    with Gate(feed, startup_wait=30) as gate:
        assert asyncio.run(start()) >= 1
        assert not gate.startup.is_due


def test_a_source_that_does_not_answer_delays_the_start_of_an_asgi_application_and_no_request() -> None:
    feed, clock = SlowFeed(), NotedClock()
    gate = Gate(feed, clock=clock)
    guard, began_s = Guard(application, gate), time.monotonic()
    asyncio.run(lifespan(guard))
    assert time.monotonic() - began_s >= 0.5
    assert not gate.startup.is_due
    assert clock.waits == [0.5]
    feed.may_answer.set()
    gate.close()
