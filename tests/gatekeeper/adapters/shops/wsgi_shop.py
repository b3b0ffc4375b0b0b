"""A WSGI application without a framework."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gatekeeper.adapters.wsgi import Guard, behind, peer
from tests.gatekeeper.adapters.shops import stock

Environ = dict[str, Any]
JSON = [*[("Content-Type", "application/json")], *stock.FORGED.items()]


def application(environ: Environ, start_response: Any) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/breaks":
        raise RuntimeError("this page always breaks")
    if path.startswith("/stream/"):
        return streams(path.rpartition("/")[2], start_response)
    start_response("404 Not Found" if path == "/refunded" else "200 OK", JSON)
    body = json.dumps(page(environ)).encode()
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def page(environ: Environ) -> object:
    if environ["PATH_INFO"] == "/healthz" or environ["PATH_INFO"].startswith("/free/"):
        return "gatelock.decision" in environ
    length = len(environ["wsgi.input"].read()) if environ["REQUEST_METHOD"] == "POST" else 0
    return stock.decision_fields(environ["gatelock.decision"], length=length)


def streams(name: str, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", JSON)
    yield b"begun "
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for _ in stock.wait_for_release(name):
        pass
    yield b"done"


def resource(environ: Environ) -> str:
    path = environ["PATH_INFO"]
    return "/items/{number}" if path.startswith("/items/") else path


def shop() -> Callable[..., Any]:
    gate, shops = stock.open_gate(), {}
    for prefix, (limiters, given) in stock.setups().items():
        settings = dict(given)
        proxies = settings.pop("proxies", None)
        shops[prefix] = Guard(
            application, gate, *limiters,
            tenant=lambda environ: environ.get("HTTP_X_TENANT", ""), resource=resource,
            address=behind(proxies) if proxies else peer,
            cost=lambda environ: 10 if environ["PATH_INFO"] == "/expensive" else 1,
            exempt=["/healthz", "/free/*"], **settings,
        )  # fmt: skip
    return stock.mount(shops)
