"""A partition, a mapping and a few records for a counter, and what to read from its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dict
from typing import Any

from msgspec.structs import replace

from analyzer.kernel.model import DistinctLayout, DrainedCounts, Partition, Record, Records, SlotLayout
from analyzer.plan.mapping import Field, SourceMapping, TextField, TimeField
from analyzer.plan.meters import REQUESTS, Meter
from gatekeeper.identity import NameDigest
from tests.support.counters import CounterClass, reference_counter
from tests.support.recordsets import NOW_MS

PART = Partition("cluster", "topic-id", 0, "log", "access-log")
KEY: dict[str, Field] = {"api_key": TextField(("key",))}
PLAIN = SourceMapping(time=TimeField(("ts",), "ms"), caller=("api_key",), fields=KEY)

Counted = Callable[..., DrainedCounts]  # `counted` with the counter under test


def mapping_of(fields: Dict[str, Field] | None = None, **changes: Any) -> SourceMapping:
    """Returns a mapping by `key` and `ts` in milliseconds, with further fields and other settings."""
    return replace(PLAIN, fields=KEY | dict(fields or {}), **changes)


def a_record(**fields: Any) -> bytes:
    """Returns a request of acme at NOW_MS with these fields; a field that is None is left out."""
    found = {"key": "acme", "ts": NOW_MS} | fields
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def some_records(
    start: int, *values: bytes | None, part: Partition = PART, resume_token: str = ""
) -> Records:
    """Returns decoded records from offset `start` on, with Kafka times at NOW_MS."""
    items = [Record(start + n, NOW_MS, value) for n, value in enumerate(values)]
    return Records.of(part, start, start + len(items), items, resume_token)


def counted(
    mapping: SourceMapping,
    *values: bytes | None,
    groupings: Sequence[str] = ("caller",),
    meters: Sequence[Meter] = (REQUESTS,),
    kafka_ms: int | None = NOW_MS,
    counter_class: CounterClass = reference_counter,
    digests: Sequence[NameDigest] = (),
    slots: Sequence[SlotLayout] = (),
    distinct: Sequence[DistinctLayout] = (),
) -> DrainedCounts:
    """Returns what a new counter drains after these records."""
    counter = counter_class(
        {PART.source: mapping}, groupings, meters, digests=digests, slots=slots, distinct=distinct
    )
    items = [Record(offset, kafka_ms, value) for offset, value in enumerate(values)]
    counter.feed(Records.of(PART, 0, len(items), items))
    return counter.drain()


def totals(found: DrainedCounts) -> dict[tuple[str, ...], tuple[int, int]]:
    """Returns (value, denied) by series and meter over all buckets; fails where a record was rejected."""
    assert not found.rejected, found.rejected
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in found.rows:
        name = (row.key, row.resource, row.meter) if row.resource else (row.key, row.meter)
        value, denied = sums.get(name, (0, 0))
        sums[name] = value + row.value, denied + row.denied
    return sums


def reasons(found: DrainedCounts) -> list[str]:
    return [rejected.reason for rejected in found.rejected]
