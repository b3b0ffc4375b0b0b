"""The counter's contract (docs/counter.md) in slow, obvious Python: every record is kept for ever.

It shares no code with the counter but the values that cross the seam. What it says of a partition it finds
out by going through all of its records from the first one on, each time that it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from analyzer.core.counting.meters import Meter
from analyzer.core.model import (
    CounterState,
    CountRow,
    DrainedCounts,
    FeedResult,
    NamedCallers,
    Partition,
    PartitionProgress,
    Records,
    RecordSet,
    Rejected,
)
from analyzer.core.records import mapping as mappings
from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_batches import Kept, Wrong, batches_in
from tests.oracle.counter.slow_records import Request, judge

HOUR_MS = 3_600_000
WAYS = ("old", "new", "drawn")


def with_usual_fields(mapping: mappings.SourceMapping) -> mappings.SourceMapping:
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


class Read(NamedTuple):
    """One record, and what it is: a request, or rejected."""

    offset: int
    kafka_ms: int | None
    found: Request | Rejected


@dataclass
class Part:
    start: int
    next: int
    records: list[Read] = field(default_factory=list)
    drained: int = 0  # how many of the records
    known: set[tuple[str, int, str]] = field(default_factory=set)  # names that were told
    hours: tuple[int, ...] = (-1, -1)
    resume_token: str = ""


class Names:
    """Who is counted by name, told record by record."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.hour = self.before = -1
        self.behind = 0
        self.how: dict[int, dict[str, str]] = {-1: {}}  # by hour and caller
        self.begun: list[int] = []

    def of(self, caller: str, ms: int, offset: int) -> str:
        hour = ms // HOUR_MS
        self.behind = self.behind + 1 if hour < self.hour - 24 else 0
        if hour > self.hour or self.behind == 10_000:
            if hour != self.before:
                self.how[hour] = {}
                self.begun.append(hour)
            self.hour, self.before, self.behind = hour, self.hour, 0
        mine = self.how[self.hour]
        if caller not in mine:
            room = {how: list(mine.values()).count(how) < self.most for how in WAYS}
            lot = (offset * 11400714819323198485) % 2**64 < 2**54
            if caller in self.how[self.before] and self.before != self.hour and room["old"]:
                mine[caller] = "old"
            elif room["new"]:
                mine[caller] = "new"
            elif room["drawn"] and lot:
                mine[caller] = "drawn"
        return caller if caller in mine else "overflow:"


class SlowCounter:
    """The `Counter` protocol. Keeps every request and thinks of rows when it is drained."""

    def __init__(
        self, mapped: Mapping[str, mappings.SourceMapping], groupings: Sequence[str], meters: Sequence[Meter]
    ) -> None:
        self.mapped = {source: with_usual_fields(mapping) for source, mapping in mapped.items()}
        self.groupings = groupings
        self.meters = {meter.name: meter for meter in (Meter("requests"), *meters)}
        parts = {part for grouping in groupings for part in grouping.split("+")}
        self.dimensions = sorted(parts - {"everyone"})  # as they are written: "address/24"
        self.parts: dict[Partition, Part] = {}

    def feed(self, taken: RecordSet | Records) -> FeedResult:
        part = self.parts.setdefault(taken.part, Part(taken.start, taken.start))
        before, next_before, resume_token = list(part.records), part.next, part.resume_token
        part.resume_token = taken.resume_token or part.resume_token
        wrong = None
        if isinstance(taken, Records):
            self.read(taken.part, [Kept(*item) for item in taken.items if item.offset >= taken.start])
            part.next = max(part.next, taken.next)
        else:
            bytes_max = self.mapped[taken.part.source].batch_bytes_max
            for batch in batches_in(taken.raw, taken.start, taken.aborted, bytes_max):
                if isinstance(batch, Wrong):
                    wrong = batch
                    break
                part.next = max(part.next, batch[0])
                self.read(taken.part, batch[1])
        many = self.too_many(taken.part)
        if many is not None:
            whole = isinstance(taken, Records) and taken.resume_token
            since = len(before) if whole else part.drained
            cut = [each for each in many if each in part.records[since:]]
            part.records = before if whole else part.records[: part.records.index(cut[0])]
            part.next = next_before if whole else cut[0].offset
            part.resume_token = resume_token if isinstance(taken, Records) else part.resume_token
        new = part.records[len(before) :]
        counted = sum(isinstance(each.found, Request) for each in new)
        fed = FeedResult(part.next, len(new), counted)
        if many is not None:
            first = cut[0].found
            assert isinstance(first, Rejected)
            return fed._replace(
                status="too-many-rejected", bad=first.offset, skip_to=many[-1].offset + 1, first=first
            )
        return fed if wrong is None else FeedResult(*fed[:3], wrong.status, wrong.base, wrong.next)

    def read(self, at: Partition, records: Sequence[Kept]) -> None:
        part, mapping = self.parts[at], self.mapped[at.source]
        for offset, kafka_ms, value in records:
            found: Request | Rejected
            try:
                found = judge(value, kafka_ms, mapping, self.dimensions, list(self.meters.values()))
            except Refused as refused:
                sample = (value or b"")[: mapping.sample_bytes]
                size = None if value is None else len(value)
                found = Rejected(at, offset, refused.args[0], sample, kafka_ms, size)
            part.records.append(Read(offset, kafka_ms, found))

    def too_many(self, at: Partition) -> list[Read] | None:
        """The first run of rejected records that is as long as may be; tombstones among them left out."""
        for run in self.runs(at):
            if len(run) == self.mapped[at.source].rejected_in_row_max:
                return run
        return None

    def runs(self, at: Partition) -> Iterator[list[Read]]:
        """The rejected records in a row, as they stand behind each record."""
        run: list[Read] = []
        for each in self.parts[at].records:
            if isinstance(each.found, Request):
                run = []
            elif each.found.reason != "tombstone":
                run = [*run, each]
            yield run

    def drain(self) -> DrainedCounts:
        progress, requests, rejected = [], [], []
        for at, part in sorted(self.parts.items()):
            new = part.records[part.drained :]
            if part.next == part.start and not new:
                continue
            named, carried = self.named(at)
            named = named[part.drained :]
            told = [request for request in named if request is not None]
            requests += told
            ours = [each.found for each in new if isinstance(each.found, Rejected)]
            rejected += ours
            late = sum(each.reason == "past" for each in ours)
            progress.append(
                PartitionProgress(
                    at, part.start, part.next, len(new), len(told), 0, len(ours) - late, late,
                    part.resume_token,
                    sum(request.texts.get("caller") == "overflow:" for request in told),
                    carried,
                )
            )  # fmt: skip
            part.start, part.drained, part.resume_token = part.next, len(part.records), ""
        return DrainedCounts(progress, self.rows(requests), rejected)

    def named(self, at: Partition) -> tuple[list[Request | None], CounterState]:
        """All requests under the names that they are counted by, and what the next record depends on."""
        part, names = self.parts[at], Names(self.mapped[at.source].callers_max)
        found: list[Request | None] = []
        begun: list[int] = []
        for place, each in enumerate(part.records):
            if place == part.drained:
                names.begun = begun
            if not isinstance(each.found, Request):
                found.append(None)
            elif "caller" not in self.dimensions:
                found.append(each.found)
            else:
                caller = names.of(each.found.texts["caller"], each.found.ms, each.offset)
                found.append(each.found._replace(texts={**each.found.texts, "caller": caller}))
        run = [*self.runs(at)][-1] if part.records else []
        if part.drained == len(part.records):
            names.begun = []
        return found, self.carried(part, names, len(run))

    def carried(self, part: Part, names: Names, run: int) -> CounterState:
        hours = (names.before, names.hour)
        known = {(how, hour, who) for hour in hours for who, how in names.how[hour].items()}
        fresh = known - {each for each in part.known if each[1] not in names.begun}
        part.known = known
        added = [
            NamedCallers(hour, how, sorted(who for h, at, who in fresh if (h, at) == (how, hour)))
            for hour in hours
            for how in WAYS
        ]
        kept = None if not names.begun else tuple(hour for hour in hours if hour not in names.begun)
        return CounterState(
            reject_run=run, hour=names.hour, hour_before=names.before, behind_run=names.behind,
            named=[each for each in added if each.callers], kept=kept,
        )  # fmt: skip

    def rows(self, requests: Sequence[Request]) -> list[CountRow]:
        found: dict[tuple[Any, ...], dict[bool, list[int]]] = {}
        for request in requests:
            for grouping in self.groupings:
                names = (grouping.split("+") + [""])[:2]
                key, resource = (request.texts.get(name, "") for name in names)
                for meter in self.meters.values():
                    if not request.held[meter.name] or (meter.field and meter.field not in request.numbers):
                        continue
                    bucket_s = request.ms // 60_000 * 60
                    series = (grouping, key, resource, meter.name, 60, bucket_s)
                    amount = 1 if meter.field is None else request.numbers[meter.field]
                    found.setdefault(series, {False: [], True: []})[request.denied].append(amount)
        rows = []
        for series, amounts in sorted(found.items()):
            joined = sum if self.meters[series[3]].join == "sum" else lambda each: max(each, default=0)
            value, denied = joined(amounts[False]), joined(amounts[True])
            if value or denied:
                rows.append(CountRow(*series, value, denied))
        return rows
