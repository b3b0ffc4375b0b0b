"""Import laws of both packages. The source is read, not run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.house.reading import ROOT, Import, Module, circles, imported_modules, modules, within

EDGES = ("analyzer.store", "analyzer.kafka", "analyzer.files", "analyzer.config")
LOOP = ("analyzer.pipeline", "analyzer.flush_executors", "analyzer.jobs", "analyzer.daemon")
COMMAND_LINE = ("analyzer.build", "analyzer.doctor", "analyzer.cli", "analyzer.web", "analyzer.demo")


class Law(NamedTuple):
    """Modules within `who` import nothing within `never`, except what is within `but`."""

    who: tuple[str, ...]
    never: tuple[str, ...]
    but: tuple[str, ...] = ()


LAWS = {
    "the gatekeeper imports nothing of the analyzer": Law(("gatekeeper",), ("analyzer",)),
    "the analyzer shares the contract alone": Law(
        ("analyzer.core", *EDGES, *LOOP),
        ("gatekeeper",),
        (
            "gatekeeper.model",
            "gatekeeper.identity",
            "gatekeeper.feed.feed_json",
            "gatekeeper.sources.postgres_sessions",
            "gatekeeper.telemetry.status_json",
        ),
    ),
    "the contract imports nothing of the gatekeeper": Law(
        ("gatekeeper.model", "gatekeeper.identity"), ("gatekeeper",)
    ),
    "limiters import the contract, the pace of logs and the hooks for forks alone": Law(
        ("gatekeeper.limits",),
        ("gatekeeper",),
        ("gatekeeper.limits", "gatekeeper.lifecycle", "gatekeeper.log_pace", "gatekeeper.model"),
    ),
    "limiters without Redis": Law(
        tuple(
            f"gatekeeper.limits.{package}" for package in ("engine", "algorithms", "composites", "schedulers")
        ),
        ("gatekeeper.limits.redis",),
    ),
    "schedulers import no composites": Law(
        ("gatekeeper.limits.schedulers",), ("gatekeeper.limits.composites",)
    ),
    "the gate does not import what refuses requests through it": Law(
        ("gatekeeper.gate", "gatekeeper.feed"), ("gatekeeper.adapters", "gatekeeper.requestlog")
    ),
    "the core imports itself and the contract alone": Law(
        ("analyzer.core",),
        ("analyzer", "gatekeeper"),
        ("analyzer.core", "gatekeeper.model", "gatekeeper.identity"),
    ),
    "the core reads no clock and does no I/O": Law(
        ("analyzer.core",),
        (
            *(
                "asyncio",
                "http",
                "logging",
                "multiprocessing",
                "os",
                "pathlib",
                "random",
                "secrets",
                "select",
            ),
            *("signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib"),
        ),
    ),
    "the health of gates is apart from counting and judging": Law(
        ("analyzer.core.fleet",),
        ("analyzer.core.counting", "analyzer.core.judging", "analyzer.core.kafka_format"),
    ),
    "counting and judging are apart from the health of gates": Law(
        tuple(f"analyzer.core.{chapter}" for chapter in ("kafka_format", "records", "counting", "judging")),
        ("analyzer.core.fleet",),
    ),
    "the loop sees edges through protocols": Law(LOOP, EDGES),
    "edges do not import the loop": Law((*EDGES, "analyzer.sources"), (*LOOP, *COMMAND_LINE)),
    "the loop does not import how it is put together": Law(LOOP, COMMAND_LINE),
    "what commands and the web API share imports neither": Law(("analyzer.answers",), COMMAND_LINE),
    "the web server does not import the command line": Law(("analyzer.web",), ("analyzer.cli",)),
    "what commands run does not import the command line": Law(
        ("analyzer.doctor", "analyzer.retry"), ("analyzer.cli", "analyzer.web", "analyzer.demo")
    ),
    "a look at a log needs no database, no Kafka and no configuration": Law(
        ("analyzer.preview",),
        (*EDGES, *LOOP, *COMMAND_LINE),
        ("analyzer.files.line_reader", "analyzer.files.compressed_files"),
    ),
    "commands about things import no verbs": Law(("analyzer.cli.nouns",), ("analyzer.cli.verbs",)),
    "the second counter shares no code with the first": Law(
        ("analyzer.recount",), ("analyzer", "gatekeeper"), ("analyzer.recount",)
    ),
    "the second counter reads logs without the first": Law(
        ("analyzer.day_recount", "analyzer.kafka.probes.plain_records", "analyzer.files.plain_lines"),
        (
            "analyzer.core.counting",
            "analyzer.core.records",
            "analyzer.core.kafka_format",
            "analyzer.kafka.client",
            "analyzer.kafka.internals",
        ),
    ),
    "the wall around kafka-python imports values of the rest alone": Law(
        ("analyzer.kafka.internals",),
        ("analyzer.kafka",),
        ("analyzer.kafka.internals", "analyzer.kafka.metadata", "analyzer.kafka.options"),
    ),
    **{f"{edge} imports no other edge": Law((edge,), EDGES, (edge,)) for edge in EDGES},
}

# Packages from the bottom up: none imports one that stands behind it.
LAYERS = {
    "the core": (
        "analyzer.core.delays",
        "analyzer.core.model",
        "analyzer.core.kafka_format",
        "analyzer.core.records",
        "analyzer.core.counting",
        "analyzer.core.judging",
    ),
    "the store": (
        "analyzer.store.database",
        "analyzer.store.transaction",
        "analyzer.store.reports",
        "analyzer.store.operations",
    ),
    "the gate": (
        "gatekeeper.model",
        "gatekeeper.view",
        "gatekeeper.feed",
        "gatekeeper.telemetry",
        "gatekeeper.sources",
        "gatekeeper.gate_options",
        "gatekeeper.gate",
        "gatekeeper.adapters",
        "gatekeeper.requestlog",
        "gatekeeper.testing",
    ),
    "the limiters": (
        "gatekeeper.limits.engine",
        "gatekeeper.limits.algorithms",
        "gatekeeper.limits.composites",
        "gatekeeper.limits.redis",
    ),
}

# Modules that may import each third-party package. The store has SQL, the core has codecs and parsers, and
# the gatekeeper imports nothing unless an application chose it.
GUESTS = {
    "alembic": ("analyzer.store.database.migrate",),
    "apscheduler": ("analyzer.jobs.job_scheduler",),
    "asgiref": ("gatekeeper.adapters.django",),
    "confluent_kafka": ("analyzer.demo", "gatekeeper.requestlog.confluent"),
    "cramjam": ("analyzer.core.kafka_format",),
    "crc32c": ("analyzer.core.kafka_format",),
    "django": ("gatekeeper.adapters.django",),
    "fastapi": ("analyzer.web", "gatekeeper.adapters.fastapi"),
    "flask": ("gatekeeper.adapters.flask",),
    "h11": ("analyzer.web.uvicorn_internals", "analyzer.web.long_polls"),  # what uvicorn reads HTTP with
    "kafka": ("analyzer.kafka", "analyzer.demo", "gatekeeper.requestlog.kafka"),
    "lz4": ("analyzer.core.kafka_format",),
    "msgspec": ("analyzer.core", "analyzer.cli.output"),  # rows as JSON, in millions
    "prometheus_client": ("analyzer.metrics", "gatekeeper.telemetry.prometheus"),
    "pyarrow": ("analyzer.report_files.parquet_rows",),
    "pydantic": ("analyzer.config",),
    "pydantic_core": ("analyzer.config",),
    "pydantic_settings": ("analyzer.config",),
    "pytest": ("gatekeeper.testing.plugin",),
    "redis": ("gatekeeper.limits.redis",),
    "rich": ("analyzer.cli", "analyzer.demo"),
    "sqlalchemy": (
        "analyzer.config.tables.database",  # parses URLs as the engine does
        "analyzer.store",
        "analyzer.build",
        "analyzer.cli",
        "analyzer.day_recount",
        "analyzer.demo",
        "analyzer.doctor",
        "analyzer.log_replay",
        "analyzer.report_files",
        "gatekeeper.sources.postgres_sessions",
        "gatekeeper.sources.sql",
    ),
    "jinja2": ("analyzer.web.dashboard",),
    "starlette": ("analyzer.web",),
    "typer": ("analyzer.cli",),
    "uvicorn": ("analyzer.web", "analyzer.demo"),
    "werkzeug": ("gatekeeper.adapters.flask",),
    "zstandard": ("analyzer.core.kafka_format", "analyzer.files.compressed_files"),
}
OURS = {"analyzer", "gatekeeper"}


def upwards(layers: tuple[str, ...]) -> Iterator[Law]:
    """Yields a law for each layer: it imports none of those above."""
    for place, layer in enumerate(layers[:-1], 1):
        yield Law((layer,), layers[place:])


ALL_LAWS = LAWS | {
    f"{law.who[0]} is below {law.never[0]}": law for layers in LAYERS.values() for law in upwards(layers)
}


def breaches(law: Law, module: Module) -> Iterator[Import]:
    """Yields the imports of `module` that break `law`."""
    if within(module.name, *law.who):
        for imported in module.imports():
            if within(imported.name, *law.never) and not within(imported.name, *law.but):
                yield imported


@pytest.mark.parametrize("name", ALL_LAWS)
def test_no_import_breaks_the_law(name: str) -> None:
    law = ALL_LAWS[name]
    found = [
        f"{module.path}:{line}: {name}"
        for module in modules().values()
        for line, name, _ in breaches(law, module)
    ]
    assert found == []


@pytest.mark.parametrize("law", ALL_LAWS.values(), ids=ALL_LAWS.keys())
def test_a_law_names_existing_modules_and_needs_its_exceptions(law: Law) -> None:
    """A law about a module that was renamed or never written holds for nothing."""
    roots = {root for root in (*law.who, *law.never, *law.but) if within(root, *OURS)}
    assert {root for root in roots if not any(within(name, root) for name in modules())} == set()
    assert set(law.never) - roots <= sys.stdlib_module_names
    used = {
        root
        for module in modules().values()
        for imported in breaches(law._replace(but=()), module)
        for root in law.but
        if within(imported.name, root)
    }
    assert set(law.but) - used == set()


def test_third_party_packages_are_imported_where_they_are_permitted() -> None:
    found = [
        f"{module.path}:{line}: {name}"
        for module in modules().values()
        for line, name, _ in module.imports()
        if (guest := name.partition(".")[0]) not in OURS | sys.stdlib_module_names
        and not within(module.name, *GUESTS.get(guest, ()))
    ]
    assert found == []


@pytest.mark.parametrize("guest", GUESTS)
def test_every_permission_is_used(guest: str) -> None:
    users = [
        module.name
        for module in modules().values()
        if any(within(imported.name, guest) for imported in module.imports())
    ]
    places = GUESTS[guest]
    assert [place for place in places if not any(within(user, place) for user in users)] == []
    assert [place for place in places for other in places if place != other and within(place, other)] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: imported_modules(module, for_types=False) for name, module in modules().items()}
    assert circles(graph) == []


def test_no_circle_is_closed_by_imports_for_types() -> None:
    """The type checker could live with it; a reader has to know all of its modules at once."""
    graph = {name: imported_modules(module, for_types=True) for name, module in modules().items()}
    assert circles(graph) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert circles(graph) == [["b", "c"], ["d", "e"]]


def test_the_core_calls_no_clock() -> None:
    found = [
        f"{module.path}:{node.lineno}: .{node.func.attr}()"
        for module in modules().values()
        if within(module.name, "analyzer.core")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"now", "today", "utcnow"}
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import analyzer.store.database.schema",
        "from analyzer.store import database",
        "from analyzer import store",
        "def late():\n    import analyzer.kafka.client as client",
        "if TYPE_CHECKING:\n    from analyzer.files import FileRecords",
    ],
)
def test_a_breach_is_found_in_every_form_of_import(line: str) -> None:
    module = Module("analyzer.pipeline", ROOT / "analyzer" / "pipeline.py", ast.parse(line))
    assert list(breaches(LAWS["the loop sees edges through protocols"], module))


def test_a_name_that_only_begins_like_a_package_is_not_within_it() -> None:
    assert not within("analyzer.kafka_raw", "analyzer.kafka")
    assert within("analyzer.kafka.internals", "analyzer.kafka")


def test_the_second_counter_needs_nothing_but_the_standard_library() -> None:
    """Neither what it imports itself, nor what that imports, is of the first counter."""
    found = {
        name.partition(".")[0]
        for module in modules().values()
        if within(module.name, "analyzer.recount")
        for _, name, _ in module.imports()
    }
    assert found - sys.stdlib_module_names == {"analyzer"}
