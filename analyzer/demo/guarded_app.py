"""A small web application behind a gate: one of its processes, which logs its requests to Kafka.

It serves one request at a time, for 20 ms, an export for longer, so that a caller with too many requests
delays the others. A request to `/login` has a wrong password.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import uvicorn

from analyzer.demo.tied_module import when_parent_ends
from analyzer.demo.traffic_size import PERIOD_S
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, Message, Receive, Scope, Send, behind, header, header_text, routes
from gatekeeper.limits import SlidingLog
from gatekeeper.requestlog.asgi import RequestLog
from gatekeeper.requestlog.kafka import KafkaSink

DATABASE = "GATELOCK_DEMO_DATABASE"  # environment variable with the URL
WORK_S = 0.020
EXPORT, EXPORT_S = "/v1/export", 0.060
LOGIN = "/login"
ROUTES = ("/v1/items/{id}", "/v1/search", "/v1/orders", EXPORT, LOGIN)
BODIES = {"/v1/search": b"found\n" * 900, EXPORT: b"row\n" * 30_000}  # of other paths: ok
CLIENT_ADDRESS = behind(["127.0.0.1/32"])  # the clients of the demo name another one in X-Forwarded-For
CLIENT = b"x-demo-client"  # the header of requests of the demo's clients
VISITORS = "visitors-"  # how the names of files begin


class GuardedApp:
    """Answers each request after some work, one after the other; one to `/login` at once, with 401."""

    def __init__(self) -> None:
        self._mutex = asyncio.Lock()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path != LOGIN:
            async with self._mutex:
                await asyncio.sleep(EXPORT_S if path == EXPORT else WORK_S)
        body = BODIES.get(path, b"ok\n")
        headers = [(b"content-length", str(len(body)).encode())]
        status = 401 if path == LOGIN else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class VisitorLog:
    """Notes requests of others than the demo's clients, which know only their own, as lines of JSON.

    Args:
        app: The application, with its guard and its request log.
        file: Where to append; read by `outside_requests`.
    """

    def __init__(self, app: RequestLog, file: Path) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if CLIENT in headers:
            await self._app(scope, receive, send)
            return
        verdict = ""

        async def noting(message: Message) -> None:
            nonlocal verdict
            if message["type"] == "http.response.start":
                verdict = dict(message["headers"]).get(b"gatelock", b"").decode("latin-1")
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            key, address = headers.get(b"x-api-key", b"").decode("latin-1"), CLIENT_ADDRESS(scope)
            caller = f"api_key:{key}" if key else f"address:{address}"
            with self._file.open("a") as log:
                log.write(json.dumps([caller, verdict.startswith("denied")]) + "\n")


def outside_requests(folder: Path) -> Counter[tuple[str, bool]]:
    """Returns the requests of visitors, by caller and by whether a lock denied them."""
    lines = (line for file in folder.glob(f"{VISITORS}*") for line in file.read_text().splitlines())
    return Counter((caller, is_denied) for caller, is_denied in map(json.loads, lines))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for notes about visitors")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--burst", type=int, required=True, help="requests a second of one caller")
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()

    gate = Gate(os.environ[DATABASE], name="shop", report_status=True)
    gate.ready(timeout=10)
    guarded = Guard(
        GuardedApp(),
        gate,
        SlidingLog(limit=arguments.burst, period=PERIOD_S),
        caller=header("x-api-key"),
        address=CLIENT_ADDRESS,
        tenant=header_text("x-tenant"),
        resource=routes(ROUTES),
    )
    log = RequestLog(guarded, to=KafkaSink(arguments.kafka, arguments.topic, options=arguments.options))
    app = VisitorLog(log, arguments.folder / f"{VISITORS}{arguments.port}.jsonl")
    config = uvicorn.Config(
        app, host="127.0.0.1", port=arguments.port, log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    when_parent_ends(lambda: setattr(server, "should_exit", True))
    with contextlib.closing(gate), contextlib.closing(log):
        server.run()
    os._exit(0)  # everything is closed: do not wait for the threads of the Kafka client


if __name__ == "__main__":
    main()
