"""A small web application behind a gate: one of its processes, which logs its requests to Kafka.

It serves one request at a time, for 20 ms each, so that a caller with too many requests delays the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os

import uvicorn

from analyzer.demo.tied_module import when_parent_ends
from analyzer.demo.traffic_size import PERIOD_S
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, Receive, Scope, Send, header
from gatekeeper.limits import SlidingLog
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.requestlog.kafka import KafkaSink

DATABASE = "GATELOCK_DEMO_DATABASE"  # environment variable with the URL
WORK_S = 0.020


class GuardedApp:
    """Answers each request after 20 ms of work, one after the other."""

    def __init__(self) -> None:
        self._mutex = asyncio.Lock()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._mutex:
            await asyncio.sleep(WORK_S)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"ok\n"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--burst", type=int, required=True, help="requests a second of one caller")
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()

    gate = Gate(os.environ[DATABASE], name=f"shop-{arguments.port}")
    gate.ready(timeout=10)
    guarded = Guard(
        GuardedApp(), gate, SlidingLog(limit=arguments.burst, period=PERIOD_S), caller=header("x-api-key")
    )
    app = RequestLog(guarded, to=KafkaSink(arguments.kafka, arguments.topic, options=arguments.options))
    config = uvicorn.Config(
        app, host="127.0.0.1", port=arguments.port, log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    when_parent_ends(lambda: setattr(server, "should_exit", True))
    with contextlib.closing(gate), contextlib.closing(app):
        server.run()
    os._exit(0)  # everything is closed: do not wait for the threads of the Kafka client


if __name__ == "__main__":
    main()
