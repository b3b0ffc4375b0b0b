"""The gate beside its peers: what a check costs, and what is left of an application's requests per second.

    make bench-gate                              # some two minutes; starts a redis-server of its own
    make bench-gate ARGS='--only requests'       # or: checks
    make bench-gate ARGS='--rounds 9 --seconds 3'

Rounds take turns, so that a neighbour's noise falls on all; compare within one run. uvicorn runs with uvloop
and httptools (or with neither: --plain), one process, and the load comes from one process over sixteen
connections that are kept. CPU is the server's own, for each request, in its best round: the firmer figure, as
who else is busy hardly counts.
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


# -- what a check costs ------------------------------------------------------------------------------


def a_gate(*scopes: tuple[str, str]) -> Gate:
    now = datetime.now(UTC)
    found = Gate(FixedSource(*(Lock(*scope, "p", now, now + timedelta(days=1)) for scope in scopes)))
    assert found.ready(20)
    return found


class Check(NamedTuple):
    """What is called again and again; and the same for somebody who must be refused."""

    ask: Callable[[], object]
    refused: Callable[[], bool]
    calls: int = 100_000


def checks(redis_url: str | None, held: ExitStack) -> dict[str, Check]:
    callers = a_gate(*(("caller", f"api_key:locked-{n}") for n in range(len(LOCKED))))
    addresses = a_gate(*(("address", address) for address in LOCKED), ("range", "203.0.113.0/24"))
    for gate in (callers, addresses):
        held.callback(gate.close)
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


def tell_checks(rounds: int) -> None:
    with ExitStack() as held:
        try:
            server = NativeRedis(
                Path(held.enter_context(tempfile.TemporaryDirectory(prefix="gatelock-redis-")))
            )
            server.start()
            held.callback(server.close)
            url = server.url
        except Missing as missing:
            print(f"Redis was not measured: {missing}")
            url = None
        found = checks(url, held)
        for name, check in found.items():
            assert check.refused(), f"{name} refuses nobody"  # or nothing was measured
        took: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(rounds):
            for name, check in found.items():
                seconds = timeit.timeit("ask()", globals={"ask": check.ask}, number=check.calls)
                took[name].append(seconds / check.calls * 1e9)
        least = min(took["Gate.check, by caller"])
        print("\n| for somebody who may pass | best, ns | median, ns | times Gate.check |\n|---|---|---|---|")
        for name, ns in took.items():
            print(f"| {name} | {min(ns):,.0f} | {statistics.median(ns):,.0f} | {min(ns) / least:,.1f} |")


# -- requests per second -----------------------------------------------------------------------------


class Round(NamedTuple):
    per_s: float
    cpu_us: float  # the server's, for each request


class Load:
    """Sixteen connections to one server, each asking again as soon as it has its answer."""

    def __init__(self, port: int) -> None:
        self._lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        self._lines[0].sendall(REQUEST)
        first = b""
        while not first.endswith((b'{"for":"acme"}', b"\r\n\r\nok")):
            first += self._lines[0].recv(65_536)
        self._bytes = len(first)  # of every answer: they differ in nothing but the second of their date
        self._selector = selectors.EpollSelector()
        for number, line in enumerate(self._lines):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(line, selectors.EVENT_READ, number)

    def close(self) -> None:
        self._selector.close()
        for line in self._lines:
            line.close()

    def run(self, seconds: float) -> int:
        """How many answers came, all of them good."""
        missing, answers = [0] * CONNECTIONS, 0
        for number, line in enumerate(self._lines):
            line.sendall(REQUEST)
            missing[number] = self._bytes
        end_s = time.perf_counter() + seconds
        asking, over = CONNECTIONS, False
        while asking:
            for key, _ in self._selector.select():
                line, number = key.fileobj, key.data
                data = line.recv(65_536)  # type: ignore[union-attr]  # a socket
                assert missing[number] < self._bytes or data.startswith(b"HTTP/1.1 200 "), data[:200]
                missing[number] -= len(data)
                assert missing[number] >= 0, "an answer is longer than the first"
                if missing[number]:
                    continue
                answers += 1
                if over:
                    asking -= 1
                else:
                    line.sendall(REQUEST)
                    missing[number] = self._bytes
            over = over or time.perf_counter() >= end_s
        return answers


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
    load = Load(port)  # anew: a server closes what was idle for five seconds
    cpu_s, began_s = sum(process.cpu_times()[:2]), time.perf_counter()
    answers = load.run(seconds)
    took_s = time.perf_counter() - began_s
    load.close()
    return Round(answers / took_s, (sum(process.cpu_times()[:2]) - cpu_s) / answers * 1e6)


def tell_requests(rounds: int, seconds: float, plain: bool) -> None:
    with ExitStack() as held:
        servers: dict[str, Any] = {name: held.enter_context(served(name, plain)) for name in APPS}
        for process, port in servers.values():
            one_round(process, port, 0.5)  # warm
        seen: dict[str, list[Round]] = {name: [] for name in APPS}
        for number in range(rounds):
            for name in APPS if number % 2 else APPS[::-1]:
                seen[name].append(one_round(*servers[name], seconds))
    print("\n| application | requests/s, best round | of nothing | median | server's CPU, µs | of nothing |")
    print("|---|---|---|---|---|---|")
    for name, all_rounds in seen.items():
        nothing = seen["bare ASGI" if name.startswith("bare") else "nothing"]
        best, most = max(r.per_s for r in all_rounds), max(r.per_s for r in nothing)
        cpu_us, least_us = (min(r.cpu_us for r in each) for each in (all_rounds, nothing))
        middle = statistics.median(r.per_s for r in all_rounds)
        per_s = f"{best:,.0f} | {best / most:.2f} | {middle:,.0f}"
        print(f"| {name} | {per_s} | {cpu_us:.0f} | {cpu_us / least_us:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-gate", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round of requests")
    parser.add_argument("--plain", action="store_true", help="uvicorn without uvloop and httptools")
    parser.add_argument("--only", choices=("checks", "requests"))
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}; "
          + ", ".join(f"{name} {version(name)}" for name in NAMES))  # fmt: skip
    if asked.only != "requests":
        tell_checks(asked.rounds)
    if asked.only != "checks":
        tell_requests(asked.rounds, asked.seconds, asked.plain)


if __name__ == "__main__":
    main()
