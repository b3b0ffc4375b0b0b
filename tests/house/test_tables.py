"""Tables are total: what differs by an entry stands in the entry, and no module elsewhere compares its name.

`TABLES` has every table whose entries a change adds to, the row about it in docs/architecture.md, and the
modules that may compare names, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple, get_args

import pytest

from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.recount.log_documents import READERS
from analyzer.billing.recount.text_patterns import TESTS
from analyzer.billing.reports.row_formats import ROW_FORMATS
from analyzer.config.kind_checks import KIND_CHECKS
from analyzer.config.tables.database import SCHEMES
from analyzer.config.tables.policies import POLICY_TABLES
from analyzer.config.values import PATTERN_EXAMPLES
from analyzer.counting.records.formats import FORMATS
from analyzer.counting.sql_joins import SQL_JOINS
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.signals.doctor.examination import CHECKS
from analyzer.faces.signals.metrics import GAUGES
from analyzer.judging.kinds import KINDS
from analyzer.kernel.database.dialects import DIALECTS
from analyzer.maintenance.job_table import JOBS
from analyzer.plan.mapping import FORMAT_NAMES, PatternKind
from analyzer.plan.meters import JOINS
from analyzer.plan.patterns import PATTERN_KINDS
from analyzer.plan.policies import POLICY_CLASSES
from gatekeeper.sources.sql import DATABASES, NOW_MS
from tests.house.reading import modules, within
from tests.house.test_scope import ROWS


class Table(NamedTuple):
    """One table.

    Attributes:
        row: The change in docs/architecture.md that adds an entry.
        keys: The names of its entries.
        places: The names of the dictionaries and lists that have an entry for each.
        compared: What a name is compared with, where it is this table's: words in the other side of a
            comparison; "": anything.
        types: Classes of the entries, which `isinstance` would tell apart.
        entries: Modules that are entries.
        permitted: Other modules that may compare names, and why.
    """

    row: str
    keys: Collection[str]
    places: tuple[str, ...]
    compared: str
    types: Collection[str] = ()
    entries: tuple[str, ...] = ()
    permitted: Mapping[str, str] = {}


SECOND_COUNTER = "the second counter shares no code with the first, and knows the joins by their names"
TABLES = (
    Table(
        "a kind of policy",
        {*POLICY_CLASSES, *POLICY_TABLES},
        ("POLICY_CLASSES", "KINDS", "POLICY_TABLES", "KIND_CHECKS"),
        "kind",
        {
            *(policy.__name__ for policy in POLICY_CLASSES.values()),
            *(table.__name__ for table in POLICY_TABLES.values()),
            *("ComparedLoad", "WithThresholds", "Limited"),
        },
        ("analyzer.judging.kinds", "analyzer.plan.policies"),
    ),
    Table("a log format", FORMATS, ("FORMATS", "FORMAT_NAMES", "READERS"), "format"),
    Table(
        "a join of meters",
        JOINS,
        ("JOINS", "SQL_JOINS"),
        "join|joins|joined",
        permitted={"analyzer.billing.recount": SECOND_COUNTER},
    ),
    Table(
        "a kind of pattern in conditions",
        PATTERN_KINDS,
        ("PATTERN_KINDS", "PatternKind", "PATTERN_EXAMPLES", "TESTS"),
        "kind|pattern",
        permitted={"analyzer.plan.derived_meters": "a glob with its stars needs no word in front of it"},
    ),
    Table(
        "a database",
        {*DIALECTS, *SCHEMES, *(word for scheme in SCHEMES.values() for word in scheme.also)},
        ("DIALECTS", "SCHEMES"),
        "dialect|scheme|get_backend_name|drivername|database",
        permitted={"gatekeeper.sources": "the table of schemes, each of which imports a package"},
    ),
    Table("a billing service", SERVICES, ("SERVICES",), ""),
    Table("a format of reports", ROW_FORMATS, ("ROW_FORMATS",), ""),
    Table("a page", {page.path for page in PAGES} - {"/"}, ("PAGES",), ""),
    Table("a job", {entry.name for entry in JOBS}, ("JOBS",), ""),
    Table("a metric", {gauge.metric.name for gauge in GAUGES}, ("GAUGES",), ""),
    Table("a check of `gatelock doctor`", {part.name for part in CHECKS}, ("CHECKS",), "check|finding"),
)
# Changes in docs/architecture.md that are more than an entry of a table.
OTHER_ROWS = {
    *("change", "a threshold, a notice", "a grouping", "what a look at a log recognises"),
    *("a source of records", "a source of locks", "a framework", "a limiter", "a table or column"),
    *("a kind of receiver", "an event"),
    *("an act or a list", "a command that is written by hand", "a setting"),
    *("an endpoint that is written by hand", "another endpoint", "a problem in `/readyz`"),
    "a word in the stored plan",
}
LISTS = (ast.Tuple, ast.List, ast.Set)


class Place(NamedTuple):
    """A place that tells entries apart: the words or classes that it names, and the other side."""

    module: str
    line: int
    names: frozenset[str]
    other: str
    is_dictionary: bool = False


def words(node: ast.expr | None) -> frozenset[str]:
    """Returns the texts that a side of a comparison has, alone or in a list of them."""
    items = node.elts if isinstance(node, LISTS) else [node]
    return frozenset(
        item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )


def of_comparison(node: ast.Compare) -> Iterator[tuple[frozenset[str], str]]:
    """Yields the texts on each side with the other side, and the tables whose entry is on a side of `is`."""
    sides = [node.left, *node.comparators]
    for side in sides:
        yield words(side), " ".join(ast.unparse(other) for other in sides if other is not side)
        is_entry = isinstance(side, ast.Subscript) and isinstance(side.value, ast.Name)
        if is_entry and isinstance(node.ops[0], ast.Is | ast.IsNot):
            yield frozenset({ast.unparse(side.value)}), ""


def of_match(node: ast.Match) -> Iterator[tuple[frozenset[str], str]]:
    """Yields the texts of the cases with the subject, and their classes."""
    for pattern in (part for case in node.cases for part in ast.walk(case.pattern)):
        if isinstance(pattern, ast.MatchValue):
            yield words(pattern.value), ast.unparse(node.subject)
        elif isinstance(pattern, ast.MatchClass):
            yield frozenset({ast.unparse(pattern.cls)}), ""


def of_call(node: ast.Call) -> Iterator[tuple[frozenset[str], str]]:
    """Yields the text that another begins or ends with, or the classes that a value is asked for."""
    match node:
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith") as method, args=[argument, *_]):
            yield words(argument), ast.unparse(method.value)
        case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, kinds]):
            yield frozenset(part.id for part in ast.walk(kinds) if isinstance(part, ast.Name)), ""


def places(module: str, tree: ast.AST) -> Iterator[Place]:
    """Yields each comparison with a name, each question for a class, and each dictionary by names."""
    for node in ast.walk(tree):
        pairs: list[tuple[frozenset[str], str]] = []
        match node:
            case ast.Compare():
                pairs = [*of_comparison(node)] if words_below(node) & NAMES or has_is(node) else []
            case ast.Match():
                pairs = [*of_match(node)]
            case ast.Call():
                pairs = [*of_call(node)]
            case (
                ast.Assign(targets=[ast.Name(name)], value=ast.Dict(keys=keys))
                | ast.AnnAssign(target=ast.Name(name), value=ast.Dict(keys=keys))
            ):
                named = [word for key in keys for word in words(key)]
                if len(named) == len(keys) > 1:
                    yield Place(module, node.lineno, frozenset(named), name, is_dictionary=True)
        yield from (Place(module, node.lineno, names, other) for names, other in pairs if names)


def words_below(node: ast.Compare) -> frozenset[str]:
    """Returns the texts on all sides."""
    return frozenset().union(*map(words, [node.left, *node.comparators]))


def has_is(node: ast.Compare) -> bool:
    return any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)


NAMES = frozenset(name for table in TABLES for name in table.keys)


@cache
def all_places() -> list[Place]:
    return [place for name, module in modules().items() for place in places(name, module.tree)]


def breaches(table: Table, found: Collection[Place]) -> Iterator[str]:
    """Yields the places that tell entries of a table apart, outside of its entries."""
    for place in found:
        if within(place.module, *table.entries, *table.permitted):
            continue
        if place.is_dictionary:
            is_breach = place.names <= {*table.keys} and place.other not in table.places
        else:
            is_same = not table.compared or re.search(rf"\b(?:{table.compared})_?\b", place.other)
            is_breach = bool(place.names & {*table.keys} and is_same)
            is_breach = is_breach or bool(place.names & {*table.types, *table.places} and not place.other)
        if is_breach:
            names = ", ".join(sorted(place.names))
            yield f"{place.module}:{place.line}: tells {table.row} apart: {place.other} {names}"


def test_no_module_compares_the_name_of_an_entry() -> None:
    assert len(all_places()) > 100
    assert [breach for table in TABLES for breach in breaches(table, all_places())] == []


@pytest.mark.parametrize(
    ("row", "source"),
    [
        ("a kind of policy", 'if policy.kind != "quota": pass'),
        ("a kind of policy", 'is_surge = policy.kind.startswith("surge")'),
        ("a kind of policy", "x = isinstance(policy, Quota | Surge)"),
        ("a kind of policy", "match policy:\n    case LoadShare():\n        pass"),
        ("a log format", 'if mapping["format"] in ("json", "combined"): pass'),
        ("a log format", "x = log_format is FORMATS['combined']"),
        ("a join of meters", 'match meter.join:\n    case "max":\n        pass'),
        ("a database", 'if db.dialect.name == "postgresql": pass'),
        ("a database", 'EVERY_S = {"sqlite": 1, "postgresql": 2}'),
        ("a database", 'if url.get_backend_name() == "sqlite": pass'),
        ("a billing service", 'if format_ == "lago": pass'),
        ("a job", 'if name in {"end-locks"}: pass'),
        ("a page", 'x = page.path == "/callers"'),
    ],
)
def test_a_comparison_is_noticed(row: str, source: str) -> None:
    [table] = [table for table in TABLES if table.row == row]
    assert list(breaches(table, [*places("analyzer.faces.anything", ast.parse(source))]))


def test_a_permitted_module_compares_names() -> None:
    """A permission that nothing needs is taken away."""
    for table in TABLES:
        for place in table.permitted:
            of_place = [found for found in all_places() if within(found.module, place)]
            assert list(breaches(table._replace(permitted={}), of_place)), place


def test_tables_with_one_set_of_names_have_equal_names() -> None:
    assert POLICY_CLASSES.keys() == KINDS.keys()
    assert POLICY_TABLES.keys() == KIND_CHECKS.keys()
    assert FORMATS.keys() == {*FORMAT_NAMES} >= READERS.keys()
    assert JOINS.keys() == SQL_JOINS.keys()
    assert PATTERN_KINDS.keys() == {*get_args(PatternKind)} == PATTERN_EXAMPLES.keys() == TESTS.keys()
    assert {scheme.partition("+")[0] for scheme in SCHEMES} == DIALECTS.keys() == DATABASES.keys()
    assert DATABASES.keys() == NOW_MS.keys()
    assert not SERVICES.keys() & ROW_FORMATS.keys(), "one option takes both"


def test_the_guide_has_a_row_for_each_table_that_names_its_places() -> None:
    assert {table.row for table in TABLES} | OTHER_ROWS == ROWS.keys()
    missing = [
        f"{table.row}: {place}"
        for table in TABLES
        for place in table.places
        if not re.search(rf"\b{place}\b", ROWS[table.row])
    ]
    assert missing == []
