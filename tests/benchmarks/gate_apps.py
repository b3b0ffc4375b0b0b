"""One application without limits, with `Guard`, and with slowapi. Arguments: APP PORT LOOP HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware

from gatekeeper import Gate, TokenBucket
from gatekeeper.adapters.asgi import Guard
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource

LOCKED = 200  # callers; the one that sends requests has no lock
LIMIT = 1_000_000  # per second; refuses no request


def api(wrap: Callable[[Any], Any] = lambda endpoint: endpoint) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/items")
    @wrap
    async def items(request: Request) -> dict[str, str]:
        return {"for": request.headers["x-api-key"]}

    return app


def gate() -> Gate:
    now = datetime.now(UTC)
    keys = [("caller", f"api_key:locked-{n}") for n in range(LOCKED)] + [("range", "203.0.113.0/24")]
    return Gate(FixedSource(*(Lock(*key, "daily", now, now + timedelta(days=1)) for key in keys)))


def limiter(**settings: Any) -> Limiter:
    return Limiter(key_func=lambda request: request.headers["x-api-key"], **settings)


def with_decorator() -> FastAPI:
    own = limiter()
    app = api(own.limit(f"{LIMIT}/second"))
    app.state.limiter = own
    return app


def with_middleware() -> FastAPI:
    app = api()
    app.state.limiter = limiter(default_limits=[f"{LIMIT}/second"])
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


async def bare(scope: Any, _receive: Any, send: Any) -> None:
    """No framework: a layer more can have no larger share."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


APPS: dict[str, Callable[[], Any]] = {
    "nothing": api,
    "Guard": lambda: Guard(api(), gate()),
    "Guard, TokenBucket": lambda: Guard(api(), gate(), TokenBucket(LIMIT, 1)),
    "slowapi, decorator": with_decorator,
    "slowapi, middleware": with_middleware,
    "bare ASGI": lambda: bare,
    "bare ASGI, Guard": lambda: Guard(bare, gate()),
}

if __name__ == "__main__":
    name, port, loop, http = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    lifespan = "off" if name.startswith("bare") else "on"
    uvicorn.run(APPS[name](), port=port, loop=loop, http=http, lifespan=lifespan,
                access_log=False, log_level="warning")  # fmt: skip
