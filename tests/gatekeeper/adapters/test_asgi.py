"""The guard for ASGI, called as a server calls it, and then under a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from fastapi import FastAPI, Request

from gatekeeper import ALLOWED, Gate, SlidingLog
from gatekeeper.adapters.asgi import Guard, address, header, peer, user
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock, locked
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock

Scope = dict[str, Any]


def a_request(path: str = "/", *, method: str = "GET", **headers: str) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()],
        "client": ("192.0.2.7", 4711),
    }


class Shop:
    """An application that remembers the scopes that reached it."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})


def call(app: Any, scope: Scope) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of the response. Fails if the request's body is read."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the request's body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    if not sent:
        return 0, {}, b""
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    locks = [
        a_lock("api_key:acme"),
        a_lock("user:ann"),
        a_lock("address:192.0.2.9"),
        a_lock("192.0.2.66", scope="address"),
        a_lock("api_key:bob", resource="/v1/export"),
    ]
    gate = Gate(FixedSource(*locks), clock=clock)
    assert gate.ready(1.0)
    return gate


def test_a_locked_caller_is_denied_and_never_reaches_the_application(shop: Shop, gate: Gate) -> None:
    status, headers, body = call(Guard(shop, gate), a_request(x_api_key="acme"))
    assert (status, headers["gatelock"], headers["retry-after"]) == (429, 'denied;policy="daily"', "3600")
    assert headers["content-type"] == "application/problem+json"
    assert int(headers["content-length"]) == len(body)
    assert json.loads(body)["violated-policies"] == ["daily"]
    assert shop.scopes == []


def test_other_callers_reach_it_with_the_decision_in_the_requests_state(shop: Shop, gate: Gate) -> None:
    scope = a_request(x_api_key="bob") | {"state": {"pool": 1}}
    status, headers, body = call(Guard(shop, gate), scope)
    assert (status, headers, body) == (200, {}, b"ok")
    # In place, not in copies: applications around and below the guard share these dicts.
    assert shop.scopes[0] is scope
    assert scope["state"] == {"pool": 1, "gatelock": ALLOWED}


def test_a_denied_head_request_has_the_headers_and_no_body(shop: Shop, gate: Gate) -> None:
    status, headers, body = call(Guard(shop, gate), a_request(method="HEAD", x_api_key="acme"))
    assert (status, body) == (429, b"")
    assert int(headers["content-length"]) > 0


def test_exempt_paths_pass_without_a_check(shop: Shop, gate: Gate) -> None:
    guard = Guard(shop, gate, exempt=["/healthz"])
    assert call(guard, a_request("/healthz", x_api_key="acme"))[0] == 200
    assert call(guard, a_request("/healthz/", x_api_key="acme"))[0] == 429
    assert "state" not in shop.scopes[0]


def test_scopes_other_than_requests_pass(shop: Shop, gate: Gate) -> None:
    call(Guard(shop, gate), {"type": "lifespan"})
    assert [scope["type"] for scope in shop.scopes] == ["lifespan"]


def test_the_gate_starts_with_the_application(shop: Shop, clock: ManualClock) -> None:
    feed = HandFeed()
    call(Guard(shop, Gate(feed, clock=clock)), {"type": "lifespan"})
    clock.advance(0.0)
    assert feed.fetches == [None]


@pytest.mark.parametrize(
    ("caller", "scope", "status"),
    [
        (header("X-API-Key"), a_request(x_api_key="acme"), 429),
        (header("x-api-key"), a_request(), 200),
        (header("x-user", kind="user"), a_request(x_user="ann"), 429),
        (header("x-user", kind="user"), a_request(x_user="acme"), 200),
        (header("x-real-ip", kind="address"), a_request(x_real_ip="192.0.2.9"), 429),
        (address(), a_request() | {"client": ("192.0.2.9", 1)}, 429),
        (address(), a_request() | {"client": ("::ffff:192.0.2.9", 1)}, 429),
        (address(), a_request() | {"client": None}, 200),
        (address(["unix"]), a_request(x_forwarded_for="192.0.2.9") | {"client": None}, 429),
        (address(["192.0.2.7"]), a_request(x_forwarded_for="192.0.2.9"), 429),
        (address(["192.0.2.0/30"]), a_request(x_forwarded_for="192.0.2.9"), 200),
        (user(lambda scope: scope.get("session")), a_request() | {"session": "ann"}, 429),
        (user(lambda scope: scope.get("session")), a_request(), 200),
        (lambda scope: "api_key:acme", a_request(), 429),
    ],
)
def test_the_caller_is_read_by_the_extractor(
    shop: Shop, gate: Gate, caller: Any, scope: Scope, status: int
) -> None:
    assert call(Guard(shop, gate, caller=caller), scope)[0] == status


def test_an_invalid_name_counts_as_absent(shop: Shop, gate: Gate) -> None:
    for bad in ("x" * 300, "acme\x00", "\x85acme"):
        assert header("x-api-key")(a_request(x_api_key=bad)) == ""
    assert header("x-api-key")(a_request(x_api_key="é")) == "api_key:é"


def test_of_two_headers_the_first_counts() -> None:
    scope = a_request() | {"headers": [(b"x-api-key", b"acme"), (b"x-api-key", b"bob")]}
    assert header("x-api-key")(scope) == "api_key:acme"


def test_an_unknown_kind_of_caller_is_an_error() -> None:
    with pytest.raises(ValueError, match="kind: expected one of api_key, user, address, got 'ip'"):
        header("x-real-ip", kind="ip")


def test_the_address_is_checked_in_addition_to_the_caller(shop: Shop, gate: Gate) -> None:
    scope = a_request(x_api_key="bob") | {"client": ("192.0.2.66", 1)}
    assert call(Guard(shop, gate), scope)[0] == 429
    assert peer({"client": ("/run/app.sock", None)}) == ""
    assert peer({}) == ""


def test_a_lock_on_one_resource_needs_an_extractor_of_the_resource(shop: Shop, gate: Gate) -> None:
    guard = Guard(shop, gate, resource=lambda scope: scope["path"])
    assert call(guard, a_request("/v1/export", x_api_key="bob"))[0] == 429
    assert call(guard, a_request("/v1/items", x_api_key="bob"))[0] == 200
    assert call(Guard(shop, gate), a_request("/v1/export", x_api_key="bob"))[0] == 200


class TestLimiters:
    def test_a_limiter_denies_requests_that_the_gate_admits(
        self, shop: Shop, gate: Gate, clock: ManualClock
    ) -> None:
        guard = Guard(shop, gate, SlidingLog(limit=2, period=10, clock=clock))
        answers = [call(guard, a_request(x_api_key="bob")) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert answers[2][1]["retry-after"] == "10"
        assert [scope["state"]["gatelock"].remaining for scope in shop.scopes] == [1, 0]
        clock.advance(10.0)
        assert call(guard, a_request(x_api_key="bob"))[0] == 200

    def test_a_locked_caller_takes_nothing_from_a_limiter(
        self, shop: Shop, gate: Gate, clock: ManualClock
    ) -> None:
        burst = SlidingLog(limit=2, period=10, clock=clock)
        for _ in range(5):
            call(Guard(shop, gate, burst), a_request(x_api_key="acme"))
        assert burst.peek("api_key:acme").remaining == 2

    def test_requests_without_a_caller_are_limited_by_address(
        self, shop: Shop, gate: Gate, clock: ManualClock
    ) -> None:
        """A flood without a key must not use up the limit of all other requests without a key."""
        guard = Guard(shop, gate, SlidingLog(limit=1, period=10, clock=clock))
        here, elsewhere = a_request(), a_request() | {"client": ("192.0.2.8", 1)}
        assert [call(guard, scope)[0] for scope in (here, here, elsewhere)] == [200, 429, 200]

    def test_the_decision_in_the_state_is_the_one_with_least_remaining(
        self, shop: Shop, gate: Gate, clock: ManualClock
    ) -> None:
        wide, narrow = (SlidingLog(limit=limit, period=10, clock=clock) for limit in (100, 5))
        call(Guard(shop, gate, wide, narrow, wide), a_request(x_api_key="bob"))
        assert shop.scopes[0]["state"]["gatelock"].remaining == 4


class TestShadow:
    def test_a_guard_in_shadow_mode_admits_requests_and_logs_those_that_it_would_deny(
        self, shop: Shop, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "gatekeeper"):
            assert call(Guard(shop, gate, shadow=True), a_request(x_api_key="acme"))[0] == 200
        decision = shop.scopes[0]["state"]["gatelock"]
        assert (decision.allowed, decision.shadow, decision.policy) == (True, True, "daily")
        assert caplog.messages == ["would be denied: GET api_key:acme by daily (quota-exceeded)"]

    def test_a_guard_logs_denials_of_a_gate_in_shadow_mode(
        self, shop: Shop, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate(FixedSource(a_lock("api_key:acme")), clock=clock, shadow=True)
        gate.ready(1.0)
        with caplog.at_level(logging.INFO, "gatekeeper"):
            assert call(Guard(shop, gate), a_request(x_api_key="acme"))[0] == 200
        assert "would be denied" in caplog.text


class TestWebSocket:
    """A server without the extension for denial responses; test_frameworks.py has one with it."""

    def call(self, app: Any, key: str) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(app(a_request(x_api_key=key) | {"type": "websocket"}, receive, send))
        return sent

    def test_a_denied_handshake_is_closed(self, shop: Shop, gate: Gate) -> None:
        assert self.call(Guard(shop, gate), "acme") == [{"type": "websocket.close", "code": 1008}]
        assert shop.scopes == []

    @pytest.mark.parametrize(("message", "left"), [("websocket.close", 2), ("websocket.accept", 1)])
    def test_a_handshake_that_the_application_denies_can_be_refunded(
        self, gate: Gate, clock: ManualClock, message: str, left: int
    ) -> None:
        async def app(scope: Scope, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": message})
            await send({"type": "websocket.close"})

        burst = SlidingLog(2, 10, clock=clock)
        sent = self.call(Guard(app, gate, burst, refund_when=lambda answer: answer.status == 403), "bob")
        assert burst.peek("api_key:bob").remaining == left
        assert [set(sent_message) - {"type"} for sent_message in sent] == [
            set() if message == "websocket.close" else {"headers"},
            set(),
        ]


def test_an_application_that_fails_before_it_responds_can_be_refunded(gate: Gate, clock: ManualClock) -> None:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    burst = SlidingLog(2, 10, clock=clock)
    with pytest.raises(RuntimeError):
        call(Guard(app, gate, burst, refund_when=lambda answer: answer.status >= 500), a_request())
    assert burst.peek("address:192.0.2.7").remaining == 2


def test_django_can_be_guarded_as_a_whole(gate: Gate, clock: ManualClock) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.scope["state"]["gatelock"].remaining))

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    with override_settings(MIDDLEWARE=[], ROOT_URLCONF=(path("items", view),)):
        guard = Guard(ASGIHandler(), gate, SlidingLog(9, 9, clock=clock))

        async def ask(key: str) -> httpx2.Response:
            transport = httpx2.ASGITransport(app=guard)
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
                return await client.get("/items", headers={"x-api-key": key})

        assert asyncio.run(ask("bob")).text == "8"
        assert asyncio.run(ask("acme")).status_code == 429


# -- under a real server -------------------------------------------------------------------------


class Served:
    """An application under uvicorn, in a thread, on a free port."""

    def __init__(self, app: Any) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        self.started = threading.Event()
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> str:
        self.thread.start()
        for _ in range(1000):
            if self.server.started:
                return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
            self.started.wait(0.01)
        raise AssertionError("uvicorn did not start")

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture
def shop_gate() -> Iterator[Gate]:
    gate = Gate(HandFeed())
    yield gate
    gate.close()


def test_in_a_real_application_a_locked_caller_is_denied_and_others_are_not(shop_gate: Gate) -> None:
    api = FastAPI()

    @api.get("/items")
    def items(request: Request) -> dict[str, object]:
        return {"remaining": request.state.gatelock.remaining}

    @api.post("/items")
    async def add(request: Request) -> int:
        return len(await request.body())

    app = Guard(api, shop_gate, SlidingLog(limit=3, period=60), exempt=["/openapi.json"])
    with Served(app) as url, plain_http.Client(base_url=url) as client, locked(shop_gate, "api_key:acme"):
        bob, acme = {"x-api-key": "bob"}, {"x-api-key": "acme"}
        assert client.get("/items", headers=bob).json() == {"remaining": 2}
        denied = client.get("/items", headers=acme)
        assert denied.status_code == 429
        assert denied.headers["content-type"] == "application/problem+json"
        assert denied.headers["gatelock"] == 'denied;policy="test"'
        assert int(denied.headers["retry-after"]) == 3600
        assert denied.json()["detail"] == "locked by a test"
        assert client.head("/items", headers=acme).content == b""
        assert client.get("/openapi.json", headers=acme).status_code == 200
        # The connection stays usable, although the denied request's body was never read.
        assert client.post("/items", headers=acme, content=b"x" * 100_000).status_code == 429
        assert client.post("/items", headers=bob, content=b"x" * 100_000).json() == 100_000
        assert client.get("/items", headers=bob).status_code == 200
        limited = client.get("/items", headers=bob)
        assert (limited.status_code, limited.json()["type"][-14:]) == (429, "quota-exceeded")
