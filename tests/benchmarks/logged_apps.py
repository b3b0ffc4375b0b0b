"""An application without work, with a guard, and with a request log. Arguments: APP PORT KAFKA TOPIC."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn

from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard
from gatekeeper.model import Lock
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.requestlog.confluent import ConfluentSink
from gatekeeper.requestlog.kafka import KafkaSink
from gatekeeper.sources.fixed import FixedSource

LOCKED = 200  # callers; the one that sends requests has no lock


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """No framework: a layer more can have no larger share."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def guarded() -> Guard:
    now = datetime.now(UTC)
    keys = [("caller", f"api_key:locked-{n}") for n in range(LOCKED)]
    return Guard(
        bare, Gate(FixedSource(*(Lock(*key, "daily", now, now + timedelta(days=1)) for key in keys)))
    )


def app_of(name: str, bootstrap: str, topic: str) -> Any:
    match name:
        case "bare":
            return bare
        case "Guard":
            return guarded()
        case "Guard + RequestLog, KafkaSink":
            return RequestLog(guarded(), to=KafkaSink(bootstrap, topic))
        case _:
            return RequestLog(guarded(), to=ConfluentSink(bootstrap, topic))


if __name__ == "__main__":
    app = app_of(sys.argv[1], *sys.argv[3:])
    uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="warning")
