"""Each kind of limiter in a store, and a Redis whose clock a test moves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import redis

from gatekeeper.limits import (
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
)
from gatekeeper.limits.redis import RedisStore
from tests.limits.oracles import BucketOracle, CounterOracle, LogOracle, QueueOracle, WindowOracle

_numbers = itertools.count()


def new_name() -> str:
    """Returns a name that is unique among all limiters of all test runs."""
    return f"{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[..., Any]  # limit, period, store=..., name=...
    oracle: Callable[[int, int], Any]
    exact: bool = True  # never more than the limit in any period

    def __repr__(self) -> str:
        return self.name


KINDS = [
    Kind("SlidingLog", SlidingLog, LogOracle),
    Kind("TokenBucket", TokenBucket, lambda n, t: BucketOracle(Fraction(n, t), n), exact=False),
    Kind(
        "TokenBucket, burst 2",
        lambda n, t, **more: TokenBucket(n, t, 2, **more),
        lambda n, t: BucketOracle(Fraction(n, t), 2),
        exact=False,
    ),
    Kind(
        "TokenBucket.strict",
        TokenBucket.strict,
        lambda n, t: BucketOracle(Fraction(n + 1 - (n + 1) // 2, t), (n + 1) // 2),
    ),
    Kind("FixedWindow", FixedWindow, WindowOracle, exact=False),
    Kind(
        "FixedWindow, aligned",
        lambda n, t, **more: FixedWindow(n, t, aligned=True, **more),
        lambda n, t: WindowOracle(n, t, aligned=True),
        exact=False,
    ),
    Kind("SlidingCounter", SlidingCounter, CounterOracle, exact=False),
    Kind("LeakyBucket", LeakyBucket, lambda n, t: BucketOracle(Fraction(n, t), n), exact=False),
    Kind("LeakyQueue", LeakyQueue, QueueOracle),
]


class SteppedRedis:
    """A Redis whose scripts read the time from a key. Keys still expire by the server's real clock."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self._key = f"tests:{new_name()}:now"
        self.store = RedisStore(self.client, remember=0, prefix=f"tests:{os.getpid()}")
        self.store._time_code = f"local now = tonumber(redis.call('GET', '{self._key}'))\n"
        self.now_us = 0
        self.move_to(1_800_000_000_000_000)

    def move_to(self, now_us: int) -> None:
        self.now_us = now_us
        self.client.set(self._key, now_us, ex=600)

    def move(self, us: int) -> None:
        self.move_to(self.now_us + us)

    def close(self) -> None:
        self.store.close()
        self.client.close()
