"""Admission control, as all adapters use it: refunds, keys, waiting limiters, stores and exemptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from gatekeeper import ALLOWED, Concurrency, Decision, Gate, LeakyQueue, SlidingLog
from gatekeeper.adapters import asgi, fastapi, flask, wsgi
from gatekeeper.adapters.admission_control import (
    AdmissionController,
    PerAddress,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.queued_requests import Waiting
from gatekeeper.identity import TrustedProxies
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
    """A custom limiter without async methods, whose store is unavailable."""

    def check(self, key: str, cost: int) -> Decision:
        raise ConnectionError("the store is unavailable")

    def refund(self, key: str, cost: int) -> None:
        raise AssertionError("nothing was charged")


class Hanging(Breaking):
    """A limiter with an async check that never returns."""

    async def check_async(self, key: str, cost: int) -> Decision:
        await asyncio.sleep(1000)
        return ALLOWED


class TestPermits:
    def test_a_limiter_that_fails_refunds_the_permits_of_earlier_limiters(self, gate: Gate) -> None:
        work = Concurrency(1)
        with pytest.raises(ConnectionError):
            AdmissionController(gate, [work, Breaking()]).check(BOB)
        with pytest.raises(ConnectionError):
            asyncio.run(AdmissionController(gate, [work, Breaking()]).check_async(BOB))
        assert work.in_flight("api_key:bob") == 0

    def test_a_client_that_disconnects_while_a_limiter_is_awaited_takes_no_permits(self, gate: Gate) -> None:
        work = Concurrency(1)

        async def disconnect() -> None:
            await asyncio.wait_for(AdmissionController(gate, [work, Hanging()]).check_async(BOB), 0.01)

        with pytest.raises(TimeoutError):
            asyncio.run(disconnect())
        assert work.in_flight("api_key:bob") == 0

    def test_a_refund_does_not_release_requests_in_flight(self, gate: Gate, clock: ManualClock) -> None:
        work, burst = Concurrency(3), SlidingLog(5, 10, clock=clock)
        admission = AdmissionController(gate, [work, burst])
        result = admission.check(BOB._replace(cost=2))
        admission.refund(result)
        assert (work.in_flight("api_key:bob"), burst.peek("api_key:bob").remaining) == (2, 5)
        admission.leave(result)
        assert work.in_flight("api_key:bob") == 0

    def test_only_limiters_of_requests_in_flight_hold_permits(self, gate: Gate) -> None:
        queue = Waiting(LeakyQueue(1, 1), timeout=1)
        assert not AdmissionController(gate, [SlidingLog(1, 1), Breaking()]).holds_permits
        assert AdmissionController(gate, [SlidingLog(1, 1), Concurrency(1)]).holds_permits
        admission = AdmissionController(gate, [queue])
        admission.leave(admission.check(BOB))

    def test_in_shadow_mode_a_denied_request_takes_no_permits(self, gate: Gate, clock: ManualClock) -> None:
        wide, narrow = SlidingLog(9, 10, clock=clock), SlidingLog(1, 10, clock=clock)
        admission = AdmissionController(gate, [wide, narrow], shadow=True)
        results = [admission.check(BOB) for _ in range(4)]
        assert [result.decision.shadow for result in results] == [False, True, True, True]
        assert [len(result.charged) for result in results] == [2, 0, 0, 0]
        assert wide.peek("api_key:bob").remaining == 8


def test_a_limiters_decision_keeps_the_gates_tags(gate: Gate, clock: ManualClock) -> None:
    result = AdmissionController(gate, [SlidingLog(9, 10, clock=clock, name="burst")]).check(BOB)
    assert (result.decision.tags, result.decision.remaining) == (("daily",), 8)
    assert [(item.name, item.remaining) for item in result.limits] == [("burst", 8)]


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        (RequestIdentity("api_key:bob", "192.0.2.7"), "api_key:bob"),
        (RequestIdentity("", "192.0.2.7"), "address:192.0.2.7"),
        (RequestIdentity("", "2001:db8:1:2:3:4:5:6"), "address:2001:db8:1:2::/64"),
        (RequestIdentity(), ""),
    ],
)
def test_a_limiter_counts_by_the_caller_or_by_its_address(identity: RequestIdentity, key: str) -> None:
    assert identity.key == key


class TestWaiting:
    def test_a_request_passes_when_its_turn_comes(self, gate: Gate, clock: ManualClock) -> None:
        admission = AdmissionController(gate, [Waiting(LeakyQueue(1, 2, clock=clock), timeout=5)])

        async def ask() -> list[tuple[bool, float]]:
            passed = []
            for _ in range(3):
                result = await admission.check_async(BOB)
                passed.append((result.decision.allowed, clock.uptime_s()))
            return passed

        assert run(ask(), clock) == [(True, 0.0), (True, 2.0), (True, 4.0)]

    def test_a_request_that_would_wait_too_long_is_denied_at_once(
        self, gate: Gate, clock: ManualClock
    ) -> None:
        admission = AdmissionController(gate, [Waiting(LeakyQueue(1, 10, clock=clock), timeout=5)])
        assert admission.check(BOB).decision.allowed
        assert not admission.check(BOB).decision.allowed
        assert clock.uptime_s() == 0.0

    def test_a_refund_goes_to_the_limiter_behind_the_queue(self, gate: Gate, clock: ManualClock) -> None:
        burst = SlidingLog(5, 10, clock=clock, name="burst")
        admission = AdmissionController(gate, [Waiting(burst, timeout=1)])
        result = admission.check(BOB)
        assert [item.name for item in result.limits] == ["burst"]
        assert burst.peek("api_key:bob").remaining == 4
        admission.leave(result)
        assert burst.peek("api_key:bob").remaining == 4, "nothing is in flight"
        admission.refund(result)
        assert burst.peek("api_key:bob").remaining == 5

    def test_a_request_waits_until_another_one_in_flight_ends(self, gate: Gate) -> None:
        work = Concurrency(1)
        waiting = AdmissionController(gate, [Waiting(work, timeout=5)])

        async def two() -> list[str]:
            events: list[str] = []

            async def work_as(name: str) -> None:
                result = await waiting.check_async(BOB)
                events.append(f"{name} begins")
                await asyncio.sleep(0.01)
                events.append(f"{name} ends")
                await waiting.leave_async(result)

            await asyncio.gather(work_as("a"), work_as("b"))
            return events

        assert asyncio.run(two()) == ["a begins", "a ends", "b begins", "b ends"]

    @pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
    def test_a_timeout_must_be_finite(self, timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout: expected seconds from 0"):
            Waiting(LeakyQueue(1, 1), timeout)


class TestStores:
    """With the wrong kind of client a limiter would raise at each request."""

    LIMITERS = (
        lambda store: SlidingLog(1, 1, store=store),
        lambda store: Concurrency(1, store=store),
        lambda store: Waiting(SlidingLog(1, 1, store=store), timeout=1),
    )

    @pytest.mark.parametrize("make", LIMITERS, ids=["rate", "in flight", "waiting"])
    def test_a_store_needs_the_kind_of_client_that_fits_the_server(
        self, make: Callable[[RedisStore], object]
    ) -> None:
        plain, awaited = (RedisStore(kind.from_url("redis://127.0.0.1")) for kind in (Redis, AsyncRedis))
        require_store_client([make(plain), SlidingLog(1, 1), Breaking()], awaited=False)
        require_store_client([make(awaited), SlidingLog(1, 1), Breaking()], awaited=True)
        with pytest.raises(
            ValueError, match=r"a client of redis\.asyncio\.Redis, because the application must not block"
        ):
            require_store_client([make(plain)], awaited=True)
        with pytest.raises(
            ValueError, match=r"a client of redis\.Redis, because the application does not await"
        ):
            require_store_client([make(awaited)], awaited=False)

    def test_every_guard_checks_the_client(self, gate: Gate) -> None:
        plain, awaited = (
            SlidingLog(1, 1, store=RedisStore(kind.from_url("redis://127.0.0.1")))
            for kind in (Redis, AsyncRedis)
        )
        app: Any = None  # is not called
        for make in (
            lambda: asgi.Guard(app, gate, plain),
            lambda: wsgi.Guard(app, gate, awaited),
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

    def test_a_function_decides_which_requests_are_exempt(self) -> None:
        assert make_exemption(lambda path: path == "/x", str)("/x")

    def test_one_string_instead_of_several_paths_is_an_error(self) -> None:
        """Otherwise its letters would be exempt, and the path would not."""
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
def test_a_proxy_that_connects_through_a_unix_socket_is_trusted_if_configured(
    trusted: list[str], peer: str, forwarded: list[str], client: str
) -> None:
    assert TrustedProxies(trusted).client(peer, forwarded) == client


class TestPerAddress:
    """Limiters by address, beside those by caller."""

    @staticmethod
    def identities(number: int) -> list[RequestIdentity]:
        return [RequestIdentity(f"api_key:random-{n}", "192.0.2.7") for n in range(number)]

    def test_a_client_with_a_new_key_in_each_request_meets_the_limit(
        self, gate: Gate, clock: ManualClock
    ) -> None:
        by_caller, by_address = SlidingLog(20, 1, clock=clock), SlidingLog(50, 1, clock=clock)
        alone = AdmissionController(gate, [by_caller])
        assert all(alone.check(identity).decision.allowed for identity in self.identities(200))
        both = AdmissionController(gate, [by_caller, PerAddress(by_address)])
        answers = [both.check(identity).decision.allowed for identity in self.identities(200)]
        assert sum(answers) == 50
        other = RequestIdentity("api_key:cleo", "192.0.2.8")
        assert both.check(other).decision.allowed, "other addresses are not concerned"

    def test_a_limiter_by_address_is_awaited_like_others(self, gate: Gate, clock: ManualClock) -> None:
        controller = AdmissionController(gate, [PerAddress(SlidingLog(2, 1, clock=clock))], awaited=True)
        answers = [asyncio.run(controller.check_async(identity)) for identity in self.identities(3)]
        assert [answer.decision.allowed for answer in answers] == [True, True, False]

    def test_a_denial_by_a_later_limiter_gives_the_permit_of_the_address_back(
        self, gate: Gate, clock: ManualClock
    ) -> None:
        by_address = SlidingLog(2, 1, clock=clock)
        controller = AdmissionController(gate, [PerAddress(by_address), SlidingLog(1, 1, clock=clock)])
        assert controller.check(BOB).decision.allowed
        assert not controller.check(BOB).decision.allowed
        assert by_address.peek("address:192.0.2.7").remaining == 1
        assert controller.check(self.identities(1)[0]).decision.allowed

    def test_requests_in_flight_are_counted_by_address(self, gate: Gate) -> None:
        work = Concurrency(2)
        controller = AdmissionController(gate, [PerAddress(work)])
        assert controller.holds_permits
        first, second = (controller.check(identity) for identity in self.identities(2))
        assert not controller.check(BOB).decision.allowed
        controller.leave(first)
        assert controller.check(BOB).decision.allowed
        controller.leave(second)
        assert work.in_flight("address:192.0.2.7") == 1

    def test_addresses_of_version_6_are_cut(self, gate: Gate, clock: ManualClock) -> None:
        controller = AdmissionController(gate, [PerAddress(SlidingLog(1, 1, clock=clock))])
        one, other = (RequestIdentity(f"api_key:{n}", f"2001:db8::{n}") for n in (1, 2))
        assert controller.check(one).decision.allowed
        assert not controller.check(other).decision.allowed

    def test_one_limiter_may_count_by_caller_and_by_address(self, gate: Gate) -> None:
        work = Concurrency(2)
        controller = AdmissionController(gate, [work, PerAddress(work)])
        first, second = (controller.check(identity) for identity in self.identities(2))
        controller.leave(first)
        in_flight = [work.in_flight(f"api_key:random-{n}") for n in (0, 1)]
        assert (in_flight, work.in_flight("address:192.0.2.7")) == ([0, 1], 1)
        controller.leave(second)
        assert work.in_flight("address:192.0.2.7") == 0

    @pytest.mark.parametrize("wrong", [20, SlidingLog, PerAddress])
    def test_a_guard_refuses_other_objects_than_limiters_when_it_is_made(
        self, gate: Gate, wrong: Any
    ) -> None:
        with pytest.raises(TypeError, match="limiters: expected limiters, got"):
            AdmissionController(gate, [wrong])
        with pytest.raises(TypeError, match="limiter: expected a limiter, got"):
            PerAddress(wrong)
        with pytest.raises(TypeError, match="limiter: expected a limiter, got PerAddress"):
            PerAddress(PerAddress(SlidingLog(1, 1)))  # type: ignore[arg-type]  # that is the test

    def test_without_an_address_the_caller_is_the_key(self, gate: Gate, clock: ManualClock) -> None:
        controller = AdmissionController(gate, [PerAddress(SlidingLog(1, 1, clock=clock))])
        assert controller.check(RequestIdentity("api_key:ann")).decision.allowed
        assert controller.check(RequestIdentity("api_key:bob")).decision.allowed
