"""The counter's contract (docs/counter.md) in slow, obvious Python: every request is kept until drained.

It shares no code with the counter but the values that cross the seam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analyzer.core import mapping as mappings
from analyzer.core.meters import Meter
from analyzer.core.model import Counted, Fed, Partition, Progress, Records, RecordSet, Rejected, Row
from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_batches import Kept, Wrong, batches_in
from tests.oracle.counter.slow_records import Request, judge


def with_usual_fields(mapping: mappings.Mapping) -> mappings.Mapping:
    """Whoever maps nothing of a combined line gets its parts under their own names."""
    if mapping.format != "combined" or mapping.fields:
        return mapping
    fields: dict[str, mappings.Field] = {
        "address": mappings.AddressField(("address",)),
        "user": mappings.TextField(("user",)),
        "resource": mappings.ResourceField(("path",)),
        "method": mappings.TextField(("method",)),
        "status": mappings.TextField(("status",)),
        "bytes": mappings.NumberField(("bytes",)),
    }
    return replace(mapping, fields=fields, time=mapping.time or mappings.TimeField(("time",), "clf"))


@dataclass
class Part:
    start: int
    next: int
    requests: list[Request] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    witness: str = ""
    last_ms: int | None = None


class SlowCounter:
    """The `Counter` protocol. Keeps every request and thinks of rows when it is drained."""

    def __init__(
        self, mapped: Mapping[str, mappings.Mapping], groupings: Sequence[str], meters: Sequence[Meter]
    ) -> None:
        self.mapped = {source: with_usual_fields(mapping) for source, mapping in mapped.items()}
        self.groupings = groupings
        self.meters = {meter.name: meter for meter in (Meter("requests"), *meters)}
        parts = {part for grouping in groupings for part in grouping.split("+")}
        self.dimensions = sorted(parts - {"everyone"})
        self.parts: dict[Partition, Part] = {}

    def feed(self, taken: RecordSet | Records) -> Fed:
        part = self.parts.setdefault(taken.part, Part(taken.start, taken.start))
        before = len(part.requests), len(part.rejected)
        part.witness = taken.witness or part.witness
        wrong = None
        if isinstance(taken, Records):
            self.count(taken.part, [Kept(*item) for item in taken.items if item.offset >= taken.start])
            part.next = max(part.next, taken.next)
        else:
            bytes_max = self.mapped[taken.part.source].batch_bytes_max
            for batch in batches_in(taken.raw, taken.start, taken.aborted, bytes_max):
                if isinstance(batch, Wrong):
                    wrong = batch
                    break
                part.next = max(part.next, batch[0])
                self.count(taken.part, batch[1])
        counted = len(part.requests) - before[0]
        fed = Fed(part.next, counted + len(part.rejected) - before[1], counted)
        return fed if wrong is None else Fed(*fed[:3], wrong.status, wrong.base, wrong.next)

    def count(self, at: Partition, records: Sequence[Kept]) -> None:
        part, mapping = self.parts[at], self.mapped[at.source]
        for offset, kafka_ms, value in records:
            part.last_ms = kafka_ms
            try:
                request = judge(value, kafka_ms, mapping, self.dimensions, list(self.meters.values()))
            except Refused as refused:
                sample = (value or b"")[: mapping.sample_bytes]
                part.rejected.append(Rejected(at, offset, refused.args[0], sample))
            else:
                part.requests.append(request)

    def drain(self) -> Counted:
        parts = {
            at: part for at, part in sorted(self.parts.items()) if part.next > part.start or part.requests
        }
        self.parts = {}
        progress = []
        for at, part in parts.items():
            late = sum(rejected.reason == "past" for rejected in part.rejected)
            dead = len(part.rejected) - late
            counted = len(part.requests)
            seen = counted + dead + late
            progress.append(
                Progress(at, part.start, part.next, seen, counted, 0, dead, late, part.witness, part.last_ms)
            )
        rejected = [each for part in parts.values() for each in part.rejected]
        return Counted(progress, self.rows([r for part in parts.values() for r in part.requests]), rejected)

    def rows(self, requests: Sequence[Request]) -> list[Row]:
        found: dict[tuple[Any, ...], dict[bool, list[int]]] = {}
        for request in requests:
            for grouping in self.groupings:
                names = (grouping.split("+") + [""])[:2]
                key, resource = (request.texts.get(name, "") for name in names)
                for meter in self.meters.values():
                    if not request.held[meter.name] or (meter.field and meter.field not in request.numbers):
                        continue
                    bucket_s = request.ms // (1000 * meter.width_s) * meter.width_s
                    series = (grouping, key, resource, meter.name, meter.width_s, bucket_s)
                    amount = 1 if meter.field is None else request.numbers[meter.field]
                    found.setdefault(series, {False: [], True: []})[request.denied].append(amount)
        rows = []
        for series, amounts in sorted(found.items()):
            joined = sum if self.meters[series[3]].join == "sum" else lambda each: max(each, default=0)
            value, denied = joined(amounts[False]), joined(amounts[True])
            if value or denied:
                rows.append(Row(*series, value, denied))
        return rows
