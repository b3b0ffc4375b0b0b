"""From pydantic's errors to complaints: unknown keys with what was probably meant, unbuilt ones said so."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.diagnostics.unavailable_keys import UNAVAILABLE
from analyzer.config.kafka_options.names import WRITTEN
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.fields import AddressEntry, PlainEntry, ResourceEntry, TimeEntry
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import PolicyTable, WindowTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import either, meant, quoted

SECTIONS = ("analyzer", "database", "kafka", "meters", "policies", "sources")
TABLES: dict[tuple[str, ...], type[BaseModel]] = {
    ("analyzer",): AnalyzerTable,
    ("database",): DatabaseTable,
    ("kafka",): KafkaTable,
    ("meters",): MeterTable,
    ("policies",): PolicyTable,
    ("policies", "window"): WindowTable,
    ("sources",): SourceTable,
    ("sources", "fields", "address"): AddressEntry,
    ("sources", "fields", "resource"): ResourceEntry,
    ("sources", "fields", "time"): TimeEntry,
}

WORDS = {  # pydantic's kinds of error, in ours; never with the value, which may be a secret
    "string_type": ("is no text", "write it between quotation marks"),
    "bool_type": ("is neither true nor false", "write true or false"),
    "bool_parsing": ("is neither true nor false", "write true or false"),
    "tuple_type": (
        "is no list of tables",
        "begin each of them with its name in double brackets; in the environment, write JSON",
    ),
    "dict_type": ("is no table", "write { key = value }"),
    "model_type": ("is no table", "write { key = value }"),
    "model_attributes_type": ("is no table", "write { key = value }"),
}


NEEDED = {  # what to write where something is missing
    "limit": "write limit = 100_000",
    "name": 'write name = "..."',
    "path": 'say where records have it: { path = "a.b" }',
    "per": 'write per = "minute", "hour", "day", "week" or "month"',
    "unit": 'say what it is written in: "s", "ms", "us", "ns", "rfc3339" or "clf"',
    "window": 'write window = { per = "day", zone = "UTC" }',
}


class TranslatedErrors(NamedTuple):
    """What pydantic found, and the places about which nothing more need be said."""

    complaints: list[KeyFault]
    covered: frozenset[KeyPath]

    def covers(self, at: KeyPath) -> bool:
        return not self.covered.isdisjoint((at[:2], at[:3], at[:4]))


def heard(error: ValidationError) -> TranslatedErrors:
    """Everything that pydantic found, in its order. Values are not repeated: they may be secrets."""
    errors = error.errors(include_url=False, include_input=False)
    strange = [each["loc"] for each in errors if each["type"] == "extra_forbidden"]
    instead = {at for at in map(_instead, strange) if at is not None}
    found = [
        unknown(each["loc"]) if each["loc"] in strange else said(each)
        for each in errors
        if each["type"] != "missing" or each["loc"] not in instead
    ]
    # A policy of a kind that cannot be judged yet has one fault, not one for each of its keys.
    later = {each.at[:2] for each in found if each.at[0] == "policies" and each.at[2:] == ("kind",)}
    found = [each for each in found if each.at[:2] not in later or each.at[2:] == ("kind",)]
    return TranslatedErrors(found, frozenset(instead | later | {each.at[:4] for each in found}))


def said(error: ErrorDetails) -> KeyFault:
    """One of pydantic's errors as a complaint. Unknown keys are not for here: see reading.unknown."""
    at, context = error["loc"], error.get("ctx", {})
    if error["type"] == "refused":
        return KeyFault(at, context["what"], context["cure"])
    if error["type"] == "missing":
        return KeyFault(at, "is missing", NEEDED.get(str(at[-1]), "add it"))
    what, cure = WORDS.get(error["type"], ("cannot be read", error["msg"]))
    return KeyFault(at, what, cure)


def unknown(at: KeyPath) -> KeyFault:
    """The complaint about a key that is not one of ours, or not yet."""
    meanwhile = UNAVAILABLE.get(_table(at), {}).get(str(at[-1]))
    if meanwhile is not None:
        return KeyFault(at, "is not available in this version", meanwhile.cure)
    known = sorted(WRITTEN) if _table(at) == ("kafka",) else _keys(_table(at))
    slip = meant(str(at[-1]), known)
    cure = f"did you mean {quoted(slip)}?" if slip else f"known are {either(_keys(_table(at)))}"
    return KeyFault(at, "is not a key that is known here", cure)


def _instead(at: KeyPath) -> KeyPath | None:
    """The key that an unknown one probably stands for, and which is therefore not missing."""
    meanwhile = UNAVAILABLE.get(_table(at), {}).get(str(at[-1]))
    key = meant(str(at[-1]), _keys(_table(at))) if meanwhile is None else meanwhile.instead_of
    return None if key is None else (*at[:-1], key)


def _table(at: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in at[:-1] if isinstance(part, str))


def _keys(table: tuple[str, ...]) -> list[str]:
    if not table:
        return list(SECTIONS)
    fields = TABLES.get(table, PlainEntry).model_fields
    return sorted(field.alias or name for name, field in fields.items())
