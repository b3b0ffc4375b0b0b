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
from tests.benchmarks.http_load import Round, one_round
from tests.support.servers import Missing
from tests.support.servers.child import accepts, free_port
from tests.support.servers.redis import NativeRedis

APPS = ("nothing", "Guard", "Guard, TokenBucket", "slowapi, decorator", "slowapi, middleware",
        "bare ASGI", "bare ASGI, Guard")  # fmt: skip
LOCKED = [f"192.0.2.{n}" for n in range(200)]
CLEAR, NAME = "198.51.100.7", "api_key:acme"
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
