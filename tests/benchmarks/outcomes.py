"""Time of the counter with the outcomes of requests, as a multiple of that without, and of one more meter.

python -m tests.benchmarks.outcomes [RECORDS [TURNS]]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from statistics import median

from analyzer.counting.counter.counter import PythonCounter
from analyzer.kernel.model import Partition, Record, Records, SlotLayout
from analyzer.plan.mapping import NumberField, ResourceField, SourceMapping, TextField, TimeField

PART = Partition("cluster", "topic", 0, "log", "log")
CALLERS, ROUTES = 2_000, 20
NOW_MS = 1_800_000_000_000
MAPPING = SourceMapping(
    time=TimeField(("ts",), "ms"),
    caller=("api_key",),
    fields={
        "api_key": TextField(("key",)),
        "resource": ResourceField(("path",)),
        "status": TextField(("status",)),
        "duration": NumberField(("took",), "duration", "ms"),
    },
)
SHARE = (SlotLayout("caller+resource", 25, ("requests",)), SlotLayout("resource", 25, ("requests",)))
OUTCOMES = SlotLayout("caller+resource+outcome", 25, ("outcomes",))


def records(count: int) -> list[Record]:
    """Returns a log of many callers, routes and durations."""
    drawn = random.Random(1)
    return [
        Record(
            at,
            NOW_MS,
            json.dumps(
                {
                    "ts": NOW_MS + at // 20,
                    "key": f"acct-{int(drawn.paretovariate(0.8)) % CALLERS}",
                    "path": f"/v1/{drawn.randrange(ROUTES)}",
                    "status": drawn.choice(["200"] * 19 + ["503"]),
                    "took": round(drawn.lognormvariate(4, 1), 3),
                }
            ).encode(),
        )
        for at in range(count)
    ]


def took_s(log: Sequence[Record], layouts: Sequence[SlotLayout]) -> float:
    """Returns the CPU-seconds of counting and draining a log."""
    counter = PythonCounter({"log": MAPPING}, ["caller", "caller+resource", "resource"], slots=layouts)
    began_s = time.process_time()
    for at in range(0, len(log), 1_000):
        counter.feed(Records.of(PART, at, min(at + 1_000, len(log)), log[at : at + 1_000]))
        counter.drain()
    return time.process_time() - began_s


def main(count: int = 20_000, turns_max: int = 7) -> None:
    log = records(count)
    turns = [(took_s(log, SHARE), took_s(log, (*SHARE, OUTCOMES))) for _ in range(turns_max)]
    plain_s, with_s = (median(column) for column in zip(*turns, strict=True))
    ratio = median(after / before for before, after in turns)
    print(
        f"{count:,} records: {plain_s * 1e6 / count:.2f} us each for a share, "
        f"{with_s * 1e6 / count:.2f} us with outcomes, {ratio:.2f} times"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
