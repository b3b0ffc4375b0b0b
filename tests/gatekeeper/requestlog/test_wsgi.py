"""The request log of WSGI applications: called as a server calls it, and in Flask and Django."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest
from flask import Flask, request

from gatekeeper import Gate
from gatekeeper.adapters import flask as flask_adapter
from gatekeeper.adapters.wsgi import Guard
from gatekeeper.requestlog.wsgi import RequestLog
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock
from tests.support.requestlog import MemorySink


class World:
    def __init__(self, app: Any, **given: Any) -> None:
        self.clock = ManualClock()
        self.sink = MemorySink()
        self.log = RequestLog(app, self.sink, clock=self.clock, **given)

    def call(self, path: str = "/items", **environ: Any) -> tuple[str, list[Any], bytes]:
        given = {"SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        given |= {"REMOTE_ADDR": "192.0.2.7", "HTTP_X_API_KEY": "acme"}
        given |= environ
        setup_testing_defaults(given)
        answer: list[Any] = []

        def start(status: str, headers: list[Any], error: Any = None) -> Callable[[bytes], object]:
            answer[:] = [status, headers]
            return lambda piece: None

        body = self.log(given, start)
        try:
            text = b"".join(body)
        finally:
            getattr(body, "close", lambda: None)()
        return answer[0], answer[1], text

    def records(self) -> list[dict[str, Any]]:
        self.log.flush()
        return self.sink.records()


def hello(environ: dict[str, Any], start: Any) -> list[bytes]:
    start("201 Created", [("content-type", "text/plain")])
    return [b"four", b"end"]


@pytest.fixture
def gate() -> Gate:
    gate = Gate(FixedSource(a_lock("api_key:acme")), clock=ManualClock())
    gate.ready(1)
    return gate


def test_a_record_has_all_known_fields_of_the_request() -> None:
    world = World(hello)
    assert world.call("/items", QUERY_STRING="token=secret")[2] == b"fourend"
    (record,) = world.records()
    del record["id"]
    assert record == {
        "ts": 1_767_225_600_000_000,
        "caller": {"api_key": "acme"},
        "address": "192.0.2.7",
        "method": "GET",
        "path": "/items",
        "status": 201,
        "bytes": 7,
        "duration": 0,
    }


def test_a_denied_request_has_the_policy(gate: Gate) -> None:
    world = World(Guard(hello, gate))
    assert world.call()[0].startswith("429")
    world.call(HTTP_X_API_KEY="bob")
    denied, allowed = world.records()
    assert (denied["status"], denied["gate"], denied["policy"]) == (429, "denied", "daily")
    assert (allowed["status"], allowed["gate"]) == (201, "allowed")


def test_a_response_is_logged_when_the_server_closes_it() -> None:
    clock_moves: list[Any] = []

    def slowly(environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        for _ in range(3):
            clock_moves[0](0.5)
            yield b"x"

    world = World(slowly)
    clock_moves.append(world.clock.advance)
    world.call()
    assert [(record["bytes"], record["duration"]) for record in world.records()] == [(3, 1_500_000)]


def test_failed_requests_are_logged_and_the_exception_propagates() -> None:
    def broken(environ: dict[str, Any], start: Any) -> list[bytes]:
        raise RuntimeError("broken")

    def half(environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        yield b"x"
        raise RuntimeError("broken")

    for app, status in ((broken, 500), (half, 200)):
        world = World(app)
        with pytest.raises(RuntimeError, match="broken"):
            world.call()
        assert [record["status"] for record in world.records()] == [status]


def test_bytes_through_the_write_callable_are_counted() -> None:
    def old(environ: dict[str, Any], start: Any) -> list[bytes]:
        write = start("200 OK", [])
        write(b"12345")
        return [b"678"]

    world = World(old)
    world.call()
    assert world.records()[0]["bytes"] == 8


def test_a_file_is_returned_to_the_server_unwrapped() -> None:
    def sending(environ: dict[str, Any], start: Any) -> Any:
        start("200 OK", [("Content-Length", "5")])
        return environ["wsgi.file_wrapper"](io.BytesIO(b"hello"))

    world = World(sending)
    started: list[Any] = []
    environ: dict[str, Any] = {"wsgi.file_wrapper": FileWrapper}
    setup_testing_defaults(environ)
    body = world.log(environ, lambda *given: started.append(given))
    assert isinstance(body, FileWrapper)
    assert [(record["status"], record["bytes"]) for record in world.records()] == [(200, 5)]


def test_a_path_that_is_not_ascii_is_decoded() -> None:
    world = World(hello)
    world.call("/käse".encode().decode("latin-1"))
    assert world.records()[0]["path"] == "/käse"


def test_the_log_conforms_to_wsgi() -> None:
    def app(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    world = World(validator(app))
    world.log = validator(world.log)
    assert world.call()[2] == b"ok"


class TestFlask:
    @pytest.fixture
    def shop(self) -> Flask:
        shop = Flask("shop")

        @shop.get("/v1/items/<int:item>")
        def one(item: int) -> str:
            request.environ["gatelock.request_log"].add(tokens=item)
            return "x" * item

        return shop

    @pytest.mark.parametrize("guarded", [True, False])
    def test_the_route_and_the_applications_fields_are_found(
        self, shop: Flask, gate: Gate, guarded: bool
    ) -> None:
        if guarded:
            flask_adapter.Guard(gate, app=shop)
        world = World(shop.wsgi_app)
        shop.wsgi_app = world.log
        client = shop.test_client()
        for path, key in (("/v1/items/7", "bob"), ("/nowhere", "bob"), ("/v1/items/8", "acme")):
            client.get(path, headers={"x-api-key": key}, buffered=True).close()
        found, missing, denied = world.records()
        assert (found["resource"], found["bytes"], found["more"]) == ("/v1/items/{item}", 7, {"tokens": 7})
        assert (missing.get("resource"), missing["status"]) == ("other" if guarded else None, 404)
        assert denied["resource"] == "/v1/items/{item}"
        if guarded:
            assert [record["gate"] for record in (found, missing, denied)] == ["allowed", "allowed", "denied"]
