"""An ASGI application without a framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import redis.asyncio

from gatekeeper.adapters.asgi import Guard, behind, peer
from tests.gatekeeper.adapters.shops import stock

Scope = dict[str, Any]


async def application(scope: Scope, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
    elif scope["type"] == "websocket":
        await greet(scope, receive, send)
    elif scope["path"] == "/breaks":
        raise RuntimeError("this page always breaks")
    elif scope["path"].startswith("/stream/"):
        await stream(scope["path"].rpartition("/")[2], send)
    else:
        body = json.dumps(await page(scope, receive)).encode()
        await start_response(send, 404 if scope["path"] == "/refunded" else 200)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def page(scope: Scope, receive: Any) -> object:
    if scope["path"] == "/healthz" or scope["path"].startswith("/free/"):
        return "gatelock" in scope.get("state", {})
    length = 0
    while scope["method"] == "POST":
        message = await receive()
        length += len(message["body"])
        if not message.get("more_body"):
            break
    return stock.decision_fields(scope["state"]["gatelock"], length=length)


async def start_response(send: Any, status: int) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in stock.FORGED.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def stream(name: str, send: Any) -> None:
    await start_response(send, 200)
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for nap in stock.wait_for_release(name, lambda: asyncio.sleep(0.005)):
        await nap
    await send({"type": "http.response.body", "body": b"done"})


async def greet(scope: Scope, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    text = json.dumps(stock.decision_fields(scope["state"]["gatelock"]))
    await send({"type": "websocket.send", "text": text})
    while (await receive())["type"] != "websocket.disconnect":
        pass


def tenant(scope: Scope) -> str:
    return next((value.decode() for name, value in scope["headers"] if name == b"x-tenant"), "")


def resource(scope: Scope) -> str:
    return "/items/{number}" if scope["path"].startswith("/items/") else scope["path"]


def shop() -> Callable[..., Any]:
    gate, shops = stock.open_gate(), {}
    for prefix, (limiters, given) in stock.setups(redis.asyncio.Redis).items():
        settings = dict(given)
        proxies = settings.pop("proxies", None)
        shops[prefix] = Guard(
            application, gate, *limiters, tenant=tenant, resource=resource,
            address=behind(proxies) if proxies else peer,
            cost=lambda scope: 10 if scope["path"] == "/expensive" else 1,
            exempt=["/healthz", "/free/*"], **settings,
        )  # fmt: skip
    return stock.mount_async(shops)
