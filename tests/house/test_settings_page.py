"""docs/configuration.md against the models: one row per key, in its section, with default, words and bounds.

The page is also checked after each of its rows is deleted, repeated or changed: that must be noticed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from analyzer.config import settings  # noqa: F401 - imports every table
from analyzer.config.tables import ConfigTable
from analyzer.config.tables.alerts import AlertingTable, AlertTable, MailTable, QuietTable
from analyzer.config.tables.analyzer import AnalyzerTable, PrivacyTable
from analyzer.config.tables.billing import BillingTable, LiveTable
from analyzer.config.tables.database import DatabaseTable
from analyzer.config.tables.delay_limits import DelaysTable
from analyzer.config.tables.fields import (
    AddressEntry,
    FieldEntry,
    FieldsTable,
    PlainEntry,
    ResourceEntry,
    TimeEntry,
)
from analyzer.config.tables.kafka import KafkaTable
from analyzer.config.tables.limit_overrides import ExceptionTable, ExemptTable, OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.named_values import GroupingTable
from analyzer.config.tables.policies import POLICY_TABLES, CandidateTable, PolicyTable
from analyzer.config.tables.policy_values import WindowTable
from analyzer.config.tables.retention import RetentionTable
from analyzer.config.tables.sources import SourceTable
from tests.house.reading import ROOT

PAGE = (ROOT / "docs" / "configuration.md").read_text()


def keys_of_all(name: str, models: Iterable[type[BaseModel]]) -> type[BaseModel]:
    """Returns a model with the keys of several; one that they share is that of the first."""
    fields = {key: field for model in reversed(list(models)) for key, field in model.model_fields.items()}
    return create_model(name, **{key: (field.annotation, field) for key, field in fields.items()})


# Kinds of policies have separate tables, which the page shows in one.
CANDIDATE_TABLES = [table.candidate_class for table in POLICY_TABLES.values()]
OF_POLICIES = keys_of_all("OfPolicies", POLICY_TABLES.values())
OF_CANDIDATES = keys_of_all("OfCandidates", CANDIDATE_TABLES)
# The heading above the rows of each table.
HEADINGS: dict[str, type[BaseModel]] = {
    "`[database]`": DatabaseTable,
    "`[kafka]`": KafkaTable,
    "`[analyzer]`": AnalyzerTable,
    "`[delays]`": DelaysTable,
    "`[billing]`": BillingTable,
    "`[billing.live]`": LiveTable,
    "`[alerting]`": AlertingTable,
    "`[alerting.mail]`": MailTable,
    "`[[alerts]]`": AlertTable,
    "`quiet`": QuietTable,
    "`[privacy]`": PrivacyTable,
    "`[[groupings]]`": GroupingTable,
    "`[retention]`": RetentionTable,
    "`[[sources]]`": SourceTable,
    "`[sources.fields]`": FieldsTable,
    "`time`": TimeEntry,
    "`address`": AddressEntry,
    "`resource`": ResourceEntry,
    "Other fields": PlainEntry,
    "`[[meters]]`": MeterTable,
    "`[[policies]]`": OF_POLICIES,
    "`window`": WindowTable,
    "Modes": OF_CANDIDATES,
    "`[[overrides]]`": OverrideTable,
    "`[[exempt]]`": ExemptTable,
}
# Defaults that the model computes; the page describes them in these words.
COMPUTED = {
    (AnalyzerTable, "name"): "the host's name",
    (AnalyzerTable, "log"): '`"console"` on a terminal, else `"json"`',
    **{(OF_CANDIDATES, key): "the policy's" for key in OF_CANDIDATES.model_fields},
    (AlertTable, "kinds"): "all",
    (AlertTable, "severity"): '`"warning"`; with `kinds`, `"info"`',
    (RetentionTable, "closed_days"): '`"forever"`',
    (SourceTable, "name"): "the topic, or the file's name",
    (SourceTable, "caller"): "`api_key`, `user`, `address`, if mapped",
    (SourceTable, "facts"): "those that are mapped",
    (ResourceEntry, "routes"): "none",
    (OF_POLICIES, "limit"): "required, but in some shares",
    (PlainEntry, "kind"): '`"duration"` with a unit, else `"whole"`',
    (PlainEntry, "unit"): '`"s"` for durations',
    (PlainEntry, "default"): "`0`",
}


class Row(NamedTuple):
    """One line of a table on the page."""

    line: str
    key: str
    default: str
    meaning: str


def rows_by_heading(page: str) -> dict[str, list[Row]]:
    """Rows with a key in backticks and three columns, by the heading above them."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in page.splitlines():
        if title := re.fullmatch(r"#+ (.+)", line):
            heading = title[1]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if heading in HEADINGS and len(cells) == 3 and (key := re.fullmatch(r"`(\w+)`", cells[0])):
            found.setdefault(heading, []).append(Row(line, key[1], *cells[1:]))
    return found


@cache
def adapter_of(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    """Validates values of the field like its table does."""
    field = model.model_fields[name]
    annotation: Any = field.annotation
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return TypeAdapter(annotation)


def words_of(annotation: Any) -> Iterator[str]:
    """The words of every Literal in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for argument in get_args(annotation):
            yield from words_of(argument)


@cache
def range_of(model: type[BaseModel], name: str) -> str | None:
    """The bounds of a number or duration, in the words of its fault; None without bounds."""
    try:
        adapter_of(model, name).validate_python(-1)
    except ValidationError as error:
        cure = error.errors()[0].get("ctx", {}).get("cure", "")
        if bounds := re.fullmatch(r"choose between (\S+) and (\S+)", cure):
            return f"{bounds[1]} to {bounds[2]}"
        if re.fullmatch(r'use ("\w+", )*"\w+" or "\w+"', cure):  # the keys of a table of entries
            return ", ".join(f'`"{word}"`' for word in re.findall(r'"(\w+)"', cure))
    return None


def accepted(model: type[BaseModel], name: str) -> str | None:
    """The accepted values where the model determines them, words or bounds; else None."""
    field = model.model_fields[name]
    if words := list(words_of(field.annotation)):
        listed = ", ".join(f'`"{word}"`' for word in words)
        kinds = field.annotation, *get_args(field.annotation)
        return f"a list of {listed}" if tuple in map(get_origin, kinds) else listed
    return range_of(model, name)


def is_default(cell: str, model: type[BaseModel], name: str) -> bool:
    """Whether the column "default" shows the model's default."""
    field = model.model_fields[name]
    if (model, name) in COMPUTED:
        return cell == COMPUTED[model, name]
    if field.is_required():
        return cell == "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return cell == "none"
    if not re.fullmatch(r"`.+`", cell):
        return False
    try:
        shown = tomllib.loads(f"x = {cell[1:-1]}")["x"]
        return bool(adapter_of(model, name).validate_python(shown) == default)
    except (tomllib.TOMLDecodeError, ValidationError):
        return False


def names_values(accepted_values: str | None, meaning: str) -> bool:
    """Whether the column "meaning" has all accepted words, or both bounds, whole."""
    return accepted_values is None or bool(
        re.search(rf"(?<![\w`]){re.escape(accepted_values)}(?!\w)", meaning)
    )


def problems(page: str) -> list[str]:
    """Everything in which the page differs from the models."""
    found = []
    tables = rows_by_heading(page)
    for heading, model in HEADINGS.items():
        rows = tables.get(heading, [])
        keys = {field.alias or name: name for name, field in model.model_fields.items()}
        found += [f"{heading}: {row.key}: not a key" for row in rows if row.key not in keys]
        for key, name in keys.items():
            about = [row for row in rows if row.key == key]
            if len(about) != 1:
                found.append(f"{heading}: {key}: {len(about)} rows")
                continue
            [row] = about
            if not is_default(row.default, model, name):
                found.append(f"{heading}: {key}: default is not {row.default}")
            expected = accepted(model, name)
            if not row.meaning or not names_values(expected, row.meaning):
                found.append(f"{heading}: {key}: accepts {expected}, not: {row.meaning}")
    return found


def test_the_page_agrees_with_the_models() -> None:
    assert problems(PAGE) == []


def test_every_table_of_the_configuration_has_a_heading() -> None:
    def below(model: type[BaseModel]) -> set[type[BaseModel]]:
        subclasses = [table for table in model.__subclasses__() if table.__module__.startswith("analyzer.")]
        return {model}.union(*map(below, subclasses))

    of_kinds = {PolicyTable, CandidateTable, *POLICY_TABLES.values(), *CANDIDATE_TABLES}
    bases = {ConfigTable, FieldEntry, ExceptionTable}
    assert below(ConfigTable) - bases - of_kinds == set(HEADINGS.values()) - {OF_POLICIES, OF_CANDIDATES}


ROWS = [(heading, row) for heading, rows in rows_by_heading(PAGE).items() for row in rows]


@pytest.mark.parametrize(("heading", "row"), ROWS, ids=[f"{heading} {row.key}" for heading, row in ROWS])
def test_a_deleted_repeated_or_changed_row_is_noticed(heading: str, row: Row) -> None:
    at = PAGE.index(f"# {heading}\n")
    before, after = PAGE[:at], PAGE[at:]

    def with_line(line: str) -> str:
        return before + after.replace(f"{row.line}\n", line, 1)

    changes = {
        "deleted": "",
        "repeated": f"{row.line}\n" * 2,
        "renamed": f"{row.line}\n".replace(f"`{row.key}`", f"`{row.key}s`", 1),
        "no default": f"{row.line}\n".replace(f"| {row.default} |", "| |", 1),
    }
    for other in ("required", "none", "`12.5`", '`"other default"`', "`[1]`"):
        if other != row.default:
            changes[f"default {other}"] = f"{row.line}\n".replace(f"| {row.default} |", f"| {other} |", 1)
    model = HEADINGS[heading]
    name = next(n for n, field in model.model_fields.items() if (field.alias or n) == row.key)
    if (words := accepted(model, name)) is not None:
        changes["other words"] = f"{row.line}\n".replace(words, '`"another"`', 1)
        changes["fewer words"] = f"{row.line}\n".replace(words, words[:-1], 1)
    unnoticed = [name for name, line in changes.items() if not problems(with_line(line))]
    assert unnoticed == []
