"""Checks between tables: names refer to something, values fit together, policies can be judged in time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.share_checks import SHARE_KEYS, rate_faults, share_faults, surge_share_faults
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.fields import FieldsTable, PlainEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.limit_overrides import OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import SURGE_S_MAX, LimitReadings, PolicyTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import NAME, alternatives, closest, format_duration, quote, suggestion
from analyzer.core.counting.groupings import grouping_of
from analyzer.core.counting.meter_units import EXAMPLES, NOUNS, Unit, amount_text
from analyzer.core.counting.meters import DISTINCT, JOINS, REQUESTS
from analyzer.core.judging.delay_bound import DELAY_SHARE_MAX, DELAY_SHARE_MAX_OF_SURGE, own_delay
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.windows import HOUR_S, Calendar
from analyzer.core.records.formats import FORMATS
from analyzer.core.records.reader import CALLER

YEAR_S = Calendar("year").longest_s
STATUS_CLASS = re.compile(r"[1-5][xX]{2}")


class ParsedTables(NamedTuple):
    """The valid tables of a configuration; lists keep the indexes that their tables have in the file."""

    kafka: KafkaTable
    analyzer: AnalyzerTable
    sources: Mapping[int, SourceTable]
    meters: Mapping[int, MeterTable]
    policies: Mapping[int, PolicyTable]
    overrides: Mapping[int, OverrideTable]

    @property
    def metered(self) -> frozenset[str]:
        """Fields whose sum or maximum some meter takes: numbers, even where they are not declared so."""
        return frozenset(
            meter.number_field for meter in self.meters.values() if meter.number_field is not None
        )


def cross_table_faults(tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults that a single table cannot see."""
    yield from _kafka(tables.kafka)
    yield from _analyzer(tables.analyzer)
    for index, source in tables.sources.items():
        yield from _source(("sources", index), source, tables.metered | source.weights)
        yield from _weight(("sources", index), source, tables.metered)
        yield from _facts(("sources", index), source, tables.metered | source.weights)
        yield from _digests(("sources", index, "fields"), source, tables)
    for index, meter in tables.meters.items():
        yield from _meter(("meters", index), meter, tables)
    for index, policy in tables.policies.items():
        yield from _policy(("policies", index), policy, tables)
    for index, override in tables.overrides.items():
        yield from _override(("overrides", index), override, tables)
    yield from _duplicate_sources(tables.sources)
    yield from _duplicates("meters", "name", {index: meter.name for index, meter in tables.meters.items()})
    yield from _duplicates(
        "policies", "name", {index: policy.name for index, policy in tables.policies.items()}
    )


def _duplicate_sources(sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """Faults of topics and files that are read twice, and of names that come from neither."""
    repeated: set[object] = set()
    for key in ("topic", "file", "name"):
        values = {index: getattr(source, key) for index, source in sources.items() if index not in repeated}
        for fault in _duplicates("sources", key, values):
            repeated.add(fault.at[1])
            yield fault


def _duplicates(section: str, key: str, values: Mapping[int, str | None]) -> Iterator[KeyFault]:
    """A fault for each repeated value but its first."""
    seen: set[str] = set()
    for index, value in values.items():
        if value in seen:
            what = f"{quote(value)} is already used by another [[{section}]] table"
            yield KeyFault((section, index, key), what, f"write a different {key}")
        elif value:
            seen.add(value)


def _kafka(kafka: KafkaTable) -> Iterator[KeyFault]:
    login = kafka.sasl_plain_username, kafka.sasl_plain_password_file or kafka.sasl_plain_password
    if not kafka.security_protocol.startswith("SASL"):
        if any(login):
            yield KeyFault(
                ("kafka", "security_protocol"),
                f"{quote(kafka.security_protocol)} does not log in, but a user or password is set",
                'write security_protocol = "SASL_SSL", or remove the user and password',
            )
        return
    if kafka.sasl_mechanism is None:
        yield KeyFault(
            ("kafka", "sasl_mechanism"), "is missing", 'write sasl_mechanism = "SCRAM-SHA-512", or "PLAIN"'
        )
    if kafka.sasl_mechanism != "GSSAPI":
        examples = ('sasl_plain_username = "..."', 'sasl_plain_password_file = "PATH"')
        for value, example in zip(login, examples, strict=True):
            if not value:
                key = example.partition(" ")[0]
                yield KeyFault(("kafka", key), "is missing", f"write {example}")
    if kafka.security_protocol == "SASL_PLAINTEXT" and not (kafka.is_local or kafka.sasl_plain_in_clear):
        yield KeyFault(
            ("kafka", "security_protocol"),
            "the password would cross the network unencrypted",
            'write "SASL_SSL"; or, if the network is protected otherwise, sasl_plain_in_clear = true',
        )


def _analyzer(analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    for key, other in (("http_cert", "http_key"), ("http_key", "http_cert")):
        if getattr(analyzer, key) and not getattr(analyzer, other):
            yield KeyFault(("analyzer", key), f"has no effect without {other}", f"add {other}, a PEM file")
    if analyzer.keep_quarters < analyzer.keep_minutes:
        yield KeyFault(
            ("analyzer", "keep_quarters"),
            "is shorter than keep_minutes",
            "make it at least as long: quarters of an hour are made of minutes",
        )
    if analyzer.keep_days < analyzer.keep_quarters:
        yield KeyFault(
            ("analyzer", "keep_days"),
            "is shorter than keep_quarters",
            "make it at least as long: days are made of quarters of an hour",
        )


def _source(at: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    match source.topic, source.file:
        case None, None:
            yield KeyFault(
                (*at, "topic"), "a topic or a file is missing", 'write topic = "..." or file = "..."'
            )
        case str(), str():
            yield KeyFault(
                (*at, "file"), "a source reads a topic or a file, not both", "split it into two [[sources]]"
            )
        case None, str() if source.fields.time is None:
            yield KeyFault(
                (*at, "fields"),
                "the time is not mapped: a line of a file has no other time",
                'add time = { path = "ts", unit = "s" } to it',
            )
    yield from _parts_of_format(at, source)
    yield from _callers(at, source, metered)
    yield from _conditions((*at, "deny_if"), source.deny_if, {0: source})
    yield from _count_if((*at, "count_if"), source)
    yield from _groupings(at, source)
    for name, entry in source.fields.plain.items():
        yield from _field((*at, "fields", name), name, entry, metered)
    yield from _shared_paths((*at, "fields"), source.fields)


def _parts_of_format(at: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    """Faults of fields at paths that the format does not have."""
    parts = FORMATS[source.format].parts
    for name, entry in source.fields.entries.items():
        if parts and ".".join(entry.path) not in parts:
            yield KeyFault(
                (*at, "fields", name),
                f"a {source.format} line has no part {quote('.'.join(entry.path))}",
                f"use {alternatives(parts)}",
            )


def _count_if(at: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    """Faults of conditions that cannot hold, and of those that have nothing to decide."""
    yield from _conditions(at, {name: wanted.values for name, wanted in source.count_if.items()}, {0: source})
    if source.count_if and set(source.callers) == {"address"}:
        yield KeyFault(at, "has no effect: each caller is an address", "remove it")


def _groupings(at: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    """Faults of groupings by fields that the source does not map."""
    for name in source.groupings:
        for dimension in grouping_of(name).dimensions:
            if dimension != CALLER and dimension.field not in source.fields.names:
                yield KeyFault(
                    (*at, "groupings"),
                    f"{quote(name)} needs the field {dimension.field}",
                    _map_it(dimension.field),
                )


def _callers(at: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    if not source.callers:
        yield KeyFault(
            (*at, "caller"), "no field identifies the caller", 'map at least one: api_key = "http.api_key"'
        )
    for name in source.callers:
        entry = source.fields.plain.get(name)
        is_number = entry is not None and (entry.is_declared_number or name in metered)
        if name == "resource" or is_number:
            yield KeyFault(
                (*at, "caller"), f"{quote(name)} cannot identify a caller", "name text fields, or address"
            )
        elif name not in source.fields.names:
            yield KeyFault(
                (*at, "caller"), f"no field is named {quote(name)}", _map_it(name, source.fields.names)
            )


def _field(at: KeyPath, name: str, entry: PlainEntry, metered: frozenset[str]) -> Iterator[KeyFault]:
    if not NAME.fullmatch(name):
        yield KeyFault(
            at,
            f"{quote(name)} is not a valid name for a field",
            "use letters, digits, points, hyphens, underscores",
        )
    if entry.unit is not None and entry.kind not in (None, "duration"):
        yield KeyFault(
            (*at, "unit"),
            f"{quote(entry.kind)} does not take a unit",
            'remove it, or write kind = "duration"',
        )
    if entry.kind == "text" and name in metered:
        yield KeyFault(
            (*at, "kind"),
            'must not be "text": its value is taken as a number',
            'write "whole", "decimal", "duration" or "bytes"',
        )
    if not entry.is_declared_number and name not in metered:
        for key in ("default", "required"):
            if key in entry.model_fields_set:
                yield KeyFault((*at, key), "applies to numbers only", 'remove it, or add kind = "whole"')
    if entry.required and entry.default is not None:
        yield KeyFault((*at, "default"), "a required number has no default", "remove default or required")


def _digests(at: KeyPath, source: SourceTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of fields that are counted by their digest."""
    metered = tables.metered | source.weights
    for name, entry in source.fields.plain.items():
        if entry.digest is None:
            continue
        if entry.is_declared_number or name in metered:
            yield KeyFault((*at, name, "digest"), "applies to text only", "remove it")
        elif tables.analyzer.digest is None:
            yield KeyFault(
                (*at, name, "digest"),
                "needs a secret",
                'write digest_secret_file = "PATH" in [analyzer], or set GATELOCK_ANALYZER__DIGEST_SECRET',
            )


def _weight(at: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    """Faults of the field with the number of requests of a record; `metered` has the fields of meters."""
    if source.weight is None:
        return
    entry, name = source.fields.plain.get(source.weight), quote(source.weight)
    if source.weight not in (*source.fields.names, "time"):
        what = f"no field is named {name}"
        yield KeyFault((*at, "weight"), what, _map_it(source.weight, source.fields.names))
    elif entry is None or (entry.kind != "text" and entry.number_kind != "whole"):
        yield KeyFault((*at, "weight"), f"{name} is not a whole number", "name a field that holds one")
    elif "default" in entry.model_fields_set and source.weight not in metered:
        yield KeyFault(
            (*at, "fields", source.weight, "default"),
            "has no effect: a record without a weight stands for one request",
            "remove it",
        )


def _facts(at: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    """Faults of fields that state facts about callers, without being text."""
    for wanted in source.facts or ():
        if wanted not in source.fields.plain:
            what = f"no field is named {quote(wanted)}"
            yield KeyFault((*at, "facts"), what, _map_it(wanted, source.fields.names))
    for name in source.stated:
        if source.fields.plain[name].is_declared_number or name in metered:
            yield KeyFault(
                (*at, "fields", name),
                "is a number, and states a fact about callers",
                "give the number another name, or write facts = [] in the source",
            )


def _shared_paths(at: KeyPath, fields: FieldsTable) -> Iterator[KeyFault]:
    """Faults of values that two fields share: the counter reads a value either as exact digits or not."""
    exact = {entry.path: name for name, entry in fields.plain.items() if entry.is_exact}
    for name, entry in fields.entries.items():
        other = exact.get(entry.path, name)
        if other != name and not (isinstance(entry, PlainEntry) and entry.is_exact):
            yield KeyFault(
                (*at, name),
                f"{quote('.'.join(entry.path))} is read as an exact number by {quote(other)}",
                "log it under two keys, or declare both fields as numbers",
            )


def _meter(at: KeyPath, meter: MeterTable, tables: ParsedTables) -> Iterator[KeyFault]:
    sources = tables.sources
    if meter.name == REQUESTS.name:
        yield KeyFault((*at, "name"), f"{quote(meter.name)} is built in", "write another name")
    if len(meter.given) != 1:
        yield KeyFault(
            (*at, meter.given[1] if meter.given else "count"),
            "a meter takes exactly one of count, sum, max and distinct",
            "write count = true, sum = FIELD, max = FIELD or distinct = FIELD",
        )
    yield from _conditions((*at, "where"), meter.where, sources)
    if meter.number_field is not None:
        yield from _number((*at, meter.join), meter.number_field, sources)
    elif meter.distinct is not None:
        yield from _text((*at, "distinct"), meter.distinct, tables)


def _number(at: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    if name in ("time", "address", "resource"):
        yield KeyFault(at, f"{quote(name)} is not a number", "name a field that holds one")
        return
    yield from _mapped(at, name, sources)
    kinds = {
        source.fields.plain[name].number_kind for source in sources.values() if name in source.fields.plain
    }
    if len(kinds) > 1 and kinds != {"whole", "bytes"}:  # the counter does not tell these two apart
        yield KeyFault(
            at,
            f"{quote(name)} is of different kinds in different sources: {', '.join(sorted(kinds))}",
            "write the same kind in every source",
        )


def _text(at: KeyPath, name: str, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of a field whose distinct values are counted."""
    entries = [source.fields.plain.get(name) for source in tables.sources.values()]
    is_number = any(entry is not None and entry.is_declared_number for entry in entries)
    is_number |= any(name in source.weights for source in tables.sources.values())
    if name == "time" or is_number or name in tables.metered:
        yield KeyFault(at, f"{quote(name)} is not text", "name a text field, address or resource")
    else:
        yield from _mapped(at, name, tables.sources)


def _conditions(
    at: KeyPath, names: Mapping[str, tuple[str, ...]], sources: Mapping[int, SourceTable]
) -> Iterator[KeyFault]:
    for name in names:
        yield from _mapped((*at, name), name, sources)
        entries = [source.fields.plain.get(name) for source in sources.values()]
        if any(entry is not None and entry.is_exact for entry in entries):
            what = f"{quote(name)} is a decimal or a duration; conditions compare text and whole numbers"
            yield KeyFault((*at, name), what, "name another field")
        for value in names[name]:
            if name.startswith("status") and STATUS_CLASS.fullmatch(value):
                cure = f'write a range of numbers: "{value[0]}00-{value[0]}99"'
                yield KeyFault((*at, name), f"{quote(value)} is compared as text, which no status is", cure)


def _mapped(at: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """A fault unless every source has the field.

    A source whose format has fixed parts may lack a field that another source has.
    """
    lacking = [source for source in sources.values() if name not in source.fields.names]
    if len(lacking) < len(sources):
        lacking = [source for source in lacking if not FORMATS[source.format].parts]
    if lacking:
        known = {field for source in sources.values() for field in source.fields.names}
        what = f"no field is named {quote(name)} in {_listed(lacking)}"
        yield KeyFault(at, what, _map_it(name, known))


def _policy(at: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    if policy.kind != "share" and not policy.limit.stated:
        yield KeyFault((*at, "limit"), "is missing", "write limit = 100_000")
    yield from _meter_of_policy(at, policy, tables)
    if policy.window.per == "year" and tables.analyzer.keep_quarters < YEAR_S:
        what = "is shorter than a year, of which a policy has its window"
        yield KeyFault(("analyzer", "keep_quarters"), what, 'write keep_quarters = "400d"')
    if policy.kind == "surge":
        meters = {meter.name: meter for meter in tables.meters.values()}
        fields = [source.fields for source in tables.sources.values()]
        yield from surge_share_faults(at, policy, meters, fields)
    denies = policy.action.does not in ("tag", "notify") and not policy.soft
    if "status" in policy.model_fields_set and (policy.action.status or not denies):
        does = "soft" if policy.soft else quote(policy.action.does)
        what = f"has no effect: {does} does not deny requests"
        if denies:
            what = "is set here and in the action"
        yield KeyFault((*at, "status"), what, "remove it")
    for dimension in grouping_of(policy.per).dimensions:
        lacking = [source for source in tables.sources.values() if dimension.field not in source.fields.names]
        if dimension != CALLER and lacking:
            yield KeyFault(
                (*at, "per"),
                f"{quote(policy.per)} needs the field {dimension.field} in {_listed(lacking)}",
                _map_it(dimension.field),
            )
    yield from _kind(at, policy)
    yield from _notices(at, policy)
    shares = list(_share(at, policy, tables.sources)) if policy.kind == "share" else []
    yield from shares
    if not shares:
        yield from _delay(at, policy, tables.analyzer)


def _meter_of_policy(at: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of a meter that policies cannot judge, and of a limit without the unit of its meter."""
    meters = {meter.name: meter for meter in tables.meters.values()}
    if policy.meter in meters and meters[policy.meter].join == DISTINCT:
        yield from _distinct_of_policy(at, policy, meters[policy.meter])
    elif (
        policy.meter in meters
        and not JOINS[meters[policy.meter].join].adds_up
        and policy.window.rolling is not None
    ):
        join = JOINS[meters[policy.meter].join]
        yield KeyFault(
            (*at, "meter"),
            f"{quote(policy.meter)} keeps the {join.phrase} values, which a rolling window cannot add up",
            'write a calendar period, window = { per = "day" }, or name a meter that counts or sums',
        )
    elif policy.meter != REQUESTS.name and policy.meter not in meters:
        cure = suggestion(
            policy.meter, [REQUESTS.name, *meters], f"add [[meters]] with name = {quote(policy.meter)}"
        )
        yield KeyFault((*at, "meter"), f"no meter is named {quote(policy.meter)}", cure)
    elif policy.meter == REQUESTS.name:
        yield from _unit_of(at, policy, None)
    else:
        fields = [source.fields for source in tables.sources.values()]
        meter = meters[policy.meter]
        if meter.field is None or any(meter.field in mapped.plain for mapped in fields):
            yield from _unit_of(at, policy, meter.unit(fields))


def _distinct_of_policy(at: KeyPath, policy: PolicyTable, meter: MeterTable) -> Iterator[KeyFault]:
    """Faults of a policy on a meter of distinct values, which has no unit."""
    if policy.kind == "share":
        what = f"{quote(policy.meter)} counts distinct values, which cannot be divided"
        yield KeyFault((*at, "meter"), what, "name a meter that counts or sums")
        return
    if policy.window.is_by_caller:
        what = f"{quote(policy.meter)} counts distinct values, which cannot be moved to another window"
        yield KeyFault((*at, "window"), what, "name one zone, and remove anchor")
    if policy.window.rolling is not None and policy.window.rolling > HOUR_S:
        what = (
            f"{quote(policy.meter)} counts distinct values, which are kept for rolling windows of at most 1h"
        )
        cure = 'write window = { rolling = "1h" } or less, or a calendar period: window = { per = "day" }'
        yield KeyFault((*at, "window"), what, cure)
    if policy.kind == "surge" and grouping_of(policy.per).scope == "range" and meter.distinct != "address":
        # Of other values it is not known from how many addresses of the network they come.
        what = f"{quote(policy.per)} would be locked for what one of its addresses does"
        yield KeyFault((*at, "per"), what, 'write per = "address", or limit distinct = "address"')
    yield from _unit_of(at, policy, None)


def _override(at: KeyPath, override: OverrideTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """A fault if there is no such policy, or the limit is not written in the unit of its meter."""
    policies = {policy.name: policy for policy in tables.policies.values()}
    policy = policies.get(override.policy)
    if policy is None:
        what = f"{quote(override.policy)} is not the name of a policy"
        yield KeyFault(
            (*at, "policy"), what, suggestion(override.policy, policies, "name a policy of this file")
        )
        return
    meter = next((one for one in tables.meters.values() if one.name == policy.meter), None)
    if policy.kind == "share":
        what = f"{quote(policy.name)} is a share, which has no limits of single callers"
        yield KeyFault((*at, "policy"), what, "name another policy, or write [[exempt]]")
        return
    fields = [source.fields for source in tables.sources.values()]
    yield from _unit(at, policy.meter, [override.limit], None if meter is None else meter.unit(fields))


def _unit(
    at: KeyPath, meter: str, readings: Iterable[LimitReadings], unit: Unit | None
) -> Iterator[KeyFault]:
    """A fault if a limit is not written in the unit of its meter."""
    written = next((one for one in readings if unit not in one), None)
    if written is None:
        return
    if unit is None:
        what = f"{quote(meter)} has no unit"
        yield KeyFault((*at, "limit"), what, "write digits: 100_000; or give the meter's field a unit")
        return
    what = f"{quote(meter)} is measured in {NOUNS[unit]}"
    cure = f"write the limit with its unit: limit = {quote(EXAMPLES[unit])}"
    if None in written and unit != "bytes":
        # Earlier versions read such a number as what is stored.
        stored = amount_text(written[None], unit).replace(",", "")
        what += f", and {written[None]} has none"
        cure += f"; earlier versions took it for {quote(stored)}"
    yield KeyFault((*at, "limit"), what, cure)


def _unit_of(at: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    if policy.kind == "share":
        yield from rate_faults(at, policy, unit)
    elif policy.limit.stated:
        readings = [policy.limit.stated, *policy.limit.by_plan.values()]
        yield from _unit(at, policy.meter, readings, unit)


def _share(at: KeyPath, policy: PolicyTable, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """Faults of the keys of a share."""
    yield from share_faults(at, policy)
    lacking = [source for source in sources.values() if "resource" not in source.fields.names]
    if policy.of == "resource" and lacking:
        what = f"{quote(policy.of)} needs the field resource in {_listed(lacking)}"
        yield KeyFault((*at, "of"), what, _map_it("resource"))


def _delay(at: KeyPath, policy: PolicyTable, analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    """A fault if gates close too late in the window to limit anything."""
    judged = policy.policy()
    # A surge has one lock for many windows: it must only come while the window is not over.
    share = DELAY_SHARE_MAX if policy.kind == "quota" else DELAY_SHARE_MAX_OF_SURGE
    bound_s = kind_of(judged).sum_of(judged).window.shortest_s * share
    delay_s = own_delay(analyzer.flush_every).total_s
    if delay_s > bound_s:
        flush_s = bound_s - own_delay(0.0).total_s
        shorter = f'write flush_every = "{int(flush_s)}s" or less in [analyzer], or ' if flush_s >= 1 else ""
        yield KeyFault(
            (*at, "window"),
            f"a window {policy.window.phrase} is too short: with flush_every = "
            f'"{format_duration(analyzer.flush_every)}" a caller is denied up to {delay_s:.1f} s late',
            f"{shorter}choose a longer window",
        )


def _kind(at: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of keys that the policy's kind does not have."""
    if policy.window.is_by_caller and not grouping_of(policy.per).is_of_callers:
        what = f"a window of each caller needs series of callers, and {quote(policy.per)} has others"
        yield KeyFault((*at, "window"), what, 'write per = "caller", or remove zone and anchor')
    for key in SHARE_KEYS:
        if key in policy.model_fields_set and policy.kind != "share":
            yield KeyFault((*at, key), "applies to shares", 'remove it, or write kind = "share"')
    for key in ("share", "share_of"):
        if key in policy.model_fields_set and policy.kind != "surge":
            yield KeyFault((*at, key), "applies to surges", 'remove it, or write kind = "surge"')
    if policy.kind == "surge":
        longest = format_duration(SURGE_S_MAX)
        if policy.window.rolling is None or policy.window.rolling > SURGE_S_MAX:
            yield KeyFault(
                (*at, "window"),
                f"a surge needs a rolling window of at most {longest}",
                'write window = { rolling = "60s" }',
            )
        return
    for key in ("lock_for", "forget_after"):
        if key in policy.model_fields_set:
            ends = "by its share" if policy.kind == "share" else "with its window"
            what = f"applies to surges: the lock of a {policy.kind} ends {ends}"
            yield KeyFault((*at, key), what, 'remove it, or write kind = "surge"')


def _notices(at: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of policies that set no lock, and of thresholds and graces, which quotas have."""
    notifies = policy.soft or policy.action.does == "notify"
    if policy.soft and "action" in policy.model_fields_set and policy.action.does != "notify":
        yield KeyFault((*at, "soft"), "sets no lock, so the action has no effect", "remove one of the two")
    if notifies and policy.grace is not None:
        yield KeyFault((*at, "grace"), "has no effect: the policy sets no lock", "remove it")
    if policy.kind != "quota":
        for key in ("notify", "grace"):
            if key in policy.model_fields_set:
                what = f"applies to quotas: a {policy.kind} has no thresholds"
                yield KeyFault((*at, key), what, 'remove it, or write kind = "quota"')
        return
    if policy.grace is None:
        return
    windows = policy.window.windows
    if isinstance(windows, Calendar) and policy.grace.time_s >= windows.shortest_s:
        what = f"the window {policy.window.phrase} may be over before the grace is"
        yield KeyFault((*at, "grace"), what, "write a shorter one")
    if policy.grace.amount and policy.limit.stated.keys() - {None, "bytes"}:
        what = f"{policy.grace.amount} has no unit, and the limit has one"
        yield KeyFault((*at, "grace"), what, 'write a percentage: grace = "10%"')


def _listed(sources: Iterable[SourceTable]) -> str:
    return "[[sources]] " + ", ".join(quote(source.name) for source in sources)


def _map_it(name: str, known: Iterable[str] = ()) -> str:
    match = closest(name, known)
    if match is not None and match != name:
        return f"did you mean {quote(match)}?"
    missing = "a record without this field counts under the empty name, or as 0"
    return f'add it to [sources.fields]: {name} = "PATH"; {missing}'
