"""The counter's contract (docs/spec/counter.md) in slow, obvious Python: it keeps every record.

It shares no code with other counters except the values that cross the seam. Each answer about a partition
comes from a walk over all of its records since the partition began or was resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from analyzer.kernel.model import (
    CounterState,
    CountRow,
    DistinctLayout,
    DistinctTable,
    DrainedCounts,
    FactRun,
    FeedResult,
    Moment,
    NamedCallers,
    Partition,
    PartitionProgress,
    Records,
    RecordSet,
    Rejected,
    Series,
    SlotLayout,
    StatedFacts,
    Verdict,
)
from analyzer.kernel.shipping_delays import ALL_OF, BOUNDS_MS, EVERY, ShippingDelays
from analyzer.plan import mapping as mappings
from analyzer.plan.meters import REQUESTS, Meter
from gatekeeper.identity import NameDigest
from tests.oracle.counter.refused import Refused
from tests.oracle.counter.slow_batches import CommittedRecord, RefusedBatch, batches_in
from tests.oracle.counter.slow_ids import Ids
from tests.oracle.counter.slow_records import Request, read_record
from tests.oracle.counter.slow_values import SECRETS
from tests.support.stored_counts import tables_of

HOUR_MS = 3_600_000


def with_default_fields(mapping: mappings.SourceMapping) -> mappings.SourceMapping:
    """Returns the mapping; for combined lines without fields, one of the line's parts by their own names."""
    names = ("address",) if mapping.format == "combined" else ("api_key", "user", "address")
    mapping = replace(mapping, caller=mapping.caller or names)
    if mapping.format != "combined" or mapping.fields:
        return mapping
    fields: dict[str, mappings.Field] = {
        "address": mappings.AddressField(("address",), 64),
        "user": mappings.TextField(("user",)),
        "resource": mappings.ResourceField(("path",)),
        "method": mappings.TextField(("method",)),
        "status": mappings.TextField(("status",)),
        "bytes": mappings.NumberField(("bytes",)),
    }
    return replace(mapping, fields=fields, time=mapping.time or mappings.TimeField(("time",), "clf"))


class Read(NamedTuple):
    """One record, and the request in it or its rejection."""

    offset: int
    kafka_ms: int | None
    found: Request | Rejected


@dataclass
class Part:
    """A partition from the record at which this counter began."""

    start: int
    next: int
    before: CounterState
    records: list[Read] = field(default_factory=list)
    drained: int = 0  # number of records that were drained
    known: set[tuple[str, int, str]] = field(default_factory=set)  # (rule, hour, caller) that were drained
    resume_token: str = ""
    blobs: dict[int, list[int]] = field(default_factory=dict)  # sizes of those drained, by generation

    def __post_init__(self) -> None:
        ids = self.before.ids
        self.blobs = {}
        for blob in sorted(ids.blobs) if ids else ():
            self.blobs.setdefault(blob.generation, []).append(len(blob.hashes) // 8)
        named = self.before.named
        self.known = {(callers.how, callers.hour, caller) for callers in named for caller in callers.callers}


class Names:
    """The callers that are counted by name, record by record."""

    def __init__(self, most: int, before: CounterState) -> None:
        self.most = most
        self.hour, self.before, self.behind = before.hour, before.hour_before, before.behind_run
        self.how: dict[int, dict[str, str]] = {-1: {}, self.hour: {}, self.before: {}}  # by hour and caller
        self.draws: dict[int, list[str]] = {-1: [], self.hour: [], self.before: []}  # by hour, in order
        for callers in before.named:
            if callers.hour in (self.hour, self.before) and callers.how == "drawn":
                self.draws[callers.hour] += callers.callers
            elif callers.hour in (self.hour, self.before):
                self.how[callers.hour] |= dict.fromkeys(callers.callers, callers.how)
        self.begun: list[int] = []
        self.drawn_before_drain = {hour: len(draws) for hour, draws in self.draws.items()}

    def drained(self) -> None:
        self.begun = []
        self.drawn_before_drain = {hour: len(draws) for hour, draws in self.draws.items()}

    def drawn(self, hour: int, kind: str) -> set[str]:
        """Returns the callers of a kind that were drawn last, as many as may have a name."""
        of_kind = [caller for caller in self.draws[hour] if caller.split(":")[0] == kind]
        return set(last_times(of_kind)[-self.most :])

    def has_name(self, caller: str, hour: int) -> bool:
        return caller in self.how[hour] or caller in self.drawn(hour, caller.split(":", maxsplit=1)[0])

    def begins(self, hour: int) -> bool:
        """Whether a record of this hour is the first of it, or shows that the reached hour is wrong."""
        if self.hour == -1:
            return True
        if hour < self.hour - 24:
            self.behind += 1
            return self.behind >= 10_000
        if hour > self.hour + 24:
            self.behind -= 1
            return self.behind <= -100
        if self.behind:
            self.behind -= 1 if self.behind > 0 else -1
        return hour > self.hour

    def of(self, caller: str, ms: int, offset: int) -> str:
        hour = ms // HOUR_MS
        if self.begins(hour):
            if hour != self.before:
                self.how[hour], self.draws[hour] = {}, []
                self.begun.append(hour)
                self.drawn_before_drain[hour] = 0
            if abs(hour - self.hour) > 24:
                self.behind = 0
            self.hour, self.before = hour, self.hour
        return self.here(caller, offset)

    def known(self, name: str) -> str:
        """Returns a name that has one, or the overflow; gives none."""
        has_name = any(self.has_name(name, hour) for hour in (self.hour, self.before))
        return name if has_name else "overflow:"

    def here(self, caller: str, offset: int) -> str:
        mine, kind = self.how[self.hour], caller.split(":", maxsplit=1)[0]
        kinds = [(how, named.split(":")[0]) for named, how in mine.items()]
        room = {how: kinds.count((how, kind)) < self.most for how in ("old", "new")}
        sha = hashlib.sha256(str(offset // 1024).encode()).digest()
        is_drawn = offset % 1024 == (sha[0] * 256 + sha[1]) % 1024
        if caller in mine:
            return caller
        if self.has_name(caller, self.hour):
            if is_drawn:
                self.draws[self.hour].append(caller)
        elif self.before != self.hour and self.has_name(caller, self.before) and room["old"]:
            mine[caller] = "old"
        elif room["new"]:
            mine[caller] = "new"
        elif is_drawn:
            self.draws[self.hour].append(caller)
        return caller if self.has_name(caller, self.hour) else "overflow:"


def last_times(draws: Sequence[str]) -> list[str]:
    """Returns each caller once, in the order in which they were drawn last."""
    return [caller for at, caller in enumerate(draws) if caller not in draws[at + 1 :]]


def require_fields(mapping: mappings.SourceMapping) -> None:
    """Raises ValueError for a weight that is not a whole number, or an id that is not text."""
    rule = mapping.event_ids
    if rule is not None and not isinstance(mapping.fields.get(rule.field), mappings.TextField):
        raise ValueError(f"id: {rule.field} is not mapped as a text field")
    if isinstance(mapping.weight, str):
        field = mapping.fields.get(mapping.weight)
        if not isinstance(field, mappings.NumberField) or field.kind != "whole":
            raise ValueError(f"weight: {mapping.weight} is not mapped as a whole number")


class Walk(NamedTuple):
    """All records of a partition, one after the other."""

    counted: list[Request | None]  # under the names they are counted by
    names: Names  # behind the last record
    repeated: list[Request | None]  # requests whose id was counted before, to be counted as such
    ids: Ids | None  # behind the last record


class SlowCounter:
    """Implements the `Counter` protocol. Keeps every request and makes rows when it is drained."""

    def __init__(
        self,
        mapped: Mapping[str, mappings.SourceMapping],
        groupings: Sequence[str],
        meters: Sequence[Meter] = (REQUESTS,),
        *,
        named_values: Mapping[str, str] = MappingProxyType({}),
        slots: Sequence[SlotLayout] = (),
        distinct: Sequence[DistinctLayout] = (),
        rows_max: int = 10**9,
        rejected_max: int = 10**9,
        digests: Iterable[NameDigest] = (),
        id_secret: bytes = b"",
    ) -> None:
        self.id_secret = id_secret
        for digest in digests:
            assert isinstance(digest.secret, bytes)
            SECRETS[digest.fingerprint] = digest.secret
        self.mapped = {source: with_default_fields(mapping) for source, mapping in mapped.items()}
        self.groupings = groupings
        self.named_values = named_values
        named = {meter.name: meter for meter in (Meter("requests"), *meters)}
        self.meters = {name: meter for name, meter in named.items() if meter.join != "distinct"}
        if any(isinstance(mapping.weight, str) for mapping in self.mapped.values()):
            self.meters["unrecorded requests"] = Meter("unrecorded requests")
        if any(mapping.event_ids for mapping in self.mapped.values()):
            self.meters["duplicate records"] = Meter("duplicate records")
        for mapping in self.mapped.values():
            require_fields(mapping)
        self.distinct = [(layout, named[layout.meter]) for layout in sorted(distinct)]  # KeyError: unknown
        for layout, meter in self.distinct:
            if layout.grouping not in groupings or meter.join != "distinct" or layout.width_s < 1:
                raise ValueError(f"{layout} is not counted")
        self.slots = sorted(slots)
        for wanted in slots:
            if (
                wanted.width_s < 1
                or wanted.grouping not in groupings
                or not set(wanted.meters) <= {*self.meters}
            ):
                raise ValueError(f"{wanted} is not counted")
        widths_s = [60, *(wanted.width_s for wanted in slots)]
        self.narrowest_s = max(n for n in range(1, 61) if all(width_s % n == 0 for width_s in widths_s))
        parts = {part for grouping in groupings for part in grouping.split("+")}
        self.dimensions = sorted(parts - {"everyone"})  # as they are written: "address/24"
        self.parts: dict[Partition, Part] = {}
        self.bounds = (rows_max, rejected_max)
        self.resumed: dict[Partition, CounterState] = {}

    def resume(self, part: Partition, state: CounterState) -> None:
        self.forget(part)
        self.resumed[part] = state

    def forget(self, part: Partition) -> None:
        self.parts.pop(part, None)
        self.resumed.pop(part, None)

    def full(self) -> bool:
        requests, rejected = [], 0
        for at, part in self.parts.items():
            requests += [request for request in self.named(at)[part.drained :] if request is not None]
            rejected += sum(isinstance(read.found, Rejected) for read in part.records[part.drained :])
        values = sum(len(table.values) for table in self.distinct_tables(requests))
        return (
            len(self.rows(requests, self.narrowest_s)) + values >= self.bounds[0]
            or rejected >= self.bounds[1]
        )

    def part(self, taken: RecordSet | Records) -> Part:
        """Returns the partition of a set. Raises KeyError without a mapping, ValueError out of order."""
        _ = self.mapped[taken.part.source]
        if taken.part not in self.parts:
            state = self.resumed.get(taken.part, CounterState())
            self.parts[taken.part] = Part(taken.start, taken.start, state)
        part = self.parts[taken.part]
        if part.next != taken.start:
            raise ValueError(f"{taken.part}: a set from {taken.start} was fed after {part.next}")
        return part

    def feed(self, taken: RecordSet | Records) -> FeedResult:
        part = self.part(taken)
        before, next_before, resume_token = list(part.records), part.next, part.resume_token
        part.resume_token = taken.resume_token or part.resume_token
        wrong = None
        if isinstance(taken, Records):
            self.read(
                taken.part, [CommittedRecord(*item) for item in taken.items if item.offset >= taken.start]
            )
            part.next = max(part.next, taken.next)
        else:
            bytes_max = self.mapped[taken.part.source].batch_bytes_max
            for batch in batches_in(taken.raw, taken.start, taken.aborted, bytes_max):
                if isinstance(batch, RefusedBatch):
                    wrong = batch
                    break
                part.next = max(part.next, batch[0])
                self.read(taken.part, batch[1])
        many = self.too_many(taken.part)
        if many is not None:
            whole = isinstance(taken, Records) and taken.resume_token
            since = len(before) if whole else part.drained
            cut = [read for read in many if read in part.records[since:]]
            part.records = before if whole else part.records[: part.records.index(cut[0])]
            part.next = next_before if whole else cut[0].offset
            part.resume_token = resume_token if isinstance(taken, Records) else part.resume_token
        new = part.records[len(before) :]
        counted = sum(request is not None for request in self.named(taken.part)[len(before) :])
        fed = FeedResult(part.next, len(new), counted)
        if many is not None:
            first = cut[0].found
            assert isinstance(first, Rejected)
            return fed._replace(
                status="too-many-rejected", bad=first.offset, skip_to=many[-1].offset + 1, first=first
            )
        return fed if wrong is None else FeedResult(*fed[:3], wrong.status, wrong.base, wrong.next)

    def read(self, at: Partition, records: Sequence[CommittedRecord]) -> None:
        part, mapping = self.parts[at], self.mapped[at.source]
        for offset, kafka_ms, value in records:
            found: Request | Rejected
            try:
                meters = [*self.meters.values(), *(meter for _, meter in self.distinct)]
                fields = [meter.field for meter in meters if meter.join == "distinct" and meter.field]
                of_records = [meter for meter in meters if meter.name != "duplicate records"]
                found = read_record(value, kafka_ms, mapping, self.fields_read(), of_records, fields)
                chosen = {name: found.texts[self.named_values[name]] for name in self.values()}
                found = found._replace(texts={**found.texts, **chosen})
            except Refused as refused:
                sample = (value or b"")[: mapping.sample_bytes]
                size = None if value is None else len(value)
                found = Rejected(at, offset, refused.args[0], sample, kafka_ms, size)
            part.records.append(Read(offset, kafka_ms, found))

    def values(self) -> list[str]:
        """Returns the named values that are counted by, in order."""
        return [name for name in self.dimensions if name in self.named_values]

    def fields_read(self) -> list[str]:
        """Returns the dimensions, with the field of each named value in its place."""
        return sorted({self.named_values.get(name, name) for name in self.dimensions})

    def too_many(self, at: Partition) -> list[Read] | None:
        """Returns the first run of rejected records that is too long; tombstones are left out."""
        for length, run in self.runs(at):
            if run and length == self.mapped[at.source].rejected_in_row_max:
                return run
        return None

    def runs(self, at: Partition) -> Iterator[tuple[int, list[Read]]]:
        """Yields the run of rejected records up to each record: its length, and those since the beginning."""
        part = self.parts[at]
        stored, fingerprint = part.before.reject_run, self.mapped[at.source].fingerprint
        length, run, fits = max(0, stored), list[Read](), stored == -fingerprint
        for read in part.records:
            fits = fits or (isinstance(read.found, Request) and not read.found.fieldless)
            if fits:
                length, run = 0, []
            elif isinstance(read.found, Request) or read.found.reason in {"tombstone", "too-large"}:
                pass
            elif read.offset >= part.before.rejects_accepted_to:
                length, run = length + 1, [*run, read]
            yield (-fingerprint if fits else length), run

    def drain(self) -> DrainedCounts:
        progress, requests, rejected = [], [], []
        verdicts: list[Verdict] = []
        facts: list[StatedFacts] = []
        for at, part in sorted(self.parts.items()):
            new = part.records[part.drained :]
            if part.next == part.start and not new:
                continue
            named = self.named(at)[part.drained :]
            counted = [request for request in named if request is not None]
            repeated = [one for one in self.walk(at).repeated[part.drained :] if one is not None]
            requests += counted + repeated
            verdicts += self.verdicts(at, new)
            facts += self.facts(at)
            unread = [read.found for read in new if isinstance(read.found, Rejected)]
            rejected += unread
            late = sum(found.reason == "past" for found in unread)
            progress.append(
                PartitionProgress(
                    at, part.start, part.next, len(new), len(counted), len(repeated), len(unread) - late,
                    late, part.resume_token,
                    sum(request.texts.get("caller") == "overflow:" for request in counted),
                    self.state(at),
                    sum(request.renamed for request in counted),
                    self.delays(
                        at, [read for read, request in zip(new, named, strict=True) if request is not None]
                    ),
                    self.without_id(at, counted),
                )
            )  # fmt: skip
            part.start, part.drained, part.resume_token = part.next, len(part.records), ""
        tables = tables_of(self.rows(requests))
        slots = [table for wanted in self.slots for table in tables_of(self.slot_rows(requests, wanted))]
        distinct = self.distinct_tables(requests)
        return DrainedCounts(progress, tables, rejected, verdicts, slots, distinct, facts)

    def without_id(self, at: Partition, counted: Sequence[Request]) -> int:
        return sum(not request.id for request in counted) if self.mapped[at.source].event_ids else 0

    def delays(self, at: Partition, new: Sequence[Read]) -> ShippingDelays | None:
        """Returns the delays of the sample of counted records, counted one by one."""
        timed = [
            (read.kafka_ms, read.found.ms)
            for number, read in enumerate(read for read in new if isinstance(read.found, Request))
            if number < ALL_OF or number % EVERY == 0
            if isinstance(read.found, Request) and read.kafka_ms is not None and read.kafka_ms >= 0
        ]
        if not timed:
            return None
        newest_ms = max(kafka_ms for kafka_ms, _ in timed)
        if self.mapped[at.source].time is None:
            return ShippingDelays((), 0, 0, newest_ms)
        delays_ms = [kafka_ms - ms for kafka_ms, ms in timed]
        bounds = [-math.inf, *BOUNDS_MS, math.inf]
        counts = [sum(low < delay <= high for delay in delays_ms) for low, high in itertools.pairwise(bounds)]
        return ShippingDelays(tuple(counts), min(delays_ms), max(delays_ms), newest_ms)

    def facts(self, at: Partition) -> list[StatedFacts]:
        """Returns what the records since the last drain have changed, about callers and about tenants."""
        names = self.mapped[at.source].fact_names
        of_tenants = [name for name in names if name.startswith("tenant_")]
        of_callers = [name for name in names if name not in of_tenants]
        stated = (
            self.facts_about(at, of_callers, is_of_tenants=False),
            self.facts_about(at, of_tenants, is_of_tenants=True),
        )
        return [facts for facts in stated if facts is not None]

    def facts_about(self, at: Partition, names: Sequence[str], *, is_of_tenants: bool) -> StatedFacts | None:
        part = self.parts[at]
        last: dict[tuple[str, str], str] = {}
        runs: dict[str, list[FactRun | None]] = {}
        unusable: Counter[str] = Counter()
        for number, (record, request) in enumerate(zip(part.records, self.named(at), strict=True)):
            if request is None or not request.facts:
                continue
            has_time = record.kafka_ms is not None and record.kafka_ms >= 0
            since = Moment(record.kafka_ms or 0 if has_time else request.ms, record.offset)
            caller = request.texts["caller"]
            is_known = not request.renamed and caller != "overflow:"
            if is_of_tenants:
                tenant = request.facts.get("tenant")
                caller, is_known = f"tenant:{tenant}", bool(tenant)
            for index, name in enumerate(names):
                value, before = request.facts[name], last.get((caller, name))
                is_new = number >= part.drained
                unusable[name.removeprefix("tenant_")] += is_new and value is None
                if value and value != before and is_known:
                    last[caller, name] = value
                    if is_new:
                        run = FactRun(value, since, is_first=before is None)
                        runs.setdefault(caller, [None] * len(names))[index] = run
        shown = tuple(name.removeprefix("tenant_") for name in names)
        return StatedFacts(at, shown, runs, +unusable) if runs or +unusable else None

    def distinct_tables(self, requests: Sequence[Request]) -> list[DistinctTable]:
        tables = []
        for (grouping, width_s, name), meter in self.distinct:
            found = set()
            for request in requests:
                value = request.values.get(meter.field or "")
                if value is not None and request.matches.get(name) and not request.denied:
                    series = (request.texts.get(part, "") for part in (grouping.split("+") + [""])[:2])
                    found.add((request.ms // 1000 // width_s * width_s, *series, value))
            if found:
                columns = zip(*sorted(found), strict=True)
                tables.append(DistinctTable(grouping, name, width_s, *columns))
        return tables

    def slot_rows(self, requests: Sequence[Request], wanted: SlotLayout) -> list[CountRow]:
        rows = self.rows(requests, wanted.width_s)
        return [row for row in rows if row.grouping == wanted.grouping and row.meter in wanted.meters]

    def verdicts(self, at: Partition, new: Sequence[Read]) -> list[Verdict]:
        """Returns the denied requests, joined where everything but their amounts is equal."""
        found: dict[tuple[Any, ...], list[Request]] = {}
        for read, request in zip(new, self.named(at)[self.parts[at].drained :], strict=True):
            if request is not None and request.denied:
                has_time = read.kafka_ms is not None and read.kafka_ms >= 0
                logged_ms = read.kafka_ms if has_time and read.kafka_ms is not None else request.ms
                series = tuple(
                    Series(
                        grouping, *(request.texts.get(name, "") for name in (grouping.split("+") + [""])[:2])
                    )
                    for grouping in sorted(self.groupings)
                )
                minutes = (ms // 60_000 * 60 for ms in (logged_ms, request.ms))
                slot_s = request.ms // 1000 // self.narrowest_s * self.narrowest_s
                times_s = (*minutes, slot_s)
                found.setdefault((request.policy, request.asked, *times_s, series), []).append(request)
        verdicts = []
        for key, requests in found.items():
            rows = {(row.grouping, row.meter): row.denied for row in self.rows(requests)}
            values = (rows.get((self.groupings[0], meter), 0) for meter in self.meters)
            verdicts.append(Verdict(at, *key, tuple(values)))
        return verdicts

    def walk(self, at: Partition) -> Walk:
        part, rule = self.parts[at], self.mapped[at.source].event_ids
        names = Names(self.mapped[at.source].callers_max, part.before)
        ids = None if rule is None else Ids(rule, self.id_secret, part.before.ids)
        found: list[Request | None] = []
        repeated: list[Request | None] = []
        for place, read in enumerate(part.records):
            if place == part.drained:
                names.drained()
                if ids is not None:
                    ids.drained()
            request = read.found if isinstance(read.found, Request) else None
            is_new, caller = True, ""
            if request is not None:
                own_time = read.kafka_ms is None or read.kafka_ms < 0
                ms = request.ms if own_time else read.kafka_ms or 0
                is_new = ids is None or ids.is_new(request.texts["caller"], request.id, ms)
            if request is not None and "caller" in self.dimensions:
                caller = request.texts["caller"]
                if is_new:
                    caller = names.of(caller, request.ms, read.offset)
                else:
                    caller = names.known(caller)
                texts = {**request.texts, "caller": caller}
                texts |= self.resource(at, names, texts, read.offset, is_new=is_new)
                texts |= self.chosen_values(names, texts, read.offset, is_new=is_new)
                request = request._replace(texts=texts)
            found.append(request if is_new else None)
            repeated.append(
                None
                if is_new or request is None
                else request._replace(denied=False, matches={"duplicate records": True}, values={})
            )
        if part.drained == len(part.records):
            names.drained()
            if ids is not None:
                ids.drained()
        return Walk(found, names, repeated, ids)

    def resource(
        self, at: Partition, names: Names, texts: Mapping[str, str], offset: int, *, is_new: bool
    ) -> dict[str, str]:
        """Returns the resource of a request whose caller has its name, or none, already; {} with routes."""
        field = self.mapped[at.source].fields.get("resource")
        path = texts.get("resource", "")
        if not isinstance(field, mappings.ResourceField) or field.routes or path == "":
            return {}
        return {"resource": self.chosen(names, "resource:", path, offset, is_new=is_new)}

    def chosen_values(
        self, names: Names, texts: Mapping[str, str], offset: int, *, is_new: bool
    ) -> dict[str, str]:
        """Returns the names of a request's named values, one after the other."""
        return {
            name: self.chosen(names, f"value/{name}:", texts[name], offset, is_new=is_new)
            for name in self.values()
        }

    def chosen(self, names: Names, typed: str, text: str, offset: int, *, is_new: bool) -> str:
        """Returns the name that a text which the client chose is counted by; an empty one needs none."""
        name = typed + text
        counted = names.here(name, offset) if is_new and text else names.known(name)
        return text if counted == name or not text else "overflow:"

    def named(self, at: Partition) -> list[Request | None]:
        return self.walk(at).counted

    def state(self, at: Partition) -> CounterState:
        """Returns what counting the next record depends on, with the names since the last drain."""
        part, (_, names, _, ids) = self.parts[at], self.walk(at)
        before = part.before.reject_run
        start = before if before in (-self.mapped[at.source].fingerprint, max(0, before)) else 0
        length = [start, *(length for length, _ in self.runs(at))][-1]
        hours = (names.before, names.hour)
        known = {(how, hour, caller) for hour in hours for caller, how in names.how[hour].items()}
        new = known - {name for name in part.known if name[1] not in names.begun}
        part.known = known
        added = []
        for hour in hours:
            for how in ("old", "new"):
                chosen = sorted(name for by, at, name in new if (by, at) == (how, hour))
                added.append(NamedCallers(hour, how, chosen))
            draws = names.draws[hour][names.drawn_before_drain[hour] :]
            added.append(NamedCallers(hour, "drawn", last_times(draws)))
        kept = None if not names.begun else tuple(hour for hour in hours if hour not in names.begun)
        return CounterState(
            reject_run=length, hour=names.hour, hour_before=names.before, behind_run=names.behind,
            named=[callers for callers in added if callers.callers], kept=kept,
            ids=None if ids is None else ids.state(part.blobs),
        )  # fmt: skip

    def rows(self, requests: Sequence[Request], width_s: int = 60) -> list[CountRow]:
        found: dict[tuple[Any, ...], dict[bool, list[int]]] = {}
        for request in requests:
            for grouping in self.groupings:
                names = (grouping.split("+") + [""])[:2]
                key, resource = (request.texts.get(name, "") for name in names)
                for meter in self.meters.values():
                    if not request.matches.get(meter.name) or (
                        meter.field and meter.field not in request.numbers
                    ):
                        continue
                    bucket_s = request.ms // 1000 // width_s * width_s
                    series = (grouping, key, resource, meter.name, width_s, bucket_s)
                    amount = request.weight if meter.field is None else request.numbers[meter.field]
                    if meter.name == "unrecorded requests":
                        amount = request.weight - 1
                    if meter.name == "duplicate records":
                        amount = 1
                    found.setdefault(series, {False: [], True: []})[request.denied].append(amount)
        rows = []
        for series, amounts in sorted(found.items()):
            joined = sum if self.meters[series[3]].join == "sum" else lambda values: max(values, default=0)
            value, denied = joined(amounts[False]), joined(amounts[True])
            if value or denied:
                rows.append(CountRow(*series, value, denied))
        return rows
