"""The deadline of a request on a manual clock, and the check of uvicorn's internal names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from analyzer.server import connection_limits, server
from analyzer.server.connection_limits import IDLE_S, REQUEST_S, OpenConnections
from analyzer.server.server import CannotListen, serving
from analyzer.server.uvicorn_internals import REQUIRED, BoundedConnection, missing_internals
from gatekeeper.testing import ManualClock
from gatekeeper.testing.manual_loop import run

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """A transport without a network, that remembers what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_aborted or self.is_closed

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class NoRoom(OpenConnections):
    """Refuses every connection."""

    def started(self, _client: Any, _transport: Any) -> bool:
        return False


class World:
    """A connection whose application answers after `answer_after_s`, and a clock moved by sleeping tasks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transport = FakeTransport()
        self.answer_after_s = 0.0

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        run(story, self.clock)

    def connect(
        self, long_polls: Any = None, connections: OpenConnections | None = None
    ) -> BoundedConnection:
        config = uvicorn.Config(
            self.app, log_config=None, lifespan="off", ws="none", interface="asgi3",
            timeout_keep_alive=int(IDLE_S),
        )  # fmt: skip
        state = uvicorn.Server(config).server_state
        connection = BoundedConnection(
            config, state, {}, asyncio.get_running_loop(),
            connections=OpenConnections(9) if connections is None else connections, long_polls=long_polls,
        )  # fmt: skip
        connection.connection_made(self.transport)
        return connection

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(self.answer_after_s)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    "received", [b"", REQUEST[:10], b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"],
    ids=["nothing", "half a line", "half a body"],
)  # fmt: skip
def test_a_request_that_is_not_complete_in_time_ends_its_connection(world: World, received: bytes) -> None:
    world.answer_after_s = 1e6

    async def story() -> None:
        connection = world.connect()
        if received:
            connection.data_received(received)
        await asyncio.sleep(REQUEST_S - 0.1)
        assert not world.transport.is_aborted
        await asyncio.sleep(0.2)
        assert world.transport.is_aborted

    world.run(story())


def test_a_request_that_arrives_byte_by_byte_has_one_deadline(world: World) -> None:
    """A second request on the same connection, too."""

    async def story() -> None:
        connection = world.connect()
        connection.data_received(REQUEST)
        await asyncio.sleep(IDLE_S - 1)  # an idle connection is not a slow request
        assert world.transport.written.startswith(b"HTTP/1.1 204")
        began_s = world.clock.uptime_s()
        for byte in REQUEST:
            connection.data_received(bytes([byte]))
            await asyncio.sleep(REQUEST_S / 10)
            if world.transport.is_aborted:
                break
        assert world.transport.is_aborted
        assert world.clock.uptime_s() - began_s == pytest.approx(REQUEST_S, abs=1.0)

    world.run(story())


def test_a_complete_request_may_wait_for_its_answer(world: World) -> None:
    world.answer_after_s = 5 * REQUEST_S

    async def story() -> None:
        world.connect().data_received(REQUEST)
        await asyncio.sleep(5 * REQUEST_S + 1)
        assert world.transport.written.startswith(b"HTTP/1.1 204")
        assert not world.transport.is_aborted

    world.run(story())


def test_the_deadline_of_a_pipelined_request_counts_from_the_next_byte_after_the_response(
    world: World,
) -> None:
    async def story() -> None:
        connection = world.connect()
        connection.data_received(REQUEST + REQUEST[:10])
        await asyncio.sleep(1)
        assert world.transport.written.startswith(b"HTTP/1.1 204")
        connection.data_received(REQUEST[10:11])
        await asyncio.sleep(REQUEST_S - 0.1)
        assert not world.transport.is_aborted
        await asyncio.sleep(0.2)
        assert world.transport.is_aborted

    world.run(story())


def test_a_connection_that_is_lost_leaves_no_deadline_behind(world: World) -> None:
    async def story() -> None:
        world.connect().connection_lost(None)
        await asyncio.sleep(2 * REQUEST_S)
        assert not world.transport.is_aborted

    world.run(story())


def test_a_request_beyond_the_bound_is_refused_with_retry_after(world: World) -> None:
    async def story() -> None:
        connection = world.connect(connections=NoRoom(0))
        connection.data_received(REQUEST)
        await asyncio.sleep(0.1)
        head = world.transport.written.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 503")
        assert b"retry-after: 5" in head
        assert b"connection: close" in head

    world.run(story())


# Long polls


class FakeLongPolls:
    """Takes every request for a long poll, and answers after `answer_after_s` with `response`."""

    def __init__(self, response: bytes | Exception | None, answer_after_s: float = 0.0) -> None:
        self.response, self.answer_after_s = response, answer_after_s
        self.parsed: list[bytes] = []

    def parse(self, data: bytes, _client: object, _known: object) -> Any:
        self.parsed.append(data)
        return SimpleNamespace(fields=None)

    async def answer(self, _poll: object, _default_fields: object) -> bytes | None:
        await asyncio.sleep(self.answer_after_s)
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


BY_LONG_POLLS = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def test_a_long_poll_is_answered_and_the_connection_ends_when_it_is_idle(world: World) -> None:
    async def story() -> None:
        connection = world.connect(long_polls=FakeLongPolls(BY_LONG_POLLS, 5 * REQUEST_S))
        for number in (1, 2):
            connection.data_received(REQUEST)
            await asyncio.sleep(5 * REQUEST_S + 1)
            assert world.transport.written == number * BY_LONG_POLLS
        await asyncio.sleep(IDLE_S - 2)
        assert not world.transport.is_closing()
        await asyncio.sleep(2)
        assert world.transport.is_closed

    world.run(story())


@pytest.mark.parametrize("response", [None, ZeroDivisionError()], ids=["nothing", "a bug"])
def test_a_request_that_long_polls_cannot_answer_goes_to_the_application(
    world: World, response: Exception | None
) -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        connection = world.connect(long_polls=FakeLongPolls(response))
        for number in (1, 2):
            connection.data_received(REQUEST)
            await asyncio.sleep(1)
            assert world.transport.written.count(b"HTTP/1.1 204") == number

    world.run(story())


def test_a_request_that_has_begun_is_not_a_long_poll(world: World) -> None:
    long_polls = FakeLongPolls(BY_LONG_POLLS)

    async def story() -> None:
        long_polls.parse = lambda *_: None  # type: ignore[method-assign]  # of the first piece
        connection = world.connect(long_polls=long_polls)
        connection.data_received(REQUEST[:9])
        del long_polls.parse
        connection.data_received(REQUEST[9:])
        await asyncio.sleep(1)
        assert world.transport.written.startswith(b"HTTP/1.1 204")
        assert long_polls.parsed == []

    world.run(story())


def test_at_shutdown_a_long_poll_is_passed_on_to_the_application(world: World) -> None:
    async def story() -> None:
        connection = world.connect(long_polls=FakeLongPolls(BY_LONG_POLLS, 1e6))
        connection.data_received(REQUEST)
        await asyncio.sleep(1)
        connection.shutdown()
        await asyncio.sleep(1)
        assert world.transport.written.startswith(b"HTTP/1.1 204")
        assert world.transport.is_closed

    world.run(story())


def test_a_connection_beyond_the_bound_has_no_long_polls(world: World) -> None:
    long_polls = FakeLongPolls(BY_LONG_POLLS)

    async def story() -> None:
        world.connect(long_polls, NoRoom(0)).data_received(REQUEST)
        await asyncio.sleep(0.1)
        assert world.transport.written.startswith(b"HTTP/1.1 503")

    world.run(story())
    assert long_polls.parsed == []


# Internal names of uvicorn


def test_the_installed_uvicorn_has_every_internal_name() -> None:
    assert missing_internals() == []


INTERNAL = {"H11Protocol": H11Protocol, "H11Protocol.conn": h11.Connection, "Server": uvicorn.Server,
            "ServerState": ServerState}  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in REQUIRED for name in REQUIRED[owner]])
def test_without_an_internal_name_the_server_refuses_to_start_and_names_it(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = INTERNAL[owner]
    if hasattr(kind, name):
        monkeypatch.delattr(kind, name)
    else:
        original = kind.__init__

        def without_it(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            delattr(self, name)

        monkeypatch.setattr(kind, "__init__", without_it)
    with (
        pytest.raises(CannotListen, match=rf"cannot bound connections of uvicorn .*\b{name}\b.*: install "),
        serving(None, ("127.0.0.1", 0)),
    ):
        pytest.fail("it listens")


def test_without_the_internal_module_the_server_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "analyzer.server.uvicorn_internals", None)
    with pytest.raises(CannotListen, match="cannot bound connections of uvicorn"):
        server._require_internals()


def test_the_bounds_are_those_of_the_documentation() -> None:
    assert (REQUEST_S, IDLE_S, connection_limits.SEND_S) == (10, 15, 20)
