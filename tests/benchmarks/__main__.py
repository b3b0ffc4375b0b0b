"""`make bench`: all figures with comparisons, in one run.

`make bench ARGS='allow refusal'` runs two; with `--small` each runs in its smallest form.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from tests.benchmarks import (
    allow,
    codecs,
    flush,
    gates,
    headline,
    imports,
    latency,
    many_locks,
    overflow,
    refusal,
    requestlog,
    requestlog_kafka,
    scaling,
    shapes,
    shared_gzip,
    takeover,
    throughput,
    waiting,
)
from tests.benchmarks.servers import servers


class Bench(NamedTuple):
    """A measurement, and the arguments of its smallest form, whose figures say only that it runs."""

    run: Callable[..., None]
    smallest: Mapping[str, object]
    needs_servers: bool = True


BENCHES = {
    "allow": Bench(allow.run, {"rounds": 1, "calls": 100, "many": 100}, needs_servers=False),
    "requestlog": Bench(requestlog.run, {"requests": 500, "rounds": 1}, needs_servers=False),
    "gzip": Bench(
        shared_gzip.run,
        {"gates": 3, "cases": [("a change of 10 locks", 1, 10)], "snapshot_locks": 100},
        needs_servers=False,
    ),
    "import": Bench(imports.run, {"lines": 500, "rounds": 1}, needs_servers=False),
    "headline": Bench(headline.run, {"records": 500, "rounds": 1, "seconds": 0.5, "locks": 3}),
    "throughput": Bench(throughput.run, {"records": 1_000, "rounds": 1}),
    "shapes": Bench(shapes.run, {"records": 500, "rounds": 1}),
    "codecs": Bench(codecs.run, {"records": 500, "rounds": 1}),
    "requestlog-kafka": Bench(requestlog_kafka.run, {"rounds": 1, "seconds": 0.2}),
    "refusal": Bench(refusal.run, {"locks": 3}),
    "gates": Bench(gates.run, {"locks": 2}),
    "waiting": Bench(waiting.run, {"gates": 5, "seconds": 1.0}),
    "many-locks": Bench(many_locks.run, {"locks": 20, "rounds": 1}),
    "latency": Bench(latency.run, {"seconds": 0.5}),
    "flush": Bench(flush.run, {"touched": 50, "known": 200, "rounds": 2}),
    "scaling": Bench(scaling.run, {"records": 20_000, "counts": [1, 2]}),
    "takeover": Bench(takeover.run, {"rounds": 1}),
    "overflow": Bench(overflow.run, {"minutes": 1, "a_minute": 2_000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(BENCHES)}")
    parser.add_argument("--small", action="store_true", help="the smallest form of each: does it run?")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(BENCHES)}")
    chosen = {name: BENCHES[name] for name in given.names or BENCHES}
    print(f"Python {platform.python_version()}, {platform.machine()}")
    with ExitStack() as stack:
        if any(bench.needs_servers for bench in chosen.values()):
            started = stack.enter_context(servers())
        for bench in chosen.values():
            run = partial(bench.run, started) if bench.needs_servers else bench.run
            run(**bench.smallest if given.small else {})


if __name__ == "__main__":
    main()
