"""A Django project, of sync views or of async ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import django
import redis
import redis.asyncio
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path

from gatekeeper.adapters.django import cost, exempt
from tests.gatekeeper.adapters.shops import stock

MIDDLEWARE = ["gatekeeper.adapters.django.GuardMiddleware"]


def item(request: HttpRequest, number: int = 0) -> JsonResponse:
    return JsonResponse(
        stock.decision_fields(request.gatelock, length=len(request.body)), headers=stock.FORGED
    )


@cost(10)
def expensive(request: HttpRequest) -> JsonResponse:
    return JsonResponse(stock.decision_fields(request.gatelock))


@exempt
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse(hasattr(request, "gatelock"), safe=False, headers=stock.FORGED)


def free(request: HttpRequest, name: str) -> JsonResponse:
    return JsonResponse(hasattr(request, "gatelock"), safe=False, headers=stock.FORGED)


def refunded(request: HttpRequest) -> JsonResponse:
    return JsonResponse(stock.decision_fields(request.gatelock), status=404, headers=stock.FORGED)


def breaks(request: HttpRequest) -> JsonResponse:
    raise RuntimeError("this page always breaks")


def stream(request: HttpRequest, name: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(streams(name))


def streams(name: str) -> Iterator[str]:
    yield "begun "
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for _ in stock.wait_for_release(name):
        pass
    yield "done"


async def stream_async(request: HttpRequest, name: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(streams_async(name))


async def streams_async(name: str) -> AsyncIterator[str]:
    yield "begun "
    if name == "breaks":
        raise RuntimeError("this page breaks half-way")
    for nap in stock.wait_for_release(name, lambda: asyncio.sleep(0.005)):
        await nap
    yield "done"


def make_async(view: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the view as a coroutine function."""

    async def view_async(request: HttpRequest, **named: Any) -> Any:
        return view(request, **named)

    view_async.__dict__.update(view.__dict__)
    return view_async


def urls(form: Callable[..., Any], streaming: Callable[..., Any]) -> tuple[Any, ...]:
    return (
        path("items/<int:number>", form(item)),
        path("expensive", form(expensive)),
        path("healthz", form(healthz)),
        path("free/<name>", form(free)),
        path("refunded", form(refunded)),
        path("breaks", form(breaks)),
        path("stream/<name>", streaming),
    )


def handlers(kind: type[Any], client: type[Any], patterns: tuple[Any, ...]) -> dict[str, Any]:
    """Returns a handler per setup, made while GATELOCK has its settings."""
    settings.configure(
        ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE, ROOT_URLCONF=patterns, SECRET_KEY="a test's",
        LOGGING_CONFIG=None, DATA_UPLOAD_MAX_MEMORY_SIZE=None,
    )  # fmt: skip
    django.setup()
    gate, shops = stock.open_gate(), {}
    for prefix, (limiters, given) in stock.setups(client).items():
        more = dict(given)
        proxies = more.pop("proxies", ())
        settings.GATELOCK = {
            "gate": gate, "limiters": limiters, "trusted_proxies": proxies, "exempt": ["/free/*"],
            "tenant": "tests.gatekeeper.adapters.shops.django_shop.tenant", **more,
        }  # fmt: skip
        shops[prefix] = kind()
    return shops


def tenant(request: HttpRequest) -> str:
    return request.headers.get("x-tenant", "")


def shop() -> Callable[..., Any]:
    return stock.mount(handlers(WSGIHandler, redis.Redis, urls(lambda view: view, stream)))


def shop_async() -> Callable[..., Any]:
    shops = handlers(ASGIHandler, redis.asyncio.Redis, urls(make_async, stream_async))
    mounted = stock.mount_async(shops)

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":  # Django has no lifespan
            await mounted(scope, receive, send)

    return application
