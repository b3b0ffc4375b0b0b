"""`make bench`: all figures with comparisons, in one run. `make bench ARGS='allow refusal'` runs two."""

from __future__ import annotations

import platform
import sys

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

ALONE = {"allow": allow.run, "requestlog": requestlog.run, "gzip": shared_gzip.run, "import": imports.run}
WITH_SERVERS = {
    "headline": headline.run,
    "throughput": throughput.run,
    "shapes": shapes.run,
    "codecs": codecs.run,
    "requestlog-kafka": requestlog_kafka.run,
    "refusal": refusal.run,
    "gates": gates.run,
    "waiting": waiting.run,
    "many-locks": many_locks.run,
    "latency": latency.run,
    "flush": flush.run,
    "scaling": scaling.run,
    "takeover": takeover.run,
    "overflow": overflow.run,
}


def main(names: list[str]) -> None:
    wanted = names or [*ALONE, *WITH_SERVERS]
    unknown = set(wanted) - ALONE.keys() - WITH_SERVERS.keys()
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; expected one of {', '.join([*ALONE, *WITH_SERVERS])}")
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for name in wanted:
        if name in ALONE:
            ALONE[name]()
    if needing := [name for name in wanted if name in WITH_SERVERS]:
        with servers() as found:
            for name in needing:
                WITH_SERVERS[name](found)


if __name__ == "__main__":
    main(sys.argv[1:])
