"""The gate compared with other libraries: the cost of a decision, and an application's requests per second.

    make bench-gate                              # some two minutes; starts a redis-server
    make bench-gate ARGS='--only requests'       # or: checks
    make bench-gate ARGS='--rounds 9 --seconds 3'

Rounds are interleaved, so that other load on the machine affects all of them; compare within one run. uvicorn
runs in one process with uvloop and httptools (--plain: with neither). The load comes from one process over
sixteen kept connections. CPU is the server's, per request, in its best round; it depends less on other load
than requests per second do.
"""

from __future__ import annotations

import argparse
import platform
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import redis
from limits import RateLimitItemPerSecond, storage, strategies
from pycrowdsec.cache import Cache

from gatekeeper import Gate
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource
from tests.support.servers import Missing
from tests.support.servers.child import accepts, free_port
from tests.support.servers.redis import NativeRedis

APPS = ("nothing", "Guard", "Guard, TokenBucket", "slowapi, decorator", "slowapi, middleware",
        "bare ASGI", "bare ASGI, Guard")  # fmt: skip
CONNECTIONS = 16
LOCKED = [f"192.0.2.{n}" for n in range(200)]
CLEAR, NAME = "198.51.100.7", "api_key:acme"
REQUEST = b"GET /items HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: acme\r\naccept: */*\r\n\r\n"
NAMES = ("pycrowdsec", "limits", "redis", "slowapi", "fastapi", "uvicorn", "uvloop", "httptools")


# -- the cost of a decision --------------------------------------------------------------------------


def gate_on(*scopes: tuple[str, str]) -> Gate:
    now = datetime.now(UTC)
    found = Gate(FixedSource(*(Lock(*scope, "p", now, now + timedelta(days=1)) for scope in scopes)))
    assert found.ready(20)
    return found


class Check(NamedTuple):
    """A decision to measure, and whether the library refuses a locked caller."""

    call: Callable[[], object]
    refused: Callable[[], bool]
    calls: int = 100_000


def checks(redis_url: str | None, stack: ExitStack) -> dict[str, Check]:
    callers = gate_on(*(("caller", f"api_key:locked-{n}") for n in range(len(LOCKED))))
    addresses = gate_on(*(("address", address) for address in LOCKED), ("range", "203.0.113.0/24"))
    for gate in (callers, addresses):
        stack.callback(gate.close)
    cache = Cache()
    for address in LOCKED:
        cache.insert(address, "ban")
    fixed = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
    many, none = RateLimitItemPerSecond(10**9, 3600), RateLimitItemPerSecond(1, 3600)
    fixed.hit(none, "locked")
    found = {
        "Gate.allow, by caller": Check(
            partial(callers.allow, NAME), lambda: not callers.allow("api_key:locked-7")
        ),
        "Gate.check, by caller": Check(
            partial(callers.check, NAME), lambda: not callers.check("api_key:locked-7")
        ),
        "Gate.check, by caller, address and range": Check(
            partial(addresses.check, NAME, address=CLEAR),
            lambda: not addresses.check(NAME, address="203.0.113.9"),
        ),
        "pycrowdsec, look-up of an address": Check(
            partial(cache.get, CLEAR), lambda: cache.get(LOCKED[7]) == "ban", 10_000
        ),
        "limits, in memory": Check(
            partial(fixed.hit, many, NAME), lambda: not fixed.hit(none, "locked"), 50_000
        ),
    }
    return found | (over_redis(redis_url) if redis_url else {})


def over_redis(url: str) -> dict[str, Check]:
    client = redis.Redis.from_url(url)
    client.set("locked", "1")
    window = strategies.FixedWindowRateLimiter(storage.RedisStorage(url))
    many, none = RateLimitItemPerSecond(10**9, 3600), RateLimitItemPerSecond(1, 3600)
    window.hit(none, "locked")
    return {
        "Redis, one round trip (EXISTS)": Check(
            partial(client.exists, NAME), lambda: client.exists("locked") == 1, 2_000
        ),
        "limits, in Redis": Check(
            partial(window.hit, many, NAME), lambda: not window.hit(none, "locked"), 2_000
        ),
    }


def print_checks(rounds: int) -> None:
    with ExitStack() as stack:
        try:
            server = NativeRedis(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatelock-redis-")))
            )
            server.start()
            stack.callback(server.close)
            url = server.url
        except Missing as missing:
            print(f"Redis was not measured: {missing}")
            url = None
        found = checks(url, stack)
        for name, check in found.items():
            assert check.refused(), f"{name} does not refuse a locked caller"
        took: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, check in found.items():
                seconds = timeit.timeit("call()", globals={"call": check.call}, number=check.calls)
                took[name].append(seconds / check.calls * 1e9)
        least = min(took["Gate.check, by caller"])
        print("\n| decision, no lock applies | best, ns | median, ns | times Gate.check |\n|---|---|---|---|")
        for name, ns in took.items():
            print(f"| {name} | {min(ns):,.0f} | {statistics.median(ns):,.0f} | {min(ns) / least:,.1f} |")


# -- requests per second -----------------------------------------------------------------------------


class Round(NamedTuple):
    per_s: float
    cpu_us: float  # of the server, per request


class Load:
    """Sixteen connections to one server; each sends the next request as soon as it has a response."""

    def __init__(self, port: int) -> None:
        self._connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        self._connections[0].sendall(REQUEST)
        first = b""
        while not first.endswith((b'{"for":"acme"}', b"\r\n\r\nok")):
            first += self._connections[0].recv(65_536)
        self._bytes = len(first)  # of every response: they differ only in their date
        self._selector = selectors.EpollSelector()
        for number, connection in enumerate(self._connections):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, number)

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.close()

    def run(self, seconds: float) -> int:
        """Returns how many responses came. Asserts that all have status 200."""
        missing, responses = [0] * CONNECTIONS, 0
        for number, connection in enumerate(self._connections):
            connection.sendall(REQUEST)
            missing[number] = self._bytes
        end_s = time.perf_counter() + seconds
        busy, over = CONNECTIONS, False
        while busy:
            for key, _ in self._selector.select():
                connection, number = key.fileobj, key.data
                data = connection.recv(65_536)  # type: ignore[union-attr]  # a socket
                assert missing[number] < self._bytes or data.startswith(b"HTTP/1.1 200 "), data[:200]
                missing[number] -= len(data)
                assert missing[number] >= 0, "a response is longer than the first"
                if missing[number]:
                    continue
                responses += 1
                if over:
                    busy -= 1
                else:
                    connection.sendall(REQUEST)
                    missing[number] = self._bytes
            over = over or time.perf_counter() >= end_s
        return responses


@contextmanager
def served(name: str, plain: bool) -> Iterator[tuple[psutil.Process, int]]:
    port, parts = free_port(), ("asyncio", "h11") if plain else ("uvloop", "httptools")
    child = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.gate_apps", name, str(port), *parts])
    try:
        end_s = time.monotonic() + 30
        while not accepts(port):
            assert child.poll() is None, f"{name} did not start"
            assert time.monotonic() < end_s, f"{name} did not start"
            time.sleep(0.05)
        yield psutil.Process(child.pid), port
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        child.wait()


def one_round(process: psutil.Process, port: int, seconds: float) -> Round:
    load = Load(port)  # new connections: a server closes those that were idle for five seconds
    cpu_s, began_s = sum(process.cpu_times()[:2]), time.perf_counter()
    responses = load.run(seconds)
    took_s = time.perf_counter() - began_s
    load.close()
    return Round(responses / took_s, (sum(process.cpu_times()[:2]) - cpu_s) / responses * 1e6)


def print_requests(rounds: int, seconds: float, plain: bool) -> None:
    with ExitStack() as stack:
        servers: dict[str, Any] = {name: stack.enter_context(served(name, plain)) for name in APPS}
        for process, port in servers.values():
            one_round(process, port, 0.5)  # warms up
        seen: dict[str, list[Round]] = {name: [] for name in APPS}
        for number in range(rounds):
            for name in APPS if number % 2 else APPS[::-1]:
                seen[name].append(one_round(*servers[name], seconds))
    print("\n| application | requests/s, best round | of nothing | median | server's CPU, µs | of nothing |")
    print("|---|---|---|---|---|---|")
    for name, all_rounds in seen.items():
        nothing = seen["bare ASGI" if name.startswith("bare") else "nothing"]
        best, most = (max(round_.per_s for round_ in rounds_) for rounds_ in (all_rounds, nothing))
        cpu_us, least_us = (min(round_.cpu_us for round_ in rounds_) for rounds_ in (all_rounds, nothing))
        middle = statistics.median(round_.per_s for round_ in all_rounds)
        per_s = f"{best:,.0f} | {best / most:.2f} | {middle:,.0f}"
        print(f"| {name} | {per_s} | {cpu_us:.0f} | {cpu_us / least_us:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-gate", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each round of requests")
    parser.add_argument("--plain", action="store_true", help="uvicorn without uvloop and httptools")
    parser.add_argument("--only", choices=("checks", "requests"))
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}; "
          + ", ".join(f"{name} {version(name)}" for name in NAMES))  # fmt: skip
    if options.only != "requests":
        print_checks(options.rounds)
    if options.only != "checks":
        print_requests(options.rounds, options.seconds, options.plain)


if __name__ == "__main__":
    main()
