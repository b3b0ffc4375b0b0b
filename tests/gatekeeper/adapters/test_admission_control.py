"""What every adapter does with a request, whatever the framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from gatekeeper import ALLOWED, Concurrency, Decision, Gate, LeakyQueue, SlidingLog
from gatekeeper.adapters import asgi, fastapi, flask, wsgi
from gatekeeper.adapters.admission_control import (
    AdmissionController,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.caller_extraction import TrustedProxies
from gatekeeper.adapters.queued_requests import Waiting
from gatekeeper.limits.redis import RedisStore
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock, run
from tests.support.feed import a_lock

BOB = RequestIdentity("api_key:bob", "192.0.2.7")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    gate = Gate(FixedSource(a_lock("api_key:acme"), a_lock("api_key:bob", action="tag")), clock=clock)
    assert gate.ready(1.0)
    return gate


class Breaking:
    """A limiter of the application's own, without async forms, whose store is away."""

    def check(self, key: str, cost: int) -> Decision:
        raise ConnectionError("the store is away")

    def refund(self, key: str, cost: int) -> None:
        raise AssertionError("nothing was taken")


class Hanging(Breaking):
    """One that is waited for and never answers."""

    async def check_async(self, key: str, cost: int) -> Decision:
        await asyncio.sleep(1000)
        return ALLOWED


class TestWhatIsTaken:
    def test_a_limiter_that_fails_gives_back_what_was_taken_before_it(self, gate: Gate) -> None:
        work = Concurrency(1)
        with pytest.raises(ConnectionError):
            AdmissionController(gate, [work, Breaking()]).ask(BOB)
        with pytest.raises(ConnectionError):
            asyncio.run(AdmissionController(gate, [work, Breaking()]).ask_async(BOB))
        assert work.in_flight("api_key:bob") == 0

    def test_who_goes_away_while_a_limiter_is_waited_for_has_taken_nothing(self, gate: Gate) -> None:
        work = Concurrency(1)

        async def asks() -> None:
            await asyncio.wait_for(AdmissionController(gate, [work, Hanging()]).ask_async(BOB), 0.01)

        with pytest.raises(TimeoutError):
            asyncio.run(asks())
        assert work.in_flight("api_key:bob") == 0

    def test_a_refund_leaves_what_is_at_work_to_its_end(self, gate: Gate, clock: ManualClock) -> None:
        work, burst = Concurrency(3), SlidingLog(5, 10, clock=clock)
        checkpoint = AdmissionController(gate, [work, burst])
        verdict = checkpoint.ask(BOB._replace(cost=2))
        checkpoint.refund(verdict)
        assert (work.in_flight("api_key:bob"), burst.peek("api_key:bob").remaining) == (2, 5)
        checkpoint.leave(verdict)
        assert work.in_flight("api_key:bob") == 0

    def test_only_limiters_of_work_need_to_be_told_of_its_end(self, gate: Gate) -> None:
        queue = Waiting(LeakyQueue(1, 1), timeout=1)
        assert not AdmissionController(gate, [SlidingLog(1, 1), Breaking()]).holds
        assert AdmissionController(gate, [SlidingLog(1, 1), Concurrency(1)]).holds
        checkpoint = AdmissionController(gate, [queue])
        checkpoint.leave(checkpoint.ask(BOB))

    def test_in_shadow_a_refused_request_takes_nothing(self, gate: Gate, clock: ManualClock) -> None:
        wide, narrow = SlidingLog(9, 10, clock=clock), SlidingLog(1, 10, clock=clock)
        checkpoint = AdmissionController(gate, [wide, narrow], shadow=True)
        verdicts = [checkpoint.ask(BOB) for _ in range(4)]
        assert [verdict.decision.shadow for verdict in verdicts] == [False, True, True, True]
        assert [len(verdict.spent) for verdict in verdicts] == [2, 0, 0, 0]
        assert wide.peek("api_key:bob").remaining == 8


def test_tags_of_the_gate_stay_with_the_decision_of_a_limiter(gate: Gate, clock: ManualClock) -> None:
    verdict = AdmissionController(gate, [SlidingLog(9, 10, clock=clock, name="burst")]).ask(BOB)
    assert (verdict.decision.tags, verdict.decision.remaining, verdict.limiter) == (("daily",), 8, "burst")


@pytest.mark.parametrize(
    ("who", "key"),
    [
        (RequestIdentity("api_key:bob", "192.0.2.7"), "api_key:bob"),
        (RequestIdentity("", "192.0.2.7"), "address:192.0.2.7"),
        (RequestIdentity("", "2001:db8:1:2:3:4:5:6"), "address:2001:db8:1:2::/64"),
        (RequestIdentity(), ""),
    ],
)
def test_a_limiter_counts_by_the_caller_or_by_its_address(who: RequestIdentity, key: str) -> None:
    assert who.key == key


class TestWaiting:
    def test_who_waits_passes_when_its_turn_comes(self, gate: Gate, clock: ManualClock) -> None:
        checkpoint = AdmissionController(gate, [Waiting(LeakyQueue(1, 2, clock=clock), timeout=5)])

        async def ask() -> list[tuple[bool, float]]:
            came = []
            for _ in range(3):
                verdict = await checkpoint.ask_async(BOB)
                came.append((verdict.decision.allowed, clock.uptime_s()))
            return came

        assert run(ask(), clock) == [(True, 0.0), (True, 2.0), (True, 4.0)]

    def test_who_would_wait_too_long_is_refused_at_once(self, gate: Gate, clock: ManualClock) -> None:
        checkpoint = AdmissionController(gate, [Waiting(LeakyQueue(1, 10, clock=clock), timeout=5)])
        assert checkpoint.ask(BOB).decision.allowed
        assert not checkpoint.ask(BOB).decision.allowed
        assert clock.uptime_s() == 0.0

    def test_a_refund_goes_to_the_limiter_that_was_waited_for(self, gate: Gate, clock: ManualClock) -> None:
        burst = SlidingLog(5, 10, clock=clock, name="burst")
        checkpoint = AdmissionController(gate, [Waiting(burst, timeout=1)])
        verdict = checkpoint.ask(BOB)
        assert (verdict.limiter, burst.peek("api_key:bob").remaining) == ("burst", 4)
        checkpoint.leave(verdict)
        assert burst.peek("api_key:bob").remaining == 4, "nothing is at work"
        checkpoint.refund(verdict)
        assert burst.peek("api_key:bob").remaining == 5

    def test_work_waits_for_room(self, gate: Gate) -> None:
        work = Concurrency(1)
        waiting = AdmissionController(gate, [Waiting(work, timeout=5)])

        async def two() -> list[str]:
            said: list[str] = []

            async def works(name: str) -> None:
                verdict = await waiting.ask_async(BOB)
                said.append(f"{name} begins")
                await asyncio.sleep(0.01)
                said.append(f"{name} ends")
                await waiting.leave_async(verdict)

            await asyncio.gather(works("a"), works("b"))
            return said

        assert asyncio.run(two()) == ["a begins", "a ends", "b begins", "b ends"]

    @pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
    def test_nobody_waits_for_ever(self, timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout: expected seconds from 0"):
            Waiting(LeakyQueue(1, 1), timeout)


class TestStores:
    """In the wrong form a limiter would raise at each request, which were as many refusals."""

    LIMITERS = (
        lambda store: SlidingLog(1, 1, store=store),
        lambda store: Concurrency(1, store=store),
        lambda store: Waiting(SlidingLog(1, 1, store=store), timeout=1),
    )

    @pytest.mark.parametrize("make", LIMITERS, ids=["a rate", "work", "waiting"])
    def test_a_store_has_the_form_of_the_server(self, make: Callable[[RedisStore], object]) -> None:
        plain, awaited = (RedisStore(kind.from_url("redis://127.0.0.1")) for kind in (Redis, AsyncRedis))
        require_store_client([make(plain), SlidingLog(1, 1), Breaking()], awaited=False)
        require_store_client([make(awaited), SlidingLog(1, 1), Breaking()], awaited=True)
        with pytest.raises(ValueError, match=r"a client of redis\.asyncio\.Redis, not one that blocks"):
            require_store_client([make(plain)], awaited=True)
        with pytest.raises(ValueError, match=r"a client of redis\.Redis, as nobody awaits here"):
            require_store_client([make(awaited)], awaited=False)

    def test_each_guard_looks_at_it(self, gate: Gate) -> None:
        plain, awaited = (
            SlidingLog(1, 1, store=RedisStore(kind.from_url("redis://127.0.0.1")))
            for kind in (Redis, AsyncRedis)
        )
        for make in (
            lambda: asgi.Guard(plain, gate, plain),
            lambda: wsgi.Guard(awaited, gate, awaited),
            lambda: fastapi.Guard(gate, plain),
            lambda: flask.Guard(gate, awaited),
        ):
            with pytest.raises(ValueError, match="limiters: expected a store"):
                make()


class TestExempt:
    @pytest.mark.parametrize(
        ("path", "exempt"),
        [
            ("/healthz", True),
            ("/healthz/", False),
            ("/healthz/deep", False),
            ("/static/a.css", True),
            ("/static/", True),
            ("/static", False),
            ("/statics", False),
            ("/x/static/a.css", False),
        ],
    )
    def test_a_path_is_exempt_exactly_or_below_a_star(self, path: str, exempt: bool) -> None:
        assert make_exemption(["/healthz", "/static/*"], lambda path: path)(path) is exempt

    def test_a_function_decides_by_itself(self) -> None:
        assert make_exemption(lambda path: path == "/x", str)("/x")

    def test_one_path_is_a_mistake_for_many(self) -> None:
        """Else each of its letters would be exempt, and the path would not."""
        with pytest.raises(
            TypeError, match="exempt: expected a list of paths, or a function, got '/healthz'"
        ):
            make_exemption("/healthz", str)


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        (["unix"], "", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["unix", "10.0.0.0/8"], "", ["6.6.6.6, 192.0.2.1, 10.0.0.1"], "192.0.2.1"),
        (["unix"], "192.0.2.1", ["6.6.6.6"], "192.0.2.1"),
        (["unix"], "", [], ""),
        (["10.0.0.0/8"], "", ["192.0.2.1"], ""),
    ],
)
def test_a_proxy_that_asks_through_a_unix_socket_is_believed_if_that_was_said(
    trusted: list[str], peer: str, forwarded: list[str], client: str
) -> None:
    assert TrustedProxies(trusted).client(peer, forwarded) == client
