"""Checks between tables: names refer to something, values fit together, policies can be judged in time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from analyzer.config.alert_checks import alert_faults
from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.grouping_checks import grouping_faults
from analyzer.config.parsed_tables import ParsedTables, listed, map_it
from analyzer.config.policy_checks import mode_faults, override_faults, policy_faults
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.billing import BillingTable
from analyzer.config.tables.fields import FieldsTable, PlainEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import NAME, ConditionValues, alternatives, suggestion
from analyzer.counting.records.forgotten_callers import FORGOTTEN
from analyzer.counting.records.formats import FORMATS
from analyzer.kernel.refused_values import quote
from analyzer.plan.mapping import TENANT_FACTS
from analyzer.plan.meters import BUILT_IN, REQUESTS

NAME_THE_FILE = 'write digest_secret_file = "PATH" in [analyzer], or set GATELOCK_ANALYZER__DIGEST_SECRET'
STATUS_CLASS = re.compile(r"[1-5][xX]{2}")


def cross_table_faults(tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults that a single table cannot see."""
    yield from _kafka(tables.kafka)
    yield from _analyzer(tables.analyzer)
    yield from _privacy(tables)
    yield from _events(tables)
    yield from _live(tables.billing)
    yield from _retention(tables.retention)
    for index, source in tables.sources.items():
        yield from _source(("sources", index), source, tables.metered | source.weights)
        yield from _weight(("sources", index), source, tables.metered)
        yield from _ids(("sources", index), source, tables.metered)
        yield from _facts(("sources", index), source, tables.metered | source.weights)
        yield from _digests(("sources", index, "fields"), source, tables)
    yield from grouping_faults(tables)
    for index, meter in tables.meters.items():
        yield from _meter(("meters", index), meter, tables)
    for index, policy in tables.policies.items():
        path = ("policies", index)
        yield from _conditions((*path, "where"), policy.where, tables.sources)
        # Those of several periods have many faults in common.
        faults = (fault for table in policy.of_periods for fault in policy_faults(path, table, tables))
        yield from dict.fromkeys(faults)
        yield from mode_faults(path, policy, tables)
    for index, override in tables.overrides.items():
        yield from override_faults(("overrides", index), override, tables)
    yield from alert_faults(tables)
    yield from _duplicates("alerts", "name", {index: alert.name for index, alert in tables.alerts.items()})
    yield from _duplicate_sources(tables.sources)
    yield from _duplicates("meters", "name", {index: meter.name for index, meter in tables.meters.items()})
    yield from _duplicates(
        "groupings", "name", {index: grouping.name for index, grouping in tables.groupings.items()}
    )
    yield from _duplicates(
        "policies", "name", {index: policy.name for index, policy in tables.policies.items()}
    )


def _events(tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of meters that a billing service gets events of."""
    names = {
        REQUESTS.name,
        *(meter.name for meter in BUILT_IN),
        *(meter.name for meter in tables.meters.values()),
    }
    for name in tables.billing.events:
        if name not in names:
            cure = suggestion(name, sorted(names), f"write one of {', '.join(sorted(names))}")
            yield KeyFault(("billing", "events", name), f"{quote(name)} is not a meter", cure)


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
    used: set[str] = set()
    for index, value in values.items():
        if value in used:
            problem = f"{quote(value)} is already used by another [[{section}]] table"
            yield KeyFault((section, index, key), problem, f"write a different {key}")
        elif value:
            used.add(value)


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
    for key, needed in (("http_cert", "http_key"), ("http_key", "http_cert")):
        if getattr(analyzer, key) and not getattr(analyzer, needed):
            yield KeyFault(("analyzer", key), f"has no effect without {needed}", f"add {needed}, a PEM file")


# Of [retention]: a key, one that it must not be shorter than, and why.
NOT_SHORTER = (
    ("quarters", "minutes", "quarters of an hour are made of minutes"),
    ("days", "quarters", "days are made of quarters of an hour"),
    ("plans", "locks", "locks in the history name the plan that has earned them"),
)


def _live(billing: BillingTable) -> Iterator[KeyFault]:
    live, path = billing.live, ("billing", "live")
    if live is None:
        return
    if live.by not in billing.groupings:
        yield KeyFault(
            (*path, "by"),
            f"days are not closed by {quote(live.by)}, so what is pushed by it could not be made exact",
            f"add {quote(live.by)} to groupings in [billing]",
        )
    if live.zone not in billing.zones and (live.zone is not None or len(billing.zones) != 1):
        names = alternatives(billing.zones) if billing.zones else "there is none"
        problem = "must be a zone that days are closed in"
        yield KeyFault((*path, "zone"), problem, f"write one of zones in [billing]: {names}")


def _retention(kept: RetentionTable) -> Iterator[KeyFault]:
    for key, bound, reason in NOT_SHORTER:
        if getattr(kept, key) < getattr(kept, bound):
            yield KeyFault(
                ("retention", key), f"is shorter than {bound}", f"make it at least as long: {reason}"
            )


def _privacy(tables: ParsedTables) -> Iterator[KeyFault]:
    if tables.privacy.pseudonyms and tables.analyzer.digest is None:
        yield KeyFault(("privacy", "pseudonyms"), "needs a secret", NAME_THE_FILE)


def _source(path: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    match source.topic, source.file:
        case None, None:
            yield KeyFault(
                (*path, "topic"), "a topic or a file is missing", 'write topic = "..." or file = "..."'
            )
        case str(), str():
            yield KeyFault(
                (*path, "file"), "a source reads a topic or a file, not both", "split it into two [[sources]]"
            )
        case None, str() if source.fields.time is None:
            yield KeyFault(
                (*path, "fields"),
                "the time is not mapped: a line of a file has no other time",
                'add time = { path = "ts", unit = "s" } to it',
            )
    yield from _parts_of_format(path, source)
    yield from _callers(path, source, metered)
    yield from _conditions((*path, "deny_if"), source.deny_if, {0: source})
    yield from _count_if((*path, "count_if"), source)
    for name, entry in source.fields.plain.items():
        yield from _field((*path, "fields", name), name, entry, metered)
    yield from _shared_paths((*path, "fields"), source.fields)


def _parts_of_format(path: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    """Faults of fields at paths that the format does not have."""
    parts = FORMATS[source.format].parts
    for name, entry in source.fields.entries.items():
        if parts and ".".join(entry.path) not in parts:
            yield KeyFault(
                (*path, "fields", name),
                f"a {source.format} line has no part {quote('.'.join(entry.path))}",
                f"use {alternatives(parts)}",
            )


def _count_if(path: KeyPath, source: SourceTable) -> Iterator[KeyFault]:
    """Faults of conditions that cannot hold, and of those that have nothing to decide."""
    yield from _conditions(path, source.count_if, {0: source})
    if source.count_if and set(source.callers) == {"address"}:
        yield KeyFault(path, "has no effect: each caller is an address", "remove it")


def _callers(path: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    if not source.callers:
        yield KeyFault(
            (*path, "caller"), "no field identifies the caller", 'map at least one: api_key = "http.api_key"'
        )
    for name in source.callers:
        entry = source.fields.plain.get(name)
        is_number = entry is not None and (entry.is_declared_number or name in metered)
        if name == "resource" or is_number:
            yield KeyFault(
                (*path, "caller"), f"{quote(name)} cannot identify a caller", "name text fields, or address"
            )
        elif name == FORGOTTEN:
            yield KeyFault(
                (*path, "caller"),
                f"{quote(name)} is the kind of names of forgotten callers",
                "give the field another name",
            )
        elif name == "tenant":
            yield KeyFault(
                (*path, "caller"),
                f"{quote(name)} is the kind of names of tenants, not of their callers",
                'give the field another name, or map a caller and write per = "tenant" in policies',
            )
        elif name not in source.fields.names:
            yield KeyFault(
                (*path, "caller"), f"no field is named {quote(name)}", map_it(name, source.fields.names)
            )


def _field(path: KeyPath, name: str, entry: PlainEntry, metered: frozenset[str]) -> Iterator[KeyFault]:
    if not NAME.fullmatch(name):
        yield KeyFault(
            path,
            f"{quote(name)} is not a valid name for a field",
            "use letters, digits, points, hyphens, underscores",
        )
    if entry.unit is not None and entry.kind not in (None, "duration"):
        yield KeyFault(
            (*path, "unit"),
            f"{quote(entry.kind)} does not take a unit",
            'remove it, or write kind = "duration"',
        )
    if entry.kind == "text" and name in metered:
        yield KeyFault(
            (*path, "kind"),
            'must not be "text": its value is taken as a number',
            'write "whole", "decimal", "money", "duration" or "bytes"',
        )
    if not entry.is_declared_number and name not in metered:
        for key in ("default", "required"):
            if key in entry.model_fields_set:
                yield KeyFault((*path, key), "applies to numbers only", 'remove it, or add kind = "whole"')
    if entry.required and entry.default is not None:
        yield KeyFault((*path, "default"), "a required number has no default", "remove default or required")


def _digests(path: KeyPath, source: SourceTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of fields that are counted by their digest."""
    metered = tables.metered | source.weights
    for name, entry in source.fields.plain.items():
        if entry.digest is None:
            continue
        if entry.is_declared_number or name in metered:
            yield KeyFault((*path, name, "digest"), "applies to text only", "remove it")
        elif tables.analyzer.digest is None:
            yield KeyFault(
                (*path, name, "digest"),
                "needs a secret",
                NAME_THE_FILE,
            )


def _weight(path: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    """Faults of the field with the number of requests of a record; `metered` has the fields of meters."""
    if source.weight is None:
        return
    entry, name = source.fields.plain.get(source.weight), quote(source.weight)
    if source.weight not in (*source.fields.names, "time"):
        problem = f"no field is named {name}"
        yield KeyFault((*path, "weight"), problem, map_it(source.weight, source.fields.names))
    elif entry is None or (entry.kind != "text" and entry.number_kind != "whole"):
        yield KeyFault((*path, "weight"), f"{name} is not a whole number", "name a field that holds one")
    elif "default" in entry.model_fields_set and source.weight not in metered:
        yield KeyFault(
            (*path, "fields", source.weight, "default"),
            "has no effect: a record without a weight stands for one request",
            "remove it",
        )


def _ids(path: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    """Faults of the field with the event's id; `metered` has the fields of meters."""
    if source.id is None:
        for key in ("id_horizon", "ids_max"):
            if key in source.model_fields_set:
                yield KeyFault((*path, key), "has no effect without an id", 'add id = "FIELD", or remove it')
        return
    entry = source.fields.plain.get(source.id)
    if source.id not in (*source.fields.names, "time"):
        problem = f"no field is named {quote(source.id)}"
        yield KeyFault((*path, "id"), problem, map_it(source.id, source.fields.names))
    elif entry is None or entry.is_declared_number or source.id in metered | source.weights:
        problem = f"{quote(source.id)} is not a text"
        yield KeyFault((*path, "id"), problem, "name a field with the text that identifies the request")


def _facts(path: KeyPath, source: SourceTable, metered: frozenset[str]) -> Iterator[KeyFault]:
    """Faults of fields that state facts about callers, without being text."""
    for field in source.facts or ():
        if field not in source.fields.plain:
            problem = f"no field is named {quote(field)}"
            yield KeyFault((*path, "facts"), problem, map_it(field, source.fields.names))
    for name in source.stated:
        if source.fields.plain[name].is_declared_number or name in metered:
            yield KeyFault(
                (*path, "fields", name),
                "is a number, and states a fact about callers",
                "give the number another name, or write facts = [] in the source",
            )
        if name in TENANT_FACTS and "tenant" not in source.stated:
            problem = "states a fact about tenants, and no record states the tenant"
            yield KeyFault((*path, "fields", name), problem, map_it("tenant", source.fields.names))


def _shared_paths(path: KeyPath, fields: FieldsTable) -> Iterator[KeyFault]:
    """Faults of values that two fields share: the counter reads a value either as exact digits or not."""
    exact = {entry.path: name for name, entry in fields.plain.items() if entry.is_exact}
    for name, entry in fields.entries.items():
        exact_field = exact.get(entry.path, name)
        if exact_field != name and not (isinstance(entry, PlainEntry) and entry.is_exact):
            yield KeyFault(
                (*path, name),
                f"{quote('.'.join(entry.path))} is read as an exact number by {quote(exact_field)}",
                "log it under two keys, or declare both fields as numbers",
            )


def _meter(path: KeyPath, meter: MeterTable, tables: ParsedTables) -> Iterator[KeyFault]:
    sources = tables.sources
    if meter.name == REQUESTS.name:
        yield KeyFault((*path, "name"), f"{quote(meter.name)} is built in", "write another name")
    if len(meter.given) != 1:
        yield KeyFault(
            (*path, meter.given[1] if meter.given else "count"),
            "a meter takes exactly one of count, sum, max and distinct",
            "write count = true, sum = FIELD, max = FIELD or distinct = FIELD",
        )
    yield from _conditions((*path, "where"), meter.where, sources)
    if meter.number_field is not None:
        yield from _number((*path, meter.join), meter.number_field, sources)
    elif meter.distinct is not None:
        yield from _text((*path, "distinct"), meter.distinct, tables)


def _number(path: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    if name in ("time", "address", "resource"):
        yield KeyFault(path, f"{quote(name)} is not a number", "name a field that holds one")
        return
    yield from _mapped(path, name, sources)
    kinds = {
        source.fields.plain[name].number_kind for source in sources.values() if name in source.fields.plain
    }
    if len(kinds) > 1 and kinds != {"whole", "bytes"}:  # the counter does not tell these two apart
        yield KeyFault(
            path,
            f"{quote(name)} is of different kinds in different sources: {', '.join(sorted(kinds))}",
            "write the same kind in every source",
        )


def _text(path: KeyPath, name: str, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of a field whose distinct values are counted."""
    entries = [source.fields.plain.get(name) for source in tables.sources.values()]
    is_number = any(entry is not None and entry.is_declared_number for entry in entries)
    is_number |= any(name in source.weights for source in tables.sources.values())
    if name == "time" or is_number or name in tables.metered:
        yield KeyFault(path, f"{quote(name)} is not text", "name a text field, address or resource")
    else:
        yield from _mapped(path, name, tables.sources)


def _conditions(
    path: KeyPath, conditions: Mapping[str, ConditionValues], sources: Mapping[int, SourceTable]
) -> Iterator[KeyFault]:
    for name, condition in conditions.items():
        yield from _mapped((*path, name), name, sources)
        entries = [source.fields.plain.get(name) for source in sources.values()]
        if any(entry is not None and entry.is_exact for entry in entries):
            measured = "a decimal, money or a duration"
            problem = f"{quote(name)} is {measured}; conditions compare text and whole numbers"
            yield KeyFault((*path, name), problem, "name another field")
        for value in condition.condition(name).texts:
            if name.startswith("status") and STATUS_CLASS.fullmatch(value):
                cure = f'write a range of numbers: "{value[0]}00-{value[0]}99"'
                yield KeyFault((*path, name), f"{quote(value)} is compared as text, which no status is", cure)


def _mapped(path: KeyPath, name: str, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """A fault unless every source has the field.

    A source whose format has fixed parts may lack a field that another source has.
    """
    lacking = [source for source in sources.values() if name not in source.fields.names]
    if len(lacking) < len(sources):
        lacking = [source for source in lacking if not FORMATS[source.format].parts]
    if lacking:
        names = {field for source in sources.values() for field in source.fields.names}
        problem = f"no field is named {quote(name)} in {listed(lacking)}"
        yield KeyFault(path, problem, map_it(name, names))
