"""The guard for WSGI, called as a server calls it; test_frameworks.py has it under a real one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import flask
import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path

from gatekeeper import Concurrency, Gate, SlidingLog
from gatekeeper.adapters.wsgi import DECISION, Guard, routes
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock

Environ = dict[str, Any]


def a_request(key: str, **more: Any) -> Environ:
    environ: Environ = {"HTTP_X_API_KEY": key, "REMOTE_ADDR": "192.0.2.7", "QUERY_STRING": ""} | more
    setup_testing_defaults(environ)
    return environ


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    gate = Gate(FixedSource(a_lock("api_key:acme")), clock=clock)
    assert gate.ready(1.0)
    return gate


def call(app: Any, environ: Environ) -> list[Any]:
    """Returns the statuses of started responses, then the chunks of the body."""
    sent: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Callable[[bytes], None]:
        sent.append(int(status[:3]))
        return sent.append

    body = app(environ, start)
    try:
        sent.extend(body)
    finally:
        getattr(body, "close", lambda: None)()
    return sent


def test_exempt_paths_are_compared_after_decoding(gate: Gate) -> None:
    """PEP 3333 decodes their bytes as latin-1."""
    sent = "/größe".encode().decode("latin-1")

    def app(environ: Environ, start: Callable[..., object]) -> list[bytes]:
        start("200 OK", [])
        return [b"hello"]

    for exempt, status in (("/größe", 200), ("/groesse", 429)):
        sent_ = call(Guard(app, gate, exempt=[exempt]), a_request("acme", PATH_INFO=sent))
        assert sent_[0] == status
    assert routes(["/größe"])({"PATH_INFO": sent}) == "/größe"


def broken(answer: Any) -> bool:
    return bool(answer.status >= 500)


def test_the_guard_conforms_to_wsgi(gate: Gate) -> None:
    """The validator of wsgiref wraps both the guard and the application."""

    def app(environ: Environ, start: Any) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"here"]

    for limiters in ((), (SlidingLog(9, 9),), (Concurrency(9),)):
        guard = validator(Guard(validator(app), gate, *limiters, refund_when=broken))
        assert call(guard, a_request("bob")) == [200, b"here"]
        assert call(guard, a_request("acme"))[0] == 429


def test_a_file_is_returned_to_the_server_unwrapped(gate: Gate) -> None:
    """The server may then send it by itself. Only if no limiter has to know when the response ends."""
    file = FileWrapper(sys.stdin)

    def app(environ: Environ, start: Any) -> FileWrapper:
        start("200 OK", [])
        return file

    assert Guard(app, gate, SlidingLog(9, 9))(a_request("bob"), lambda *_: None) is file


def test_an_application_that_starts_two_responses_is_refunded_once(gate: Gate, clock: ManualClock) -> None:
    burst = SlidingLog(9, 9, clock=clock)

    def app(environ: Environ, start: Any) -> list[bytes]:
        start("200 OK", [])
        try:
            fails_at_once(environ, start)
        except RuntimeError:
            start("500 Internal Server Error", [], sys.exc_info())
        return [b"sorry"]

    guard = Guard(app, gate, burst, refund_when=lambda answer: answer.status == 200)
    assert call(guard, a_request("bob")) == [200, 500, b"sorry"]
    assert burst.peek("api_key:bob").remaining == 9


def test_an_application_may_use_the_write_callable(gate: Gate) -> None:
    def app(environ: Environ, start: Any) -> list[bytes]:
        start("200 OK", [])(b"by hand")
        return []

    assert call(Guard(app, gate, Concurrency(1)), a_request("bob")) == [200, b"by hand"]


def fails_at_once(environ: Environ, start: Any) -> list[bytes]:
    raise RuntimeError("at once")


def fails_before_it_starts(environ: Environ, start: Any) -> Iterator[bytes]:
    yield from fails_at_once(environ, start)


def fails_when_it_is_closed(environ: Environ, start: Any) -> Any:
    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"here"])

        def close(self) -> None:
            raise RuntimeError("when closed")

    start("500 Internal Server Error", [])
    return Body()


@pytest.mark.parametrize("app", [fails_at_once, fails_before_it_starts, fails_when_it_is_closed])
def test_an_application_that_fails_can_be_refunded_and_is_no_longer_in_flight(
    gate: Gate, clock: ManualClock, app: Any
) -> None:
    burst, work = SlidingLog(9, 9, clock=clock), Concurrency(1)
    guard = Guard(app, gate, burst, work, refund_when=broken)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            call(guard, a_request("bob"))
    assert (burst.peek("api_key:bob").remaining, work.in_flight("api_key:bob")) == (9, 0)


def test_flask_and_django_can_be_guarded_as_a_whole(gate: Gate) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.META[DECISION].remaining))

    app = flask.Flask("shop")
    app.add_url_rule("/items", "items", lambda: str(flask.request.environ[DECISION].remaining))
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None)
    with override_settings(MIDDLEWARE=[], ROOT_URLCONF=(path("items", view),)):
        for whole in (app, WSGIHandler()):
            guard = Guard(whole, gate, SlidingLog(9, 9))
            assert call(guard, a_request("bob", PATH_INFO="/items")) == [200, b"8"]
            assert call(guard, a_request("acme", PATH_INFO="/items"))[0] == 429
