"""Pydantic's errors as faults: a suggestion for unknown keys, an example for wrong types and missing keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.diagnostics.unavailable_keys import UNAVAILABLE, WINDOW, UnavailableKey
from analyzer.config.kafka_options.names import SPELLINGS
from analyzer.config.tables.analyzer import AnalyzerTable, PrivacyTable
from analyzer.config.tables.billing import BillingTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.delay_limits import DelaysTable
from analyzer.config.tables.fields import AddressEntry, PlainEntry, ResourceEntry, TimeEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import PolicyTable, WindowTable
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import closest, suggestion

OF_SEVERAL = (("meters",), ("policies",), ("sources",))  # sections of several tables
SECTIONS = (
    *("analyzer", "billing", "database", "delays", "kafka"),
    *("meters", "policies", "privacy", "retention", "sources"),
)
TABLES: dict[tuple[str, ...], type[BaseModel]] = {
    ("analyzer",): AnalyzerTable,
    ("billing",): BillingTable,
    ("database",): DatabaseTable,
    ("delays",): DelaysTable,
    ("kafka",): KafkaTable,
    ("meters",): MeterTable,
    ("policies",): PolicyTable,
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
ROLLING_WINDOW = 'window = { rolling = "1m" }'  # of a share and of a surge
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

    def covers(self, at: KeyPath) -> bool:
        return not self.covered.isdisjoint((at[:2], at[:3], at[:4]))


def translate_errors(invalid: ValidationError) -> TranslatedErrors:
    """Everything that pydantic found, in its order. Values are not repeated: they may be secrets."""
    errors = invalid.errors(include_url=False)
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    replaced = {at for at in map(_intended_key, unknown) if at is not None}
    faults = [
        unknown_key(error["loc"]) if error["loc"] in unknown else _known_key(error)
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


def _dependent_keys(at: KeyPath) -> Iterator[KeyPath]:
    """Yields the keys whose checks mean nothing while the key at `at` is faulty."""
    match at:
        case ("sources", int(), "format"):
            for key in ("fields", "caller", "deny_if", "count_if", "groupings"):
                yield (*at[:2], key)
        case ("kafka", "sasl_plain_password"):
            yield ("kafka", "sasl_plain_password_file")
        case ("meters", int(), _):
            yield (*at[:2], "count")  # of count, sum, max and distinct it may have meant one


def _known_key(error: ErrorDetails) -> KeyFault:
    at, context = error["loc"], error.get("ctx", {})
    if error["type"] in ("refused", "unavailable"):
        return KeyFault(at, context["what"], context["cure"])
    if error["type"] == "missing":
        example = _example(error)
        return KeyFault(at, "is missing", "add it" if example is None else f"write {example}")
    what = WRONG_TYPE.get(error["type"])
    if what is None:
        return KeyFault(at, "cannot be read", error["msg"])
    is_section = len(at) == 1 or (len(at) == 2 and isinstance(at[1], int))
    return _wrong_section(at, what) if is_section else _wrong_type(at, what)


def _example(error: ErrorDetails) -> str | None:
    """Returns what to write for a missing key, by the kind of its policy; None if that is not known."""
    key, table = str(error["loc"][-1]), error.get("input")
    if key == "window" and isinstance(table, Mapping) and table.get("kind") in ("share", "surge"):
        return ROLLING_WINDOW
    return EXAMPLES.get(key)


def _wrong_section(at: KeyPath, what: str) -> KeyFault:
    """A whole section, or one of its tables, that is written as something else."""
    section = at[0]
    if len(at) == 1 and what == LIST:
        return KeyFault(
            at,
            "must be a list of tables",
            f"begin each table with a line [[{section}]]",
            "write a JSON list of objects",
        )
    heading = f"[{section}]" if len(at) == 1 else f"[[{section}]]"
    return KeyFault(at, what, f"begin it with a line {heading}, and write key = value below")


def _wrong_type(at: KeyPath, what: str) -> KeyFault:
    if at[-1] == "window":
        return KeyFault(at, what, f"{WINDOW}; a window that begins with each request is not available")
    otherwise = {TABLE: "{ key = value }", "must be text": "it in quotation marks"}.get(what, "true or false")
    return KeyFault(at, what, f"write {EXAMPLES.get(str(at[-1]), otherwise)}")


def unknown_key(at: KeyPath) -> KeyFault:
    """The fault of a key that this version does not have."""
    table = _table(at)
    planned = _planned(at)
    if planned is not None:
        return KeyFault(at, planned.what, planned.cure)
    known = sorted(SPELLINGS) if table == ("kafka",) else _keys(table)
    otherwise = f"use one of {', '.join(_keys(table))}"
    return KeyFault(at, "is not a known key", suggestion(str(at[-1]), known, _elsewhere(at) or otherwise))


def _elsewhere(at: KeyPath) -> str:
    """Returns where a key belongs that its table does not have; "" if no table has it."""
    key, table = str(at[-1]), _table(at)
    tables = [one for one in TABLES if one != table and key in _keys(one)]
    tables = [one for one in tables if one[:1] == table[:1]] or tables  # those nearby before others
    headings = [f"[[{one[0]}]]" if one in OF_SEVERAL else f"[{'.'.join(one)}]" for one in tables]
    return f"it is a key of {' and of '.join(headings)}: move it there" if headings else ""


def _intended_key(at: KeyPath) -> KeyPath | None:
    """The key that an unknown one probably stands for, which is then not reported as missing."""
    planned = _planned(at)
    key = closest(str(at[-1]), _keys(_table(at))) if planned is None else planned.instead_of
    return None if key is None else (*at[:-1], key)


def _planned(at: KeyPath) -> UnavailableKey | None:
    return UNAVAILABLE.get(_table(at), {}).get(str(at[-1]))


def _table(at: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in at[:-1] if isinstance(part, str))


def _keys(table: tuple[str, ...]) -> list[str]:
    if not table:
        return list(SECTIONS)
    fields = TABLES.get(table, PlainEntry).model_fields
    return sorted(field.alias or name for name, field in fields.items())
