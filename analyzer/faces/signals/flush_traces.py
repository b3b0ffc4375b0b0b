"""Facts of a flush for traces: its times and sizes, without names of callers. No package is needed for them.

The loop's thread makes one per flush and puts it into a bounded queue; a thread of `open_telemetry` makes
spans of it. So a collector that is away costs the loop nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from analyzer.flush.pipeline import FlushResult
from gatekeeper.model import Cursor, Set

SECOND_NS, MS_NS = 10**9, 10**6


class FlushFacts(NamedTuple):
    """One committed flush.

    Attributes:
        ended_ns: When it was committed, as the loop has seen it, in nanoseconds since 1970.
        seconds: From its begin to the commit; the steps are the last part of it.
        steps: The seconds of each step, in order.
        attributes: Its sizes, by the names of span attributes.
        logged_ns: The newest time in the log of its records; None without Kafka times.
        requested_ns: The begin of the request that took longest from there into the log; None likewise.
        locked: The locks that it has set, and those it has cleared, by policy.
        at: The version of the feed that has them; None: no lock has changed.
    """

    ended_ns: int
    seconds: float
    steps: Mapping[str, float]
    attributes: Mapping[str, int | float | str]
    logged_ns: int | None
    requested_ns: int | None
    locked: Mapping[str, int]
    at: Cursor | None

    @property
    def is_heartbeat(self) -> bool:
        """Whether it stored no record and changed no lock."""
        return not self.attributes["gatelock.records"] and self.at is None


def flush_facts(result: FlushResult, ended_ns: int) -> FlushFacts:
    """Returns the facts of a flush that was committed before `ended_ns`."""
    parts, judged = result.counted.parts, result.judged
    delays = [progress.delays for progress in parts if progress.delays is not None]
    logged_ms = max((delay.newest_ms for delay in delays), default=None)
    most_ms = max((delay.most_ms for delay in delays if delay.counts), default=0)
    return FlushFacts(
        ended_ns,
        result.seconds,
        result.steps.seconds,
        {
            "gatelock.records": sum(progress.counted for progress in parts),
            "gatelock.records.rejected": sum(progress.dead + progress.late for progress in parts),
            "gatelock.records.duplicate": sum(progress.duplicate for progress in parts),
            "gatelock.partitions": len(parts),
            "gatelock.rows": sum(len(table.keys) for table in result.counted.tables),
            "gatelock.locks.changed": len(judged.changes),
            "gatelock.lag_s": max((lag.seconds for lag in result.lags.values()), default=0.0),
            "gatelock.cpu_s": result.cpu_s,
        },
        None if logged_ms is None else logged_ms * MS_NS,
        None if logged_ms is None else (logged_ms - max(0, most_ms)) * MS_NS,
        Counter(change.lock.policy for change in judged.changes if isinstance(change, Set)),
        judged.at if judged.changes else None,
    )
