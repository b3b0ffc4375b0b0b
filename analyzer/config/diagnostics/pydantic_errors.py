"""Pydantic's errors as faults: a suggestion for unknown keys, an example for wrong types and missing keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.kafka_options import cure_of_name
from analyzer.config.tables.analyzer import AnalyzerTable, PrivacyTable
from analyzer.config.tables.billing import BillingTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.delay_limits import DelaysTable
from analyzer.config.tables.fields import AddressEntry, PlainEntry, ResourceEntry, TimeEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.named_values import GroupingTable
from analyzer.config.tables.policies import POLICY_TABLES, PolicyTable, table_class
from analyzer.config.tables.policy_values import WindowTable
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import alternatives, closest, suggestion


class UnavailableKey(NamedTuple):
    """The cure for a key that is planned or elsewhere, and the required key that it would replace, if any."""

    cure: str
    instead_of: str | None = None
    what: str = "is not available in this version"


WINDOW = 'write window = { per = "hour" } or { rolling = "10m" }'
ELSEWHERE = "is stated elsewhere"
IN_SHADOW = 'write mode = "shadow", which judges the policy and enforces nothing'

# By table, then key. A table's path leaves out the indexes of lists.
UNAVAILABLE: dict[tuple[str, ...], dict[str, UnavailableKey]] = {
    (): {
        "tokens": UnavailableKey("remove it; run `gatelock upkeep tokens create NAME --scope read` instead"),
        "webhooks": UnavailableKey("remove it; poll `gatelock locks list --json` instead"),
    },
    ("policies",): {
        "shadow": UnavailableKey(IN_SHADOW),
        "dry_run": UnavailableKey(IN_SHADOW),
        "enabled": UnavailableKey(IN_SHADOW),
        "exempt": UnavailableKey(
            "remove it; run `gatelock callers allow NAME --reason WHY` instead", what=ELSEWHERE
        ),
    },
}

OF_SEVERAL = (("groupings",), ("meters",), ("policies",), ("sources",))  # sections of several tables
SECTIONS = (
    *("analyzer", "billing", "database", "delays", "groupings", "kafka"),
    *("meters", "policies", "privacy", "retention", "sources"),
)
TABLES: dict[tuple[str, ...], type[BaseModel]] = {
    ("analyzer",): AnalyzerTable,
    ("billing",): BillingTable,
    ("database",): DatabaseTable,
    ("delays",): DelaysTable,
    ("groupings",): GroupingTable,
    ("kafka",): KafkaTable,
    ("meters",): MeterTable,
    ("policies", "window"): WindowTable,
    ("privacy",): PrivacyTable,
    ("retention",): RetentionTable,
    ("sources",): SourceTable,
    ("sources", "fields", "address"): AddressEntry,
    ("sources", "fields", "resource"): ResourceEntry,
    ("sources", "fields", "time"): TimeEntry,
}

# What to write where a key is missing or has a value of another type.
EXAMPLES = {
    "count": "count = true",
    "authenticated": "authenticated = true",
    "count_if": 'count_if = { status = { not = ["401", "403"] } }',
    "deny_if": 'deny_if = { gate = "denied" }',
    "field": 'field = "NAME", of [sources.fields]',
    "fields": 'api_key = "http.api_key" and other fields below [sources.fields]',
    "groupings": 'groupings = ["caller+resource"]',
    "limit": "limit = 100_000",
    "name": 'name = "..."',
    "path": 'the keys that lead to it: { path = "a.b" }',
    "per": 'per = "minute", "hour", "day", "week", "month" or "year"',
    "required": "required = true",
    "sasl_plain_in_clear": "sasl_plain_in_clear = true",
    "unit": 'time = { path = "...", unit = "s" }; or the unit "ms", "us", "ns", "rfc3339" or "clf"',
    "where": 'where = { status = "500-599" }',
    "window": 'window = { per = "day", zone = "UTC" }',
}
POLICIES, CANDIDATES = ("policies",), ("policies", "candidate")  # by the kind of each policy
TABLE, LIST = "must be a table", "must be a list"
WRONG_TYPE = {  # by pydantic's error; without the value, which may be a secret
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": TABLE,
    "model_attributes_type": TABLE,
    "model_type": TABLE,
    "string_type": "must be text",
    "tuple_type": LIST,
}


class TranslatedErrors(NamedTuple):
    """Faults that pydantic found, and the keys about which no further fault is to be reported."""

    faults: list[KeyFault]
    covered: frozenset[KeyPath]

    def covers(self, path: KeyPath) -> bool:
        return not self.covered.isdisjoint((path[:2], path[:3], path[:4]))


def translate_errors(
    invalid: ValidationError, document: Mapping[str, Any] = MappingProxyType({})
) -> TranslatedErrors:
    """Everything that pydantic found, in its order. Values are not repeated: they may be secrets.

    Args:
        invalid: Pydantic's errors.
        document: What was read; the kinds of its policies say which keys they have.
    """
    errors = invalid.errors(include_url=False)
    unknown = {error["loc"] for error in errors if error["type"] == "extra_forbidden"}
    replaced = {path for path in (_intended_key(path, document) for path in unknown) if path is not None}
    faults = [
        unknown_key(error["loc"], error.get("input"), document)
        if error["loc"] in unknown
        else _known_key(error)
        for error in errors
        if error["type"] != "missing" or error["loc"] not in replaced
    ]
    # A policy of a planned kind has one fault, not one for each of its keys.
    planned = {
        error["loc"][:2]
        for error in errors
        if error["type"] == "unavailable" and error["loc"][0] == "policies" and error["loc"][2:] == ("kind",)
    }
    faults = [fault for fault in faults if fault.at[:2] not in planned or fault.at[2:] == ("kind",)]
    dependent = {key for fault in faults for key in _dependent_keys(fault.at)}
    return TranslatedErrors(
        faults, frozenset(replaced | planned | dependent | {fault.at[:4] for fault in faults})
    )


def _dependent_keys(path: KeyPath) -> Iterator[KeyPath]:
    """Yields the keys whose checks mean nothing while the key at `path` is faulty."""
    match path:
        case ("sources", int(), "format"):
            for key in ("fields", "caller", "deny_if", "count_if", "groupings"):
                yield (*path[:2], key)
        case ("kafka", "sasl_plain_password"):
            yield ("kafka", "sasl_plain_password_file")
        case ("meters", int(), _):
            yield (*path[:2], "count")  # of count, sum, max and distinct it may have meant one


def _known_key(error: ErrorDetails) -> KeyFault:
    path, context = error["loc"], error.get("ctx", {})
    if error["type"] in ("refused", "unavailable"):
        return KeyFault(path, context["what"], context["cure"])
    if error["type"] == "missing":
        example = _example(error)
        return KeyFault(path, "is missing", "add it" if example is None else f"write {example}")
    problem = WRONG_TYPE.get(error["type"])
    if problem is None:
        return KeyFault(path, "cannot be read", error["msg"])
    is_section = len(path) == 1 or (len(path) == 2 and isinstance(path[1], int))
    return _wrong_section(path, problem) if is_section else _wrong_type(path, problem)


def _example(error: ErrorDetails) -> str | None:
    """Returns what to write for a missing key, by the kind of its policy; None if that is not known."""
    key = str(error["loc"][-1])
    return table_class(error.get("input")).window_example if key == "window" else EXAMPLES.get(key)


def _wrong_section(path: KeyPath, problem: str) -> KeyFault:
    """A whole section, or one of its tables, that is written as something else."""
    section = path[0]
    if len(path) == 1 and problem == LIST:
        return KeyFault(
            path,
            "must be a list of tables",
            f"begin each table with a line [[{section}]]",
            "write a JSON list of objects",
        )
    heading = f"[{section}]" if len(path) == 1 else f"[[{section}]]"
    return KeyFault(path, problem, f"begin it with a line {heading}, and write key = value below")


def _wrong_type(path: KeyPath, problem: str) -> KeyFault:
    if path[-1] == "window":
        return KeyFault(path, problem, f"{WINDOW}; a window that begins with each request is not available")
    otherwise = {TABLE: "{ key = value }", "must be text": "it in quotation marks"}.get(
        problem, "true or false"
    )
    return KeyFault(path, problem, f"write {EXAMPLES.get(str(path[-1]), otherwise)}")


def unknown_key(
    path: KeyPath, value: object = None, document: Mapping[str, Any] = MappingProxyType({})
) -> KeyFault:
    """The fault of a key that this version does not have.

    Args:
        path: The path of the key.
        value: Its value; a dotted name is a table.
        document: What was read.
    """
    table = _table(path)
    planned = _planned(path)
    if planned is not None:
        return KeyFault(path, planned.what, planned.cure)
    if table in (POLICIES, CANDIDATES) and (kinds := _kinds_with(path)):
        return _of_other_kind(path, kinds, document)
    name, keys, elsewhere = str(path[-1]), _keys(path, document), _elsewhere(path)
    if table == ("kafka",) and not elsewhere:
        while isinstance(value, Mapping) and value:
            part, value = next(iter(value.items()))
            name = f"{name}.{part}"
        return KeyFault(path, "is not a known key", cure_of_name(name, keys))
    otherwise = elsewhere or f"use one of {', '.join(keys)}"
    return KeyFault(path, "is not a known key", suggestion(name, keys, otherwise))


def _kinds_with(path: KeyPath) -> list[str]:
    """Returns the kinds of policies, or of candidates, that have this key."""
    is_candidate = _table(path) == CANDIDATES
    return [
        kind
        for kind, table in POLICY_TABLES.items()
        if path[-1] in _fields(table.candidate_class if is_candidate else table)
    ]


def _of_other_kind(path: KeyPath, kinds: Sequence[str], document: Mapping[str, Any]) -> KeyFault:
    """The fault of a key that other kinds of policy have: which ones, and which keys this kind has."""
    model = _policy_class(path, document)
    [kind] = [name for name, table in POLICY_TABLES.items() if table is model]
    of_all = set.intersection(*(set(_fields(table)) for table in POLICY_TABLES.values()))
    keys = [key for key in _fields(model) if key not in of_all]
    return KeyFault(
        path,
        f"applies to {' and '.join(f'{name}s' for name in kinds)}, and this is a {kind}",
        f"remove it, or write kind = {alternatives(kinds)}; besides the keys of every kind, a {kind} has "
        f"{', '.join(keys)}",
    )


def _policy_class(path: KeyPath, document: Mapping[str, Any]) -> type[PolicyTable]:
    """Returns the class that reads the policy at this path."""
    policies, index = document.get("policies"), path[1] if len(path) > 1 else None
    if not isinstance(policies, (list, tuple)) or not isinstance(index, int) or index >= len(policies):
        return table_class(None)
    return table_class(policies[index])


def _elsewhere(path: KeyPath) -> str:
    """Returns where a key belongs that its table does not have; "" if no table has it."""
    key, table = str(path[-1]), _table(path)
    tables = [name for name, model in TABLES.items() if name != table and key in _fields(model)]
    if table != POLICIES and any(key in _fields(model) for model in POLICY_TABLES.values()):
        tables.append(POLICIES)
    tables = [name for name in tables if name[:1] == table[:1]] or tables  # those nearby before others
    headings = [f"[[{name[0]}]]" if name in OF_SEVERAL else f"[{'.'.join(name)}]" for name in tables]
    return f"it is a key of {' and of '.join(headings)}: move it there" if headings else ""


def _intended_key(path: KeyPath, document: Mapping[str, Any]) -> KeyPath | None:
    """The key that an unknown one probably stands for, which is then not reported as missing."""
    planned = _planned(path)
    key = closest(str(path[-1]), _keys(path, document)) if planned is None else planned.instead_of
    return None if key is None else (*path[:-1], key)


def _planned(path: KeyPath) -> UnavailableKey | None:
    return UNAVAILABLE.get(_table(path), {}).get(str(path[-1]))


def _table(path: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in path[:-1] if isinstance(part, str))


def _keys(path: KeyPath, document: Mapping[str, Any]) -> list[str]:
    """Returns the keys that the table of this key has."""
    table = _table(path)
    if not table:
        return list(SECTIONS)
    if table in (POLICIES, CANDIDATES):
        policy = _policy_class(path, document)
        return sorted(_fields(policy if table == POLICIES else policy.candidate_class))
    return sorted(_fields(TABLES.get(table, PlainEntry)))


def _fields(model: type[BaseModel]) -> list[str]:
    """Returns the keys of a table as a file has them."""
    return [field.alias or name for name, field in model.model_fields.items()]
