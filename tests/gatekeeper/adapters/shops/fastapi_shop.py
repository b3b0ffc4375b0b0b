"""A FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import redis.asyncio
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import StreamingResponse

from gatekeeper import Decision
from gatekeeper.adapters.fastapi import Guard, behind, peer
from tests.gatekeeper.adapters.shops import stock
from tests.gatekeeper.adapters.shops.asgi_shop import tenant


def application(guard: Guard) -> FastAPI:
    api, items = FastAPI(openapi_url=None), APIRouter(prefix="/items", dependencies=[Depends(guard)])
    guard.install(api)

    @items.api_route("/{number}", methods=["GET", "HEAD"])
    def item(request: Request, response: Response, number: int) -> dict[str, object]:
        response.headers.update(stock.FORGED)
        return stock.decision_fields(request.state.gatelock, number=number)

    @items.post("/{number}")
    async def add(request: Request) -> dict[str, object]:
        return stock.decision_fields(request.state.gatelock, length=len(await request.body()))

    @api.get("/expensive")
    async def expensive(decision: Decision = Depends(guard.cost(10))) -> dict[str, object]:
        return stock.decision_fields(decision)

    @api.get("/free/{name}", dependencies=[Depends(guard)])
    @api.get("/healthz", dependencies=[Depends(guard)])
    async def healthz(request: Request, response: Response) -> bool:
        response.headers.update(stock.FORGED)
        return hasattr(request.state, "gatelock")

    @api.get("/refunded")
    async def refunded(response: Response, decision: Decision = Depends(guard)) -> dict[str, object]:
        response.status_code = 404
        response.headers.update(stock.FORGED)
        return stock.decision_fields(decision)

    @api.get("/breaks", dependencies=[Depends(guard)])
    def breaks() -> None:
        raise RuntimeError("this page always breaks")

    @api.get("/stream/{name}", dependencies=[Depends(guard)])
    def stream(name: str) -> StreamingResponse:
        return StreamingResponse(streams(name))

    greeting(api, guard)
    api.include_router(items)
    return api


def greeting(api: FastAPI, guard: Guard) -> None:
    @api.websocket("/items/{number}")
    async def greet(websocket: WebSocket, decision: Decision = Depends(guard)) -> None:
        await websocket.accept()
        await websocket.send_json(stock.decision_fields(decision))
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass


async def streams(name: str) -> AsyncIterator[str]:
    yield "begun "
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for nap in stock.wait_for_release(name, lambda: asyncio.sleep(0.005)):
        await nap
    yield "done"


def shop() -> Callable[..., Any]:
    gate, shops = stock.open_gate(), {}
    for prefix, (limiters, given) in stock.setups(redis.asyncio.Redis).items():
        settings = dict(given)
        proxies = settings.pop("proxies", None)
        guard = Guard(
            gate, *limiters, tenant=tenant, address=behind(proxies) if proxies else peer,
            exempt=["/healthz", "/free/*"], **settings,
        )  # fmt: skip
        shops[prefix] = application(guard)
    return stock.mount_async(shops)
