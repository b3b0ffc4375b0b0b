"""Limiters in Redis compared with those of `limits`: round trips, and CPU of the caller and of Redis.

    python -m tests.benchmarks.limits_redis               # starts a redis-server
    python -m tests.benchmarks.limits_redis --calls 5000

docs/limiters-fleet.md has figures of limits 5.8.0 with redis-py 8.1.0, in a separate environment. Each
library uses one client, over the loopback; PING is the lower bound. CPU is that of this process; Redis
reports the time of its commands (`INFO commandstats`). Compare within one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis

from gatekeeper.limits import (
    Concurrency,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    parse,
)
from gatekeeper.limits.redis import RedisStore
from tests.limits.round_trips import RoundTripCounter
from tests.support.servers import Missing
from tests.support.servers.redis import NativeRedis

Allow = Callable[[str], Any]
ROUNDS = 5
LIMIT, PERIOD_S = 1_000_000, 3600  # refuses no call
LOG_LIMIT = 100  # of a log, whose cost depends on its limit; each key has at most a hundred calls


class Cost(NamedTuple):
    wall_us: float
    cpu_us: float
    redis_us: float


def limiters_in(store: RedisStore) -> dict[str, Any]:
    rate = (LIMIT, PERIOD_S)
    return {
        "TokenBucket": TokenBucket(*rate, store=store),
        "TokenBucket.strict": TokenBucket.strict(*rate, store=store),
        "LeakyBucket": LeakyBucket(*rate, store=store),
        "LeakyQueue": LeakyQueue(LIMIT, 1, store=store),
        "FixedWindow": FixedWindow(*rate, store=store),
        "SlidingCounter": SlidingCounter(*rate, store=store),
        "SlidingLog": SlidingLog(LOG_LIMIT, PERIOD_S, store=store),
        "Concurrency": Concurrency(LIMIT, store=store),
        "10/second; 1000/hour": parse("100/second; 1000/hour", store=store),
    }


def peers(url: str) -> dict[str, Allow]:
    """Returns the decisions of `limits`, each called in its cheapest way; none when it is not installed."""
    try:
        from limits import RateLimitItemPerSecond, strategies
        from limits.storage import RedisStorage
    except ImportError:
        print("not installed: limits")
        return {}
    storage = RedisStorage(url)
    many, few = RateLimitItemPerSecond(LIMIT, PERIOD_S), RateLimitItemPerSecond(LOG_LIMIT, PERIOD_S)
    return {
        "limits, fixed window": partial(strategies.FixedWindowRateLimiter(storage).hit, many),
        "limits, sliding counter": partial(strategies.SlidingWindowCounterRateLimiter(storage).hit, many),
        "limits, moving window": partial(strategies.MovingWindowRateLimiter(storage).hit, few),
    }


def keys_of(calls: int) -> list[str]:
    """Returns the key of each call: another one after each hundred."""
    stamp = time.monotonic_ns()
    return [f"{stamp}-{n // LOG_LIMIT}" for n in range(calls)]


def measure(allow: Allow, client: redis.Redis, calls: int) -> Cost:
    keys = keys_of(calls)
    client.config_resetstat()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for key in keys:
        allow(key)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    spent = client.info("commandstats")
    redis_us = sum(
        command["usec"]
        for name, command in spent.items()
        if name.removeprefix("cmdstat_").split("|")[0] in TIMED
    )
    return Cost(wall_s / calls * 1e6, cpu_s / calls * 1e6, redis_us / calls)


TIMED = {"evalsha", "eval", "ping"}  # the time of a script includes that of its commands


def print_costs(server: NativeRedis, calls: int) -> None:
    client = redis.Redis.from_url(server.url)
    store = RedisStore(redis.Redis.from_url(server.url), timeout=5)
    calls_of: dict[str, Allow] = {"PING": lambda _: client.ping()}
    calls_of |= {name: limiter.allow for name, limiter in limiters_in(store).items()} | peers(server.url)
    for allow in calls_of.values():
        allow("warm")
    runs: dict[str, list[Cost]] = {name: [] for name in calls_of}
    for _ in range(ROUNDS):  # interleaved, so that other load affects all of them
        for name, allow in calls_of.items():
            runs[name].append(measure(allow, client, calls))
    print(f"{'':28}{'wall us':>9}{'cpu us':>9}{'redis us':>10}")
    for name, costs in runs.items():
        middle = [statistics.median(cost[n] for cost in costs) for n in range(3)]
        print(f"{name:28}{middle[0]:9.0f}{middle[1]:9.0f}{middle[2]:10.1f}")
    store.close()


def print_round_trips(server: NativeRedis) -> None:
    counter = RoundTripCounter(server.port)
    store = RedisStore(redis.Redis(port=counter.port), timeout=5)
    limiters: dict[str, Any] = limiters_in(store)
    print(f"\n{'round trips of':28}{'a decision':>12}{'a hundred':>12}{'50 refused':>12}")
    for name, limiter in limiters.items():
        limiter.check("warm")
        one = trips(counter, lambda limiter=limiter: limiter.check("a"))
        if name == "Concurrency":
            print(f"{name:28}{one:12}")
            continue
        hundred = trips(counter, lambda limiter=limiter: limiter.check_many([f"k{n}" for n in range(100)]))
        refuser = SlidingLog(1, PERIOD_S, store=store, name=name)
        refuser.check_many(["a", "a"])
        refused = trips(counter, lambda refuser=refuser: [refuser.allow("a") for _ in range(50)])
        print(f"{name:28}{one:12}{hundred:12}{refused:12}")
    for name, allow in peers(f"redis://127.0.0.1:{counter.port}/0").items():
        allow("warm")
        one = trips(counter, lambda allow=allow: allow("a"))
        hundred = trips(counter, lambda allow=allow: [allow(f"k{n}") for n in range(100)])
        for _ in range(LOG_LIMIT if "moving" in name else 0):
            allow("refused")
        refused = trips(counter, lambda allow=allow: [allow("refused") for _ in range(50)])
        print(f"{name:28}{one:12}{hundred:12}{refused:12}")
    store.close()
    counter.close()


def trips(counter: RoundTripCounter, do: Callable[[], Any]) -> int:
    before = counter.count
    do()
    return counter.count - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory(prefix="gatelock-redis-") as folder:
        try:
            server = NativeRedis(Path(folder))
        except Missing as missing:
            print(f"Redis was not measured: {missing}")
            return
        server.start()
        try:
            print(f"Redis {server.kind}, redis-py {redis.__version__}, {ROUNDS} rounds of {calls} calls")
            print_costs(server, calls)
            print_round_trips(server)
        finally:
            server.close()


if __name__ == "__main__":
    main()
