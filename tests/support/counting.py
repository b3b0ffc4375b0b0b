"""A counter for a few records: what they say, without a log around them."""

from __future__ import annotations

import json
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analyzer.core.counting.counter import PythonCounter
from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.model import DrainedCounts, Partition, Record, Records
from analyzer.core.records.mapping import Field, SourceMapping, TextField, TimeField
from tests.support.recordsets import NOW_MS

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
KEY: dict[str, Field] = {"api_key": TextField(("key",))}
PLAIN = SourceMapping(time=TimeField(("ts",), "ms"), caller=("api_key",), fields=KEY)


def mapping_of(fields: Dict[str, Field] | None = None, **changes: Any) -> SourceMapping:
    """By `key` and `ts` in milliseconds, unless told otherwise."""
    return replace(PLAIN, fields=KEY | dict(fields or {}), **changes)


def a_record(**fields: Any) -> bytes:
    """One request of acme, now; None leaves a field out."""
    found = {"key": "acme", "ts": NOW_MS} | fields
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def counted(
    mapping: SourceMapping,
    *values: bytes | None,
    groupings: Sequence[str] = ("caller",),
    meters: Sequence[Meter] = (REQUESTS,),
    kafka_ms: int | None = NOW_MS,
) -> DrainedCounts:
    counter = PythonCounter({PART.source: mapping}, groupings, meters)
    items = [Record(offset, kafka_ms, value) for offset, value in enumerate(values)]
    counter.feed(Records(PART, 0, len(items), items))
    return counter.drain()


def totals(found: DrainedCounts) -> dict[tuple[str, ...], tuple[int, int]]:
    """(passed, denied) of each series and meter, over all buckets. Nothing may have been rejected."""
    assert not found.rejected, found.rejected
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in found.rows:
        name = (row.key, row.resource, row.meter) if row.resource else (row.key, row.meter)
        value, denied = sums.get(name, (0, 0))
        sums[name] = value + row.value, denied + row.denied
    return sums


def reasons(found: DrainedCounts) -> list[str]:
    return [rejected.reason for rejected in found.rejected]
