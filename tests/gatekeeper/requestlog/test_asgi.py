"""The request log of ASGI applications, called as a server calls it, and under a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse

from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, header
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock, locked
from tests.support import plain_http
from tests.support.feed import a_lock
from tests.support.requestlog import MemorySink
from tests.support.uvicorn import serving

Scope = dict[str, Any]
MESSAGES = [
    {"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"7")]},
    {"type": "http.response.body", "body": b"four", "more_body": True},
    {"type": "http.response.body", "body": b"end"},
]


def a_request(path: str = "/items", **changed: Any) -> Scope:
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(b"x-api-key", b"acme")],
        "client": ("192.0.2.7", 4711),
    }
    return scope | changed


class World:
    def __init__(self, app: Any, **given: Any) -> None:
        self.clock = ManualClock()
        self.sink = MemorySink()
        self.log = RequestLog(app, self.sink, clock=self.clock, **given)

    def call(self, scope: Scope, *incoming: dict[str, Any]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        waiting = list(incoming)

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.log(scope, receive, send))
        return sent

    def records(self) -> list[dict[str, Any]]:
        self.log.flush()
        return self.sink.records()


def answering(*messages: dict[str, Any], clock: ManualClock | None = None) -> Any:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


def test_a_record_has_all_known_fields_of_the_request() -> None:
    world = World(None)

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        for message in MESSAGES:
            world.clock.advance(0.25)
            await send(message)
        world.clock.advance(60)  # work after the response

    world.log._app = app
    world.clock.advance(10)
    assert world.call(a_request()) == MESSAGES
    (record,) = world.records()
    del record["id"]
    assert record == {
        "ts": (1_767_225_600 + 10) * 1_000_000 + 750_000,
        "caller": {"api_key": "acme"},
        "address": "192.0.2.7",
        "method": "GET",
        "path": "/items",
        "status": 201,
        "bytes": 7,
        "duration": 750_000,
    }


def test_a_response_is_logged_once() -> None:
    world = World(answering(*MESSAGES))
    world.call(a_request())
    assert len(world.records()) == 1


def raising(error: BaseException, *before: dict[str, Any]) -> Any:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        for message in before:
            await send(message)
        raise error

    return app


@pytest.mark.parametrize(
    ("app", "status"),
    [
        (raising(RuntimeError("broken")), 500),
        (raising(RuntimeError("broken"), MESSAGES[0]), 201),
        (raising(asyncio.CancelledError()), 499),
        (answering(), 500),
    ],
)
def test_failed_and_cancelled_requests_are_logged(app: Any, status: int) -> None:
    world = World(app)
    with contextlib.suppress(RuntimeError, asyncio.CancelledError):
        world.call(a_request())
    assert [record["status"] for record in world.records()] == [status]


def test_a_request_whose_client_disconnects_before_the_response_is_logged() -> None:
    """Servers may then raise from `send` (ASGI 2.4)."""
    world = World(answering(*MESSAGES))

    async def send(message: dict[str, Any]) -> None:
        raise OSError("disconnected")

    with pytest.raises(OSError, match="disconnected"):
        asyncio.run(world.log(a_request(), None, send))
    assert [(record["status"], record["bytes"]) for record in world.records()] == [(201, 0)]


def test_a_file_that_the_server_sends_counts_by_its_content_length() -> None:
    world = World(answering(MESSAGES[0], {"type": "http.response.pathsend", "path": "/srv/file"}))
    world.call(a_request())
    assert [(record["status"], record["bytes"]) for record in world.records()] == [(201, 7)]


def test_exempt_paths_are_not_logged() -> None:
    world = World(answering(*MESSAGES), exempt=["/healthz"])
    assert world.call(a_request("/healthz")) == MESSAGES
    assert world.records() == []


def test_the_path_is_bounded_and_has_no_query() -> None:
    world = World(answering(*MESSAGES))
    world.call(a_request("/" + "x" * 5_000, query_string=b"token=secret"))
    (record,) = world.records()
    assert record["path"] == "/" + "x" * 1_023
    assert "secret" not in str(record)


def test_an_extractor_that_raises_breaks_no_request() -> None:
    def failing(scope: Scope) -> str:
        raise KeyError("session")

    world = World(answering(*MESSAGES), caller=failing)
    assert world.call(a_request()) == MESSAGES
    (record,) = world.records()
    assert ("caller" in record, record["address"]) == (False, "192.0.2.7")


class TestAWebSocket:
    def test_is_logged_when_its_handshake_is_answered(self) -> None:
        world = World(answering({"type": "websocket.accept"}, {"type": "websocket.close"}))
        world.call(a_request(type="websocket", method=None) | {"method": "GET"})
        assert [(record["status"], record["bytes"]) for record in world.records()] == [(101, 0)]

    @pytest.mark.parametrize(
        ("messages", "status"),
        [
            ([{"type": "websocket.close", "code": 1008}], 403),
            (
                [
                    {"type": "websocket.http.response.start", "status": 429, "headers": []},
                    {"type": "websocket.http.response.body", "body": b"no"},
                ],
                429,
            ),
        ],
    )
    def test_is_logged_when_it_is_denied(self, messages: list[dict[str, Any]], status: int) -> None:
        world = World(answering(*messages))
        world.call(a_request(type="websocket"))
        assert [record["status"] for record in world.records()] == [status]


class TestTheGatesDecision:
    @pytest.fixture
    def gate(self) -> Gate:
        gate = Gate(FixedSource(a_lock("api_key:acme"), a_lock("user:ann")), clock=ManualClock())
        gate.ready(1)
        return gate

    def test_a_denied_request_has_the_policy(self, gate: Gate) -> None:
        world = World(Guard(answering(*MESSAGES), gate))
        world.call(a_request())
        (record,) = world.records()
        assert (record["status"], record["gate"], record["policy"]) == (429, "denied", "daily")

    def test_the_caller_is_the_one_that_the_guard_checked(self, gate: Gate) -> None:
        """The log needs no extractors then."""
        guard = Guard(
            answering(*MESSAGES), gate, caller=header("x-user", kind="user"), resource=lambda scope: "/{all}"
        )
        world = World(guard)
        for name in (b"ann", b"bob"):
            world.call(a_request(headers=[(b"x-api-key", b"acme"), (b"x-user", name)]))
        ann, bob = world.records()
        assert (ann["caller"], ann["gate"]) == ({"user": "ann"}, "denied")
        assert (bob["caller"], bob["gate"]) == ({"user": "bob"}, "allowed")
        assert ann["resource"] == bob["resource"] == "/{all}"

    def test_a_guard_in_shadow_mode_logs_shadow(self, gate: Gate) -> None:
        world = World(Guard(answering(*MESSAGES), gate, shadow=True))
        world.call(a_request())
        (record,) = world.records()
        assert (record["status"], record["gate"], record["policy"]) == (201, "shadow", "daily")

    def test_without_a_guard_the_field_is_absent(self) -> None:
        world = World(answering(*MESSAGES))
        world.call(a_request())
        assert "gate" not in world.records()[0]


class TestLifespan:
    STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
    DONE = ("lifespan.startup.complete", "lifespan.shutdown.complete")

    @staticmethod
    async def supporting(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{step}"
                await send({"type": f"lifespan.{step}.complete"})
        else:
            await answering(*MESSAGES)(scope, receive, send)

    @staticmethod
    async def refusing(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise ValueError("only HTTP")  # as Django does
        await answering(*MESSAGES)(scope, receive, send)

    @staticmethod
    async def ignoring(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await answering(*MESSAGES)(scope, receive, send)

    @pytest.mark.parametrize("app", [supporting, refusing, ignoring])
    def test_waiting_records_are_written_before_the_shutdown_is_complete(self, app: Any) -> None:
        world = World(app)
        world.call(a_request())
        assert world.sink.lines == []
        sent = world.call({"type": "lifespan"}, self.STARTUP, self.SHUTDOWN)
        assert tuple(message["type"] for message in sent) == self.DONE
        assert len(world.sink.lines) == world.sink.closed == 1

    def test_a_failed_startup_stays_a_failure(self) -> None:
        async def app(scope: Scope, receive: Any, send: Any) -> None:
            await receive()
            raise RuntimeError("no database")

        with pytest.raises(RuntimeError, match="no database"):
            World(app).call({"type": "lifespan"}, self.STARTUP)


# -- under a real server -------------------------------------------------------------------------


def an_api() -> FastAPI:
    api = FastAPI()
    router = APIRouter(prefix="/v1")

    @router.get("/items/{item}")
    def one(item: int, request: Request) -> dict[str, int]:
        request.state.request_log.add(tokens=item * 100)
        return {"item": item}

    @router.get("/files/{name:path}")
    async def file(name: str) -> StreamingResponse:
        async def pieces() -> Any:
            for _ in range(3):
                yield b"x" * 1_000

        return StreamingResponse(pieces())

    @api.websocket("/feed")
    async def feed(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    @router.get("/broken")
    def broken() -> None:
        raise RuntimeError("broken")

    api.include_router(router)
    return api


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(FixedSource())
    yield gate
    gate.close()


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "not guarded"])
def test_routes_and_fields_of_a_real_application_are_found(gate: Gate, guarded: bool) -> None:
    api, sink = an_api(), MemorySink()
    log = RequestLog(Guard(api, gate) if guarded else api, sink)
    with serving(log) as url, plain_http.Client(base_url=url, headers={"x-api-key": "acme"}) as client:
        client.get("/v1/items/7?token=secret")
        client.get("/v1/files/a/b.txt")
        client.get("/v1/nowhere")
        with locked(gate, "api_key:acme"):
            client.get("/v1/items/8")
        client.get("/v1/broken")  # uvicorn then closes the connection
    records = sink.records()  # written, because the server has ended
    facts = [
        (record["path"], record.get("resource"), record["status"], record["bytes"]) for record in records
    ]
    assert [*facts[:3], facts[4]] == [
        ("/v1/items/7", "/v1/items/{item}", 200, len('{"item":7}')),
        ("/v1/files/a/b.txt", "/v1/files/{name}", 200, 3_000),
        ("/v1/nowhere", None, 404, len('{"detail":"Not Found"}')),
        ("/v1/broken", "/v1/broken", 500, len("Internal Server Error")),
    ]
    assert records[0]["more"] == {"tokens": 700}
    assert records[0]["caller"] == {"api_key": "acme"}
    assert records[0]["address"] == "127.0.0.1"
    assert 0 < records[0]["duration"] < 10_000_000
    if guarded:
        assert [record["gate"] for record in records] == [*["allowed"] * 3, "denied", "allowed"]
        assert records[3]["status"] == 429
    else:
        assert all("gate" not in record for record in records)
    assert log.written == 5
    assert log.dropped == 0
    assert log.healthy
