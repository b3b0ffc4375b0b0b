"""CPU of one request through RequestLog, beside a middleware that writes the same line by FileHandler of
`logging`. `here` is the request's own thread, `all` the whole process, our writer included."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gatekeeper.adapters.asgi import header
from gatekeeper.requestlog.asgi import RequestLog

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/v1/items/7",
    "headers": [(b"host", b"shop"), (b"user-agent", b"bench"), (b"x-api-key", b"acme")],
    "client": ("192.0.2.7", 4711),
    "state": {},
}
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
BODY = {"type": "http.response.body", "body": b"ok"}


class Cost(NamedTuple):
    """Nanoseconds of CPU per request."""

    here: float
    all: float


async def shop(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send(BODY)


class Handled:
    """The usual solution: a middleware that logs a line of JSON to a file."""

    def __init__(self, app: Any, path: Path) -> None:
        self.app = app
        self.logger = logging.getLogger("bench.access")
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.handler = logging.FileHandler(path)
        self.handler.setFormatter(logging.Formatter("%(message)s"))
        self.logger.addHandler(self.handler)
        self.caller = header("x-api-key")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began, status, size = time.perf_counter_ns(), 0, 0

        async def sending(message: Any) -> None:
            nonlocal status, size
            await send(message)
            status = message.get("status", status)
            size += len(message.get("body", b""))

        await self.app(scope, receive, sending)
        record = {
            "ts": time.time_ns() // 1000,
            "caller": {"api_key": self.caller(scope)[8:]},
            "address": scope["client"][0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "bytes": size,
            "duration": (time.perf_counter_ns() - began) // 1000,
        }
        self.logger.info(json.dumps(record))

    def close(self) -> None:
        self.logger.removeHandler(self.handler)
        self.handler.close()


def measured(app: Any, finish: Callable[[], object], requests: int) -> Cost:
    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    async def all_of_them() -> None:
        for _ in range(requests):
            await app(SCOPE, receive, send)

    here, everywhere = time.thread_time_ns(), time.process_time_ns()
    asyncio.run(all_of_them())
    here = time.thread_time_ns() - here
    finish()
    return Cost(here / requests, (time.process_time_ns() - everywhere) / requests)


@contextmanager
def logged(folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    log = RequestLog(shop, to=folder / "ours.log", buffer=10**6)
    yield log, lambda: log.flush(60)
    assert log.dropped == log.waiting == 0
    log.close()


@contextmanager
def handled(folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    app = Handled(shop, folder / "usual.log")
    yield app, lambda: None
    app.close()


@contextmanager
def bare(folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    yield shop, lambda: None


def figures(requests: int, rounds: int) -> dict[str, Cost]:
    """Returns the cost that each adds to the application: the best of several interleaved rounds."""
    best: dict[str, Cost] = {}
    for _ in range(rounds):
        for name, made in (("nothing", bare), ("FileHandler", handled), ("RequestLog", logged)):
            with tempfile.TemporaryDirectory() as folder, made(Path(folder)) as (app, finish):
                cost = measured(app, finish, requests)
            best[name] = Cost(*map(min, zip(cost, best.get(name, cost), strict=True)))
    nothing = best.pop("nothing")
    return {name: Cost(cost.here - nothing.here, cost.all - nothing.all) for name, cost in best.items()}


def run(requests: int = 20_000, rounds: int = 5) -> None:
    extra = figures(requests, rounds)
    usual = extra["FileHandler"]
    print(f"request log: CPU of {requests:,} requests, best of {rounds} rounds, beyond the application's own")
    for name, cost in extra.items():
        print(
            f"  {name:12} {cost.here / 1e3:6.1f} µs in the request's thread ({cost.here / usual.here:.2f}),"
            f" {cost.all / 1e3:6.1f} µs in all ({cost.all / usual.all:.2f})"
        )


if __name__ == "__main__":
    run()
