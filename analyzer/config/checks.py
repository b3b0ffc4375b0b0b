"""What tables must agree on with each other: every policy counts something, every name leads somewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.fields import FieldsTable, PlainEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import PolicyTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import NAME, either, meant, quoted
from analyzer.core.counting.meters import DAY_S, MINUTE_S, REQUESTS
from analyzer.core.judging.delay_bound import DELAY_SHARE_MAX, own_delay
from analyzer.core.judging.windows import HOUR_S
from analyzer.core.records.combined_format import PARTS

# The shortest that a window may be: an hour that a change of clocks cuts is one all the same.
WINDOWS_S = {"minute": MINUTE_S, "hour": HOUR_S, "day": DAY_S, "week": 7 * DAY_S, "month": 28 * DAY_S}


class ParsedTables(NamedTuple):
    """What could be read of a configuration, under the indexes that its tables have in the file."""

    kafka: KafkaTable
    analyzer: AnalyzerTable
    sources: Mapping[int, SourceTable]
    meters: Mapping[int, MeterTable]
    policies: Mapping[int, PolicyTable]

    @property
    def added_up(self) -> frozenset[str]:
        """Fields that some meter takes the value of: numbers, whatever else is said of them."""
        return frozenset(meter.field for meter in self.meters.values() if meter.field is not None)


def complaints(parts: ParsedTables) -> Iterator[KeyFault]:
    """Everything that no single table can know to be wrong."""
    yield from _kafka(parts.kafka)
    yield from _analyzer(parts.analyzer)
    for at, source in parts.sources.items():
        yield from _source(("sources", at), source, parts.added_up)
    for at, meter in parts.meters.items():
        yield from _meter(("meters", at), meter, parts.sources)
    for at, policy in parts.policies.items():
        yield from _policy(("policies", at), policy, parts)
    yield from _twice("sources", "name", {at: each.name for at, each in parts.sources.items()})
    yield from _twice("sources", "topic", {at: each.topic for at, each in parts.sources.items()})
    yield from _twice("sources", "file", {at: each.file for at, each in parts.sources.items()})
    yield from _twice("meters", "name", {at: each.name for at, each in parts.meters.items()})
    yield from _twice("policies", "name", {at: each.name for at, each in parts.policies.items()})


def _twice(table: str, key: str, values: Mapping[int, str | None]) -> Iterator[KeyFault]:
    often = Counter(value for value in values.values() if value)
    for at, value in values.items():
        if value and often[value] > 1:
            often[value] = -1  # the first keeps it
        elif value and often[value] < 0:
            yield KeyFault(
                (table, at, key), f"{quoted(value)} is taken", f"give each of [[{table}]] a {key} of its own"
            )


def _kafka(kafka: KafkaTable) -> Iterator[KeyFault]:
    known = kafka.sasl_plain_username, kafka.sasl_plain_password_file or kafka.sasl_plain_password
    if not kafka.security_protocol.startswith("SASL"):
        if any(known):
            yield KeyFault(
                ("kafka", "security_protocol"),
                f"{quoted(kafka.security_protocol)} sends no user and no password",
                'write security_protocol = "SASL_SSL"',
            )
        return
    if kafka.sasl_mechanism is None:
        yield KeyFault(
            ("kafka", "sasl_mechanism"), "is missing", 'write sasl_mechanism = "SCRAM-SHA-512", or "PLAIN"'
        )
    elif kafka.sasl_mechanism != "GSSAPI" and not all(known):
        yield KeyFault(
            ("kafka",),
            "a user or password is missing",
            "add sasl_plain_username and sasl_plain_password_file",
        )
    if kafka.security_protocol == "SASL_PLAINTEXT" and not (kafka.stays_here or kafka.sasl_plain_in_clear):
        yield KeyFault(
            ("kafka", "security_protocol"),
            "anybody on the way could read the password",
            'write "SASL_SSL"; or, when the way is safe by other means, sasl_plain_in_clear = true',
        )


def _analyzer(analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    for one, other in (("http_cert", "http_key"), ("http_key", "http_cert")):
        if getattr(analyzer, one) and not getattr(analyzer, other):
            yield KeyFault(
                ("analyzer", one), f"is of no use without {other}", f"name both PEM files: add {other}"
            )
    if analyzer.keep_quarters < analyzer.keep_minutes:
        yield KeyFault(
            ("analyzer", "keep_quarters"),
            "is shorter than keep_minutes",
            "quarters are made of minutes: keep them longer",
        )


def _source(at: KeyPath, source: SourceTable, added_up: frozenset[str]) -> Iterator[KeyFault]:
    match source.topic, source.file:
        case None, None:
            yield KeyFault(
                (*at, "topic"), "neither a topic nor a file is given", 'write topic = "..." or file = "..."'
            )
        case str(), str():
            yield KeyFault(
                (*at, "file"), "a source reads a topic or a file, not both", "make it two [[sources]]"
            )
        case None, str() if source.format == "json" and source.fields.time is None:
            yield KeyFault(
                (*at, "fields"),
                "lines of a file have no time but their own",
                'map it: time = { path = "ts", unit = "s" }',
            )
    if source.format == "combined":
        yield from _combined(at, source)
    yield from _callers(at, source, added_up)
    yield from _conditions((*at, "deny_if"), source.deny_if, {0: source})
    if "caller+resource" in source.groupings and source.fields.resource is None:
        yield KeyFault((*at, "groupings"), '"caller+resource" needs the field resource', _map_it("resource"))
    for name, entry in source.fields.others.items():
        yield from _field((*at, "fields", name), name, entry, added_up)
    yield from _shared((*at, "fields"), source.fields)


def _combined(at: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    for name, entry in source.fields.entries.items():
        if ".".join(entry.path) not in PARTS:
            yield KeyFault(
                (*at, "fields", name),
                f"a combined line has no part {quoted('.'.join(entry.path))}",
                f"it has {either(PARTS)}",
            )


def _callers(at: KeyPath, source: SourceTable, added_up: frozenset[str]) -> Iterator[KeyFault]:
    if not source.callers:
        yield KeyFault(
            (*at, "caller"), "nothing says who called", 'map one of them: api_key = "http.api_key"'
        )
    for name in source.callers:
        entry = source.fields.others.get(name)
        number = entry is not None and (entry.says_number or name in added_up)
        if name == "resource" or number:
            yield KeyFault(
                (*at, "caller"), f"{quoted(name)} does not say who called", "name text fields, or address"
            )
        elif name not in source.fields.names:
            yield KeyFault(
                (*at, "caller"), f"no field is called {quoted(name)}", _map_it(name, source.fields.names)
            )


def _field(at: KeyPath, name: str, entry: PlainEntry, added_up: frozenset[str]) -> Iterator[KeyFault]:
    if not NAME.fullmatch(name):
        yield KeyFault(
            at, f"{quoted(name)} is no name for a field", "use letters, digits, points, hyphens, underscores"
        )
    if entry.unit is not None and entry.kind not in (None, "duration"):
        yield KeyFault(
            (*at, "unit"), f"{quoted(entry.kind)} has no unit", 'leave it out, or write kind = "duration"'
        )
    if entry.kind == "text" and name in added_up:
        yield KeyFault(
            (*at, "kind"),
            "a meter takes its value, so it is no text",
            'write "whole", "decimal" or "duration"',
        )
    if not entry.says_number and name not in added_up:
        for key in ("default", "required"):
            if key in entry.model_fields_set:
                yield KeyFault((*at, key), "is for numbers only", 'leave it out, or add kind = "whole"')
    if entry.required and entry.default is not None:
        yield KeyFault(
            (*at, "default"), "a number that is required has no default", "leave one of the two out"
        )


def _shared(at: KeyPath, fields: FieldsTable) -> Iterator[KeyFault]:
    """A value is read either exactly, as digits, or as what it is in the record: not both."""
    exact = {entry.path: name for name, entry in fields.others.items() if entry.is_exact}
    for name, entry in fields.entries.items():
        other = exact.get(entry.path, name)
        if other != name and not (isinstance(entry, PlainEntry) and entry.is_exact):
            yield KeyFault(
                (*at, name),
                f"{quoted('.'.join(entry.path))} is read as an exact number by {quoted(other)}",
                "log it under two keys, or make both numbers",
            )


def _meter(at: KeyPath, meter: MeterTable, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    if meter.name == REQUESTS.name:
        yield KeyFault((*at, "name"), f"{quoted(meter.name)} is built in", "give this meter another name")
    said = [
        key for key, value in (("count", meter.count), ("sum", meter.sum_of), ("max", meter.max_of)) if value
    ]
    if len(said) != 1:
        yield KeyFault(
            (*at, said[1] if said else "count"),
            "a meter counts, sums or takes the largest",
            "write one of: count = true, sum = FIELD, max = FIELD",
        )
    yield from _conditions((*at, "where"), meter.where, sources)
    if meter.field is not None:
        yield from _number((*at, "sum" if meter.sum_of else "max"), meter.field, sources)


def _number(at: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    if name in ("time", "address", "resource"):
        yield KeyFault(at, f"{quoted(name)} is no number", "name a field that holds one")
        return
    yield from _mapped(at, name, sources)
    kinds = {
        source.fields.others[name].number_kind for source in sources.values() if name in source.fields.others
    }
    if len(kinds) > 1:
        yield KeyFault(
            at,
            f"{quoted(name)} is {either(sorted(kinds))}, by source: these cannot be added up",
            "write the same kind everywhere",
        )


def _conditions(at: KeyPath, wanted: Iterable[str], sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    for name in wanted:
        yield from _mapped((*at, name), name, sources)
        entries = [source.fields.others.get(name) for source in sources.values()]
        if any(entry is not None and entry.is_exact for entry in entries):
            what = f"{quoted(name)} is a decimal or a duration: conditions compare text and whole numbers"
            yield KeyFault((*at, name), what, "name another field")


def _mapped(at: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    without = [source for source in sources.values() if name not in source.fields.names]
    if len(without) < len(sources):  # a combined line has what it has: what it lacks, others may have
        without = [source for source in without if source.format != "combined"]
    if without:
        known = {name for source in sources.values() for name in source.fields.names}
        what = f"no field is called {quoted(name)} in {_listed(without)}"
        yield KeyFault(at, what, _map_it(name, known))


def _policy(at: KeyPath, policy: PolicyTable, parts: ParsedTables) -> Iterator[KeyFault]:
    meters = {meter.name: meter for meter in parts.meters.values()}
    if policy.meter in meters and meters[policy.meter].max_of is not None:
        yield KeyFault(
            (*at, "meter"),
            f"{quoted(policy.meter)} is a largest value, which no quota adds up",
            "name a count or a sum",
        )
    elif policy.meter != REQUESTS.name and policy.meter not in meters:
        slip = meant(policy.meter, [REQUESTS.name, *meters])
        cure = (
            f"did you mean {quoted(slip)}?" if slip else f"add [[meters]] with name = {quoted(policy.meter)}"
        )
        yield KeyFault((*at, "meter"), f"no meter is called {quoted(policy.meter)}", cure)
    if "status" in policy.model_fields_set and (policy.action.status or policy.action.does == "tag"):
        refuses = policy.action.does != "tag"
        what = "is said twice, here and in the action" if refuses else '"tag" refuses nobody'
        yield KeyFault((*at, "status"), what, "leave it out")
    without = [source for source in parts.sources.values() if source.fields.resource is None]
    if policy.per == "caller+resource" and without:
        yield KeyFault(
            (*at, "per"),
            f'"caller+resource" needs the field resource in {_listed(without)}',
            _map_it("resource"),
        )

    yield from _delay(at, policy, parts.analyzer)


def _delay(at: KeyPath, policy: PolicyTable, analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    """A gate that closes when much of the window is over is no limit."""
    bound_s = WINDOWS_S[policy.window.per] * DELAY_SHARE_MAX
    delay_s = own_delay(analyzer.flush_every).total_s
    if delay_s > bound_s:
        flush_s = bound_s - own_delay(0.0).total_s
        yield KeyFault(
            (*at, "window"),
            f"a {policy.window.per} is too short for gates that close {delay_s:.1f} s after the request",
            f'write flush_every = "{int(flush_s)}s" or less in [analyzer], or take a longer window',
        )


def _listed(sources: Iterable[SourceTable]) -> str:
    return "[[sources]] " + ", ".join(quoted(source.name) for source in sources)


def _map_it(name: str, known: Iterable[str] = ()) -> str:
    slip = meant(name, known)
    if slip is not None and slip != name:
        return f"did you mean {quoted(slip)}?"
    return f'add it to [sources.fields]: {name} = "..." (where records have it; absent ones are empty or 0)'
