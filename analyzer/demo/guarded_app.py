"""A small web application behind a gate: one worker of it. Its requests go to Kafka as its log.

It serves one request at a time, 20 ms each, so that whoever comes too often makes the others wait.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading

import uvicorn

from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, Receive, Scope, Send, header
from gatekeeper.limits import SlidingLog
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.requestlog.kafka import KafkaSink

DATABASE = "GATELOCK_DEMO_DATABASE"  # the variable that holds its URL
WORK_S = 0.020
BURST, PERIOD_S = 20, 1  # the exact limiter in front: it gives the overshoot its bound


class GuardedApp:
    """Answers each request after 20 ms of work, one after the other."""

    def __init__(self) -> None:
        self._counter = asyncio.Lock()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._counter:
            await asyncio.sleep(WORK_S)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"ok\n"})


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--port", type=int, required=True)
    given.add_argument("--kafka", required=True)
    given.add_argument("--topic", required=True)
    given.add_argument("--options", type=json.loads, default={})
    options = given.parse_args()

    gate = Gate(os.environ[DATABASE], name=f"shop-{options.port}")
    gate.ready(timeout=10)
    guarded = Guard(GuardedApp(), gate, SlidingLog(limit=BURST, period=PERIOD_S), caller=header("x-api-key"))
    app = RequestLog(guarded, to=KafkaSink(options.kafka, options.topic, options=options.options))
    config = uvicorn.Config(
        app, host="127.0.0.1", port=options.port, log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_leave_with_the_parent, args=(server,), daemon=True).start()
    with contextlib.closing(gate), contextlib.closing(app):
        server.run()
    os._exit(0)  # the client's threads have nothing left to say


def _leave_with_the_parent(server: uvicorn.Server) -> None:
    sys.stdin.read()  # ends when the parent closes its side, or is gone
    server.should_exit = True


if __name__ == "__main__":
    main()
