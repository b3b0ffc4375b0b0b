"""The guard for Flask, where it differs from the others; test_frameworks.py has what they share."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from gatekeeper import Concurrency, Gate, SlidingLog
from gatekeeper.adapters.flask import Guard, header, user
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock

BOB = {"x-api-key": "bob"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    gate = Gate(FixedSource(a_lock("user:ann")), clock=clock)
    assert gate.ready(1.0)
    return gate


def is_broken(response: flask.Response) -> bool:
    return response.status_code >= 500


def an_app(guard: Guard) -> flask.Flask:
    app = flask.Flask("shop")
    app.add_url_rule("/items", "items", lambda: {"left": flask.g.gatelock.remaining})
    app.add_url_rule("/breaks", "breaks", breaks)
    guard.init_app(app)
    return app


def breaks() -> Any:
    raise RuntimeError("broken")


def test_the_caller_may_come_from_an_earlier_function(gate: Gate) -> None:
    app = flask.Flask("shop")

    @app.before_request
    def sign_in() -> None:
        flask.g.name = flask.request.args.get("as")

    Guard(gate, app=app, caller=user(lambda environ: flask.g.name))
    app.add_url_rule("/items", "items", lambda: "here")
    client = app.test_client()
    assert [client.get(f"/items{query}").status_code for query in ("?as=ann", "?as=bob", "")] == [
        429,
        200,
        200,
    ]


def test_a_cost_may_depend_on_the_request(gate: Gate, clock: ManualClock) -> None:
    guard = Guard(gate, SlidingLog(10, 10, clock=clock))
    app = an_app(guard)

    @app.get("/export")
    @guard.cost(lambda: int(flask.request.args["rows"]))
    def export() -> dict[str, Any]:
        return {"left": flask.g.gatelock.remaining}

    assert app.test_client().get("/export?rows=7", headers=BOB).json == {"left": 3}


def test_requests_in_one_application_context_are_each_refunded_once(gate: Gate, clock: ManualClock) -> None:
    """Tests that push a context, and some commands, have one `g` for all requests."""
    burst = SlidingLog(10, 10, clock=clock)
    app = an_app(Guard(gate, burst, refund_when=is_broken, caller=header("x-api-key")))
    with app.app_context():
        client = app.test_client()
        client.get("/items", headers=BOB)
        assert client.get("/breaks", headers=BOB).status_code == 500
        assert client.get("/items", headers=BOB).json == {"left": 8}


@pytest.mark.parametrize("debugging", [True, False])
def test_a_view_that_raises_is_refunded_and_no_longer_in_flight_with_and_without_debugging(
    gate: Gate, clock: ManualClock, debugging: bool
) -> None:
    burst, work = SlidingLog(10, 10, clock=clock), Concurrency(1)
    app = an_app(Guard(gate, burst, work, refund_when=is_broken))
    app.config["PROPAGATE_EXCEPTIONS"] = debugging
    client = app.test_client()
    for _ in range(2):
        if debugging:
            with pytest.raises(RuntimeError):
                client.get("/breaks", headers=BOB)
        else:
            # Flask makes a stream of an error's page, so the client has to read it, as a server does.
            assert client.get("/breaks", headers=BOB, buffered=True).status_code == 500
    assert (burst.peek("api_key:bob").remaining, work.in_flight("api_key:bob")) == (10, 0)


def test_a_response_that_another_function_breaks_is_no_longer_in_flight(gate: Gate) -> None:
    work = Concurrency(1)
    app = flask.Flask("shop")
    app.after_request(lambda response: breaks())
    guard = Guard(gate, work, app=app)
    assert app.extensions["gatelock"] is guard
    app.add_url_rule("/items", "items", lambda: "here")
    for _ in range(2):
        assert app.test_client().get("/items", headers=BOB).status_code == 500
    assert work.in_flight("api_key:bob") == 0


def test_two_guards_of_one_application_both_check(gate: Gate, clock: ManualClock) -> None:
    app = an_app(Guard(gate, SlidingLog(10, 10, clock=clock, name="by key")))
    Guard(gate, Concurrency(1, name="by user"), app=app, caller=lambda environ: "", refund_when=is_broken)
    served = app.test_client().get("/items", headers=BOB)
    assert served.headers.getlist("ratelimit") == ['"by user";r=0;t=0', '"by key";r=9;t=10']


def test_a_function_may_exempt_preflight_requests(gate: Gate, clock: ManualClock) -> None:
    burst = SlidingLog(1, 10, clock=clock)
    app = an_app(Guard(gate, burst, exempt=lambda request: request.method == "OPTIONS"))
    client = app.test_client()
    assert [client.options("/items", headers=BOB).status_code for _ in range(3)] == [200, 200, 200]
    assert burst.peek("api_key:bob").remaining == 1
