"""Limiters compared with those of other libraries, in one process: cost of a decision, and what it admits.

    make bench-limits                            # all columns, some four minutes
    make bench-limits ARGS='--seconds 1'         # longer rounds
    make bench-limits ARGS='--only cost threads' # some columns: cost, threads, memory, worst; stall

Compare within one run. Costs are processor time of the whole process, including threads that a library
starts, and medians of interleaved rounds, so other load on the machine affects them little.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import threading
import time
import timeit
import tracemalloc
from collections.abc import Iterable, Mapping
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
from tests.benchmarks import limits_peers
from tests.benchmarks.limits_peers import Make

PARTS = ("cost", "threads", "memory", "worst", "stall")
ROUNDS = 5
THREADS = 8
NO_LIMIT = 10**9  # above the calls of any round

GATELOCK: dict[str, Make] = {
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
COMPARED = (
    ("TokenBucket.allow", "limits fixed window"),
    ("SlidingLog.allow", "limits moving window"),
)


def one_thread_ns(factories: Mapping[str, Make], limit: int, seconds: float) -> dict[str, float]:
    """Returns the median of the rounds in processor time, including the loop."""
    limiters = {name: make(limit, 3600) for name, make in factories.items()}
    calls = max(1_000, int(seconds * 100_000))
    took: dict[str, list[float]] = {name: [] for name in limiters}
    for _ in range(ROUNDS):
        for name, allow in limiters.items():
            allow("api_key:acme")
            names = {"allow": allow}
            spent = timeit.timeit(
                "allow('api_key:acme')", globals=names, number=calls, timer=time.process_time
            )
            took[name].append(spent / calls * 1e9)
    return {name: statistics.median(times) for name, times in took.items()}


def eight_threads(make: Make, limit: int, seconds: float) -> tuple[float, float]:
    """Returns thousand decisions per second of processor time on one key, and the p99.9 in microseconds."""
    allow = make(limit, 3600)
    counts = [0] * THREADS
    samples: list[list[int]] = [[] for _ in range(THREADS)]
    barrier = threading.Barrier(THREADS + 1)
    over = threading.Event()

    def work(n: int) -> None:
        clock, own_samples, count = time.perf_counter_ns, samples[n], 0
        barrier.wait()
        while not over.is_set():
            for _ in range(50):
                allow("api_key:acme")
            began_ns = clock()
            allow("api_key:acme")
            own_samples.append(clock() - began_ns)
            count += 51
        counts[n] = count

    workers = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.process_time()
    time.sleep(seconds)
    over.set()
    for worker in workers:
        worker.join()
    took_s = time.process_time() - began
    took_ns = sorted(sample for own_samples in samples for sample in own_samples)
    return sum(counts) / took_s / 1e3, took_ns[int(len(took_ns) * 0.999)] / 1e3


def contended(factories: Mapping[str, Make], limit: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Returns the medians of three interleaved rounds."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in factories}
    for _ in range(3):
        for name, make in factories.items():
            seen[name].append(eight_threads(make, limit, seconds))
    return {
        name: (statistics.median(rate for rate, _ in rounds), statistics.median(tail for _, tail in rounds))
        for name, rounds in seen.items()
    }


def bytes_per_caller(make: Make, callers: int, requests: int = 1) -> float:
    """Returns what Python allocated per caller, without the keys."""
    keys = [f"api_key:{n}" for n in range(callers)]
    allow = make(100, 3600)
    gc.collect()
    tracemalloc.start()
    for _ in range(requests):
        for key in keys:
            allow(key)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return allocated / callers


def longest_insert_ms(make: Make, callers: int) -> float:
    """Returns the longest decision of those for `callers` new keys, in processor time of this thread."""
    allow, clock, longest_ns = make(100, 3600), time.thread_time_ns, 0
    keys = [f"api_key:{n}" for n in range(callers)]
    gc.disable()  # its pauses are not part of this figure
    for key in keys:
        began_ns = clock()
        allow(key)
        longest_ns = max(longest_ns, clock() - began_ns)
    gc.enable()
    return longest_ns / 1e6


def worst_in_a_second(make: Make, limit: int = 20) -> int:
    """Returns the most calls that passed within one second of real time for certain.

    One call opens the window, a burst comes at its end, and calls without a pause follow.
    """
    allow, passed = make(limit, 1), []
    began = time.monotonic()
    allow("k")
    while (now := time.monotonic()) < began + 2.2:
        if now > began + 0.9 and allow("k"):
            passed.append((now, time.monotonic()))  # the decision was between the two
    return max(
        (sum(first <= before and after < first + 0.999 for before, after in passed) for first, _ in passed),
        default=0,
    )


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Prints a table in Markdown, as docs/limiters.md shows it."""
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len([*head]) + "|")
    for row in rows:
        cells = (
            f"{cell:,.{0 if cell >= 20 else 1}f}" if isinstance(cell, float) else str(cell) for cell in row
        )
        print("| " + " | ".join(cells) + " |")


def measured(
    factories: Mapping[str, Make], parts: set[str], seconds: float, callers: int
) -> dict[str, dict[str, Any]]:
    """Returns the columns: for each of them, the figure of every limiter."""
    columns: dict[str, dict[str, Any]] = {}
    if "cost" in parts:
        columns["ns allowed"] = one_thread_ns(factories, NO_LIMIT, seconds)
        columns["ns denied"] = one_thread_ns(factories, 1, seconds)
    if "threads" in parts:
        for decision, limit in (("allowed", NO_LIMIT), ("denied", 1)):
            seen = contended(factories, limit, max(0.3, seconds))
            columns[f"8 threads, k/s {decision}"] = {name: rate for name, (rate, _) in seen.items()}
            columns[f"p99.9 µs {decision}"] = {name: tail for name, (_, tail) in seen.items()}
    if "memory" in parts:
        columns["bytes a caller"] = {
            n: bytes_per_caller(make, callers // 10) for n, make in factories.items()
        }
        columns["with 100 requests"] = {
            name: bytes_per_caller(make, callers // 500, 100) for name, make in factories.items()
        }
    if "worst" in parts:
        columns["worst of 20"] = {name: worst_in_a_second(make) for name, make in factories.items()}
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate length of each measurement")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="of limiters, as in the table; by default all"
    )
    parser.add_argument(
        "--callers", type=int, default=1_000_000, help="new keys in `stall`, of which `memory` has a tenth"
    )
    options = parser.parse_args()
    factories = GATELOCK | limits_peers.peers()
    if unknown := set(options.names or ()) - factories.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(factories)}")
    factories = {name: make for name, make in factories.items() if name in (options.names or factories)}
    print(f"Python {platform.python_version()}, {platform.machine()}; {limits_peers.versions()}")
    columns = measured(factories, {*options.only}, options.seconds, options.callers)
    if columns:
        table(("", *columns), [(name, *(column[name] for column in columns.values())) for name in factories])
    for name, other in COMPARED:
        for head, column in columns.items():
            if head.startswith(("ns ", "8 threads")) and {name, other} <= column.keys():
                slow, fast = column[other], column[name]
                times = slow / fast if head.startswith("ns ") else fast / slow
                print(f"{name} is {times:.1f} times as fast as {other}: {head}")
    if "cost" in options.only:
        print(f"aiolimiter, one await acquire(): {limits_peers.aiolimiter_ns(options.seconds):,.0f} ns")
    if "stall" in options.only:
        names = ("TokenBucket.allow", "Sharded TokenBucket", "SlidingLog.allow")
        rows = [(name, longest_insert_ms(GATELOCK[name], options.callers)) for name in names]
        table((f"{options.callers:,} new keys", "longest, ms"), rows)


if __name__ == "__main__":
    main()
