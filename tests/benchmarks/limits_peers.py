"""Rate limiters of other libraries, each called in its cheapest way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Allow = Callable[[str], Any]
Make = Callable[[int, int], Allow]  # limit, period in seconds
NAMES = ("limits", "pyrate-limiter", "throttled-py", "token-bucket", "aiolimiter")


def versions() -> str:
    """Returns the names and versions of the installed libraries."""
    return ", ".join(f"{name} {version(name)}" for name in NAMES if _is_installed(name))


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def peers() -> dict[str, Make]:
    """Returns a factory for each algorithm of the libraries that can be imported; prints which cannot."""
    found: dict[str, Make] = {}
    for name, factories in (
        ("limits", limits_peers),
        ("pyrate-limiter", pyrate_peers),
        ("throttled-py", throttled_peers),
        ("token-bucket", token_bucket_peers),
    ):
        try:
            found |= factories()
        except ImportError:
            print(f"not installed: {name}")
    return found


def limits_peers() -> dict[str, Make]:
    from limits import RateLimitItemPerSecond, strategies
    from limits.storage import MemoryStorage

    def make(strategy: Any) -> Make:
        return lambda n, t: partial(strategy(MemoryStorage()).hit, RateLimitItemPerSecond(n, t))

    return {
        "limits fixed window": make(strategies.FixedWindowRateLimiter),
        "limits moving window": make(strategies.MovingWindowRateLimiter),
        "limits sliding counter": make(strategies.SlidingWindowCounterRateLimiter),
    }


def pyrate_peers() -> dict[str, Make]:
    from pyrate_limiter import BucketFactory, InMemoryBucket, Limiter, Rate, RateItem

    class Keyed(BucketFactory):
        def __init__(self, rate: Any) -> None:
            self.rate = rate
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, time.monotonic_ns() // 1_000_000, weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = InMemoryBucket([self.rate])
            return bucket

    def make(n: int, t: int) -> Allow:
        return partial(Limiter(Keyed(Rate(n, t * 1000))).try_acquire, blocking=False)

    return {"pyrate sliding log": make}


def throttled_peers() -> dict[str, Make]:
    from throttled import MemoryStore, Throttled, rate_limiter

    def make(using: str) -> Make:
        def make_one(n: int, t: int) -> Allow:
            quota = rate_limiter.per_duration(timedelta(seconds=t), n, n)
            limit = Throttled(
                using=using, quota=quota, store=MemoryStore(options={"MAX_SIZE": 300_000})
            ).limit
            return lambda key: not limit(key).limited

        return make_one

    return {f"throttled-py {using}": make(using) for using in ("fixed_window", "token_bucket", "gcra")}


def token_bucket_peers() -> dict[str, Make]:
    import token_bucket

    return {
        "token-bucket (no mutex)": lambda n, t: (
            token_bucket.Limiter(n / t, n, token_bucket.MemoryStorage()).consume
        )
    }


def aiolimiter_ns(seconds: float) -> float:
    """Returns the ns of one `await acquire()` that need not wait."""
    from aiolimiter import AsyncLimiter

    async def measure() -> float:
        limiter, calls = AsyncLimiter(10**9, 1), int(seconds * 500_000)
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            await limiter.acquire()
        return (time.perf_counter_ns() - began_ns) / calls

    return asyncio.run(measure())
