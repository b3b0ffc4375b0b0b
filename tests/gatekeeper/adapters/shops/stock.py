"""Parts of every shop: one gate, limiters in Redis that all of its workers share, and the settings.

A shop has separate applications under /plain, /shadow, /busy and so on, each with another guard.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis

from gatekeeper import Concurrency, Decision, Gate, LeakyQueue, SlidingLog, TokenBucket
from gatekeeper.adapters.queued_requests import Waiting
from gatekeeper.limits.redis import RedisStore

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))  # of the test
PATIENCE_S = 20.0
FORGED = {"Gatelock": 'denied;policy="daily"'}  # what the applications respond with themselves


def open_gate() -> Gate:
    """Returns a gate that knows its locks; logs requests that would have been denied into a file."""
    log = logging.getLogger("gatekeeper")
    log.addHandler(logging.FileHandler(FOLDER / "shadow.log"))
    log.setLevel(logging.INFO)
    gate = Gate(f"file://{FOLDER}/locks.json")
    assert gate.ready(PATIENCE_S)
    return gate


def setups(client: type[Any] = redis.Redis) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Returns limiters and settings of the applications by their prefix."""
    store = RedisStore(client.from_url(os.environ["SHOP_REDIS"]), timeout=PATIENCE_S)
    burst = SlidingLog(20, 60, name="burst", store=store)
    small = SlidingLog(2, 60, name="small", store=store)
    free = {"refund_when": is_free}
    return {
        "open": ((), {}),
        "plain": ((burst,), free),
        "shadow": ((small,), {"shadow": True}),
        "legacy": ((burst,), {"headers": "legacy"}),
        "both": ((burst,), {"headers": "both"}),
        "off": ((burst,), {"headers": "off"}),
        "two": ((TokenBucket(4, 600, name="wide", store=store), small), {}),
        "busy": ((burst, Concurrency(1, name="busy", store=store)), free),
        "queue": ((Waiting(LeakyQueue(1, 1, 3, name="queue", store=store), timeout=5),), {}),
        "proxied": ((burst,), {"proxies": ["127.0.0.1"]}),
    }


def is_free(response: Any) -> bool:
    """Whether a shop refunds the request."""
    status = getattr(response, "status_code", None) or response.status
    return status == 404 or status >= 500


def by_prefix(shops: dict[str, Any], path: str) -> tuple[Any, str]:
    """Returns the application under a path, and the path below its prefix."""
    _, prefix, rest = path.split("/", 2)
    return shops[prefix], f"/{rest}"


def mount(shops: dict[str, Any]) -> Callable[..., Any]:
    """Returns one WSGI application that has the others under their prefixes."""

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        shop, environ["PATH_INFO"] = by_prefix(shops, environ["PATH_INFO"])
        return shop(environ, start_response)

    return application


def mount_async(shops: dict[str, Any]) -> Callable[..., Any]:
    """Returns one ASGI application that has the others under their prefixes."""

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            shop = shops["plain"]
        else:
            shop, path = by_prefix(shops, scope["path"])
            scope = scope | {"path": path, "raw_path": path.encode()}
        await shop(scope, receive, send)

    return application


def decision_fields(decision: Decision, **more: object) -> dict[str, object]:
    """Returns the response of an application: its decision, its worker, and `more`."""
    fields = {"policy": decision.policy, "remaining": decision.remaining, "shadow": decision.shadow}
    return fields | {"tags": decision.tags, "worker": os.getpid()} | more


def wait_for_release(name: str, wait: Callable[[], object] = partial(time.sleep, 0.005)) -> Any:
    """Waits until the test releases the stream of this name, or its patience ends."""
    end_s = time.monotonic() + PATIENCE_S
    while not (FOLDER / name).exists() and time.monotonic() < end_s:
        yield wait()
