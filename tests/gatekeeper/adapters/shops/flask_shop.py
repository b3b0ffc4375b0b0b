"""A Flask application, whose callers are in `g`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flask

from gatekeeper.adapters.flask import Guard, behind, peer
from gatekeeper.identity import caller_of
from tests.gatekeeper.adapters.shops import stock


def caller(environ: object) -> str:
    """Returns the caller by the key that an earlier function has stored in `g`."""
    try:
        return caller_of(api_key=flask.g.key)
    except ValueError:
        return ""


def forge(response: flask.Response) -> flask.Response:
    response.headers.update(stock.FORGED if response.status_code in (200, 404) else {})
    return response


def application(guard: Guard) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.before_request
    def read_key() -> None:
        flask.g.key = flask.request.headers.get("x-api-key")

    guard.init_app(app)

    app.after_request(forge)

    @app.get("/items/<int:number>")
    def item(number: int) -> dict[str, object]:
        return stock.decision_fields(flask.g.gatelock, number=number)

    @app.post("/items/<int:number>")
    def add(number: int) -> dict[str, object]:
        return stock.decision_fields(flask.g.gatelock, length=len(flask.request.data))

    @app.get("/expensive")
    @guard.cost(10)
    def expensive() -> dict[str, object]:
        return stock.decision_fields(flask.g.gatelock)

    @app.get("/healthz")
    @guard.exempt
    def healthz() -> flask.Response:
        return flask.jsonify("gatelock" in flask.g)

    @app.get("/free/<name>")
    def free(name: str) -> flask.Response:
        return flask.jsonify("gatelock" in flask.g)

    @app.get("/refunded")
    def refunded() -> tuple[dict[str, object], int]:
        return stock.decision_fields(flask.g.gatelock), 404

    @app.get("/breaks")
    def breaks() -> None:
        raise RuntimeError("this page always breaks")

    @app.get("/stream/<name>")
    def stream(name: str) -> Iterator[str]:
        return streams(name)

    return app


def streams(name: str) -> Iterator[str]:
    yield "begun "
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for _ in stock.wait_for_release(name):
        pass
    yield "done"


def shop() -> Callable[..., Any]:
    gate, shops = stock.open_gate(), {}
    for prefix, (limiters, given) in stock.setups().items():
        settings = dict(given)
        proxies = settings.pop("proxies", None)
        guard = Guard(
            gate, *limiters, caller=caller, tenant=lambda environ: environ.get("HTTP_X_TENANT", ""),
            address=behind(proxies) if proxies else peer, exempt=["/free/*"], **settings,
        )  # fmt: skip
        shops[prefix] = application(guard)
    return stock.mount(shops)
