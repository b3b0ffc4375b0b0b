"""Our limiters beside their peers, in one process: what a decision costs, and what it lets through.

    python -m tests.benchmarks.limits                    # those that can be imported; others are named
    python -m tests.benchmarks.limits --seconds 1        # longer
    python -m tests.benchmarks.limits --only stall       # one part: cost, threads, memory, stall, worst

Peers were measured as limits 5.8.0, pyrate-limiter 4.5.1, throttled-py 3.5.0, token-bucket 0.4.0 and
aiolimiter 1.3.0, in an environment of their own. Compare within one run; the machine decides the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import statistics
import threading
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from gatekeeper.limits import (
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Paced,
    Sharded,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
)

Allow = Callable[[str], Any]
Make = Callable[[int, int], Allow]  # limit, period in seconds

OURS: dict[str, Make] = {
    "TokenBucket.allow": lambda n, t: TokenBucket(n, t).allow,
    "TokenBucket.check": lambda n, t: TokenBucket(n, t).check,
    "TokenBucket.strict": lambda n, t: TokenBucket.strict(n, t).allow,
    "Sharded TokenBucket": lambda n, t: Sharded(lambda: TokenBucket(n, t)).allow,
    "SlidingLog.allow": lambda n, t: SlidingLog(n, t).allow,
    "SlidingLog.check": lambda n, t: SlidingLog(n, t).check,
    "SlidingLog compact": lambda n, t: SlidingLog(n, t, compact=True).allow,
    "FixedWindow.allow": lambda n, t: FixedWindow(n, t).allow,
    "SlidingCounter.allow": lambda n, t: SlidingCounter(n, t).allow,
    "Paced.allow": lambda n, t: Paced(n, t).allow,
    "LeakyBucket.allow": lambda n, t: LeakyBucket(n, t).allow,
    "LeakyQueue.allow": lambda n, t: LeakyQueue(n, t).allow,
}


def peers() -> dict[str, Make]:
    """Those that can be imported, each called in its own cheapest way."""
    found: dict[str, Make] = {}
    for name, ask in (
        ("limits", limits_peers),
        ("pyrate-limiter", pyrate_peers),
        ("throttled-py", throttled_peers),
        ("token-bucket", token_bucket_peers),
    ):
        try:
            found |= ask()
        except ImportError:
            print(f"not here: {name}")
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
        def one(n: int, t: int) -> Allow:
            quota = rate_limiter.per_duration(timedelta(seconds=t), n, n)
            limit = Throttled(
                using=using, quota=quota, store=MemoryStore(options={"MAX_SIZE": 300_000})
            ).limit
            return lambda key: not limit(key).limited

        return one

    return {f"throttled-py {using}": make(using) for using in ("fixed_window", "token_bucket", "gcra")}


def token_bucket_peers() -> dict[str, Make]:
    import token_bucket

    return {
        "token-bucket (no mutex)": lambda n, t: (
            token_bucket.Limiter(n / t, n, token_bucket.MemoryStorage()).consume
        )
    }


def aiolimiter_ns(seconds: float) -> float | None:
    """Of one `await acquire()` with room; None when it is not installed."""
    try:
        from aiolimiter import AsyncLimiter
    except ImportError:
        print("not here: aiolimiter")
        return None

    async def measure() -> float:
        limiter, calls = AsyncLimiter(10**9, 1), int(seconds * 500_000)
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            await limiter.acquire()
        return (time.perf_counter_ns() - began_ns) / calls

    return asyncio.run(measure())


def one_thread_ns(make: Make, limit: int, seconds: float) -> float:
    """The median of five rounds, loop included."""
    allow = make(limit, 3600)
    allow("api_key:acme")
    calls = max(1_000, int(seconds * 100_000))
    rounds = timeit.repeat("allow('api_key:acme')", globals={"allow": allow}, number=calls, repeat=5)
    return statistics.median(rounds) / calls * 1e9


def eight_threads(make: Make, seconds: float) -> tuple[float, float]:
    """Thousand decisions a second on one key, and the p99.9 in microseconds."""
    allow, threads = make(10**9, 3600), 8
    counts = [0] * threads
    samples: list[list[int]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads + 1)
    over = threading.Event()

    def work(n: int) -> None:
        clock, mine, count = time.perf_counter_ns, samples[n], 0
        barrier.wait()
        while not over.is_set():
            for _ in range(50):
                allow("api_key:acme")
            began_ns = clock()
            allow("api_key:acme")
            mine.append(clock() - began_ns)
            count += 51
        counts[n] = count

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    time.sleep(max(0.5, seconds * 2))
    over.set()
    took_s = time.perf_counter() - began
    for worker in workers:
        worker.join()
    took_ns = sorted(sample for mine in samples for sample in mine)
    return sum(counts) / took_s / 1e3, took_ns[int(len(took_ns) * 0.999)] / 1e3


def bytes_per_caller(make: Make, callers: int = 100_000) -> float:
    """What Python allocated for each of so many callers, after one request each; keys left out."""
    keys = [f"api_key:{n}" for n in range(callers)]
    allow = make(100, 3600)
    gc.collect()
    tracemalloc.start()
    for key in keys:
        allow(key)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / callers


def longest_insert_ms(make: Make, callers: int = 1_000_000) -> float:
    """The longest of so many decisions for new keys, in processor time: neighbours do not count."""
    allow, clock, longest_ns = make(100, 3600), time.thread_time_ns, 0
    keys = [f"api_key:{n}" for n in range(callers)]
    gc.disable()  # its pauses are another story
    for key in keys:
        began_ns = clock()
        allow(key)
        longest_ns = max(longest_ns, clock() - began_ns)
    gc.enable()
    return longest_ns / 1e6


def worst_in_a_second(make: Make, limit: int = 20) -> int:
    """The most that passed in one second of real time, of a limit of 20 a second: a call that opens
    the window, a burst at its end, and pressure from then on."""
    allow, passed = make(limit, 1), []
    began = time.monotonic()
    allow("k")
    while (now := time.monotonic()) < began + 2.2:
        if now > began + 0.9 and allow("k"):
            passed.append(now)
    return max((sum(at <= other < at + 0.999 for other in passed) for at in passed), default=0)


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    print("\n" + " | ".join(head))
    for row in rows:
        print(" | ".join(f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="about so long per figure")
    parser.add_argument("--only", choices=["cost", "threads", "memory", "stall", "worst"])
    asked = parser.parse_args()
    everyone = OURS | peers()

    def wanted(part: str) -> bool:
        return asked.only in (None, part)

    print(f"Python {platform.python_version()}, {platform.machine()}")
    if wanted("cost"):
        rows = [
            (name, one_thread_ns(make, 10**9, asked.seconds), one_thread_ns(make, 1, asked.seconds))
            for name, make in everyone.items()
        ]
        table(("one thread", "ns allowed", "ns denied"), rows)
        if (took_ns := aiolimiter_ns(asked.seconds)) is not None:
            print(f"aiolimiter, one await acquire() | {took_ns:,.1f} | -")
    if wanted("threads"):
        rows = [(name, *eight_threads(make, asked.seconds)) for name, make in everyone.items()]
        table(("eight threads, one key", "thousand a second", "p99.9 in us"), rows)
    if wanted("memory"):
        table(("memory", "bytes a caller"), [(n, bytes_per_caller(make)) for n, make in everyone.items()])
    if wanted("stall"):
        names = ("TokenBucket.allow", "Sharded TokenBucket", "SlidingLog.allow")
        table(("a million new keys", "longest in ms"), [(n, longest_insert_ms(OURS[n])) for n in names])
    if wanted("worst"):
        table(
            ("limit 20 a second", "worst second"),
            [(n, worst_in_a_second(make)) for n, make in everyone.items()],
        )


if __name__ == "__main__":
    main()
