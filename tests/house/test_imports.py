"""Import laws of both packages. The source is read, not run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.house.reading import PURE, ROOT, Import, Module, circles, imported_modules, modules, within

CHAPTERS = (  # from the bottom up: none imports one that stands behind it
    *("kernel", "plan", "sources", "server", "counting", "judging", "callers", "billing", "gates"),
    *(
        "forecast",
        "flush",
        "replay",
        "restore",
        "delays",
        "alerts",
        "maintenance",
        "callers.forgetting",
        "config",
        "acting",
    ),
    # Acts compose what several chapters do, each in the chapter that it is about.
    *("judging.lock_acts", "callers.caller_file", "callers.caller_acts", "gates.gate_acts"),
    *("flush.plan_acts", "maintenance.job_acts", "alerts.alert_acts", "demo"),
)
ASSEMBLY = ("analyzer.build", "analyzer.daemon", "analyzer.watchdog", "analyzer.garbage_collector")
LOOP = (
    *("analyzer.flush.pipeline", "analyzer.flush.flush_executors", "analyzer.maintenance.job_runner"),
    "analyzer.daemon",
)
EDGES = ("analyzer.sources.kafka", "analyzer.sources.files", "analyzer.config")
COMMAND_LINE = ("analyzer.build", "analyzer.faces", "analyzer.demo")


class Law(NamedTuple):
    """Modules within `who` import nothing within `never` but what is within `but`, or among themselves."""

    who: tuple[str, ...]
    never: tuple[str, ...]
    but: tuple[str, ...] = ()
    among_themselves: bool = False


LAWS = {
    "the gatekeeper imports nothing of the analyzer": Law(("gatekeeper",), ("analyzer",)),
    "the analyzer shares the contract alone": Law(
        tuple(f"analyzer.{chapter}" for chapter in CHAPTERS if chapter != "demo"),
        ("gatekeeper",),
        (
            "gatekeeper.model",
            "gatekeeper.identity",
            "gatekeeper.feed.feed_json",
            "gatekeeper.log_pace",
            "gatekeeper.sources.postgres_sessions",
            "gatekeeper.sources.timed_connection",
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
    "what is pure imports what is pure, and the contract": Law(
        PURE, ("analyzer", "gatekeeper"), ("gatekeeper.model", "gatekeeper.identity"), among_themselves=True
    ),
    "what is pure reads no clock and does no I/O": Law(
        PURE,
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
            *(
                "signal",
                "socket",
                "sqlalchemy",
                "sqlite3",
                "ssl",
                "subprocess",
                "tempfile",
                "threading",
                "time",
            ),
            "urllib",
        ),
    ),
    "the health of gates is apart from counting and judging": Law(
        ("analyzer.gates.gate_health", "analyzer.gates.fleet_summary", "analyzer.gates.unknown_callers"),
        ("analyzer.counting.counter", "analyzer.judging.kinds", "analyzer.sources.batches"),
    ),
    "the loop sees edges through protocols": Law(LOOP, EDGES),
    "edges do not import the loop": Law((*EDGES, "analyzer.sources.positions"), LOOP),
    "the loop does not import how it is put together": Law(LOOP, COMMAND_LINE),
    "how it is put together imports no face": Law(ASSEMBLY, ("analyzer.faces", "analyzer.demo")),
    "what several faces show imports no face": Law(
        (
            "analyzer.faces.acts",
            "analyzer.faces.day_answers",
            "analyzer.faces.explanation",
            "analyzer.faces.live_callers",
            "analyzer.faces.simulation_report",
            "analyzer.faces.table_rows",
        ),
        tuple(f"analyzer.faces.{face}" for face in ("api", "cli", "feed", "pages", "signals", "tui")),
    ),
    "what is served does not import the command line": Law(
        ("analyzer.faces.api", "analyzer.faces.feed", "analyzer.faces.pages", "analyzer.faces.signals"),
        ("analyzer.faces.cli",),
    ),
    "a look at a log needs no database, no Kafka and no configuration": Law(
        ("analyzer.forecast.look",),
        (*EDGES, *LOOP, *COMMAND_LINE, "analyzer.kernel.database", "analyzer.kernel.tables"),
        ("analyzer.sources.files.line_reader", "analyzer.sources.files.compressed_files"),
    ),
    "commands about things import no verbs": Law(
        ("analyzer.faces.cli.nouns",), ("analyzer.faces.cli.verbs",)
    ),
    "the second counter shares no code with the first": Law(
        ("analyzer.billing.recount",), ("analyzer", "gatekeeper"), ("analyzer.billing.recount",)
    ),
    "the second counter reads logs without the first": Law(
        (
            "analyzer.billing.day_recount",
            "analyzer.sources.kafka.probes.plain_records",
            "analyzer.sources.files.plain_lines",
        ),
        (
            "analyzer.counting.counter",
            "analyzer.counting.records",
            "analyzer.sources.batches",
            "analyzer.sources.kafka.client",
            "analyzer.sources.kafka.internals",
        ),
    ),
    "the wall around kafka-python imports values of the rest alone": Law(
        ("analyzer.sources.kafka.internals",),
        ("analyzer.sources.kafka",),
        (
            "analyzer.sources.kafka.connection_errors",
            "analyzer.sources.kafka.fetched_batches",
            "analyzer.sources.kafka.internals",
            "analyzer.sources.kafka.metadata",
            "analyzer.sources.kafka.options",
        ),
    ),
    **{f"{edge} imports no other edge": Law((edge,), EDGES, (edge,)) for edge in EDGES},
}

# Packages from the bottom up: none imports one that stands behind it.
LAYERS = {
    "counting": ("analyzer.counting.records", "analyzer.counting.counter"),
    "the database": ("analyzer.kernel.tables.table_columns", "analyzer.kernel.database.engine"),
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
    "alembic": ("analyzer.kernel.database.migrate",),
    "apscheduler": ("analyzer.maintenance.job_scheduler",),
    "asgiref": ("gatekeeper.adapters.django",),
    "confluent_kafka": ("analyzer.demo", "gatekeeper.requestlog.confluent"),
    "cramjam": ("analyzer.sources.batches",),
    "crc32c": ("analyzer.sources.batches",),
    "django": ("gatekeeper.adapters.django",),
    "fastapi": ("analyzer.faces", "analyzer.server", "gatekeeper.adapters.fastapi"),
    "flask": ("gatekeeper.adapters.flask",),
    "h11": (
        "analyzer.server.uvicorn_internals",
        "analyzer.faces.feed.long_polls",
    ),  # what uvicorn reads HTTP with
    "kafka": ("analyzer.sources.kafka", "analyzer.demo", "gatekeeper.requestlog.kafka"),
    "lz4": ("analyzer.sources.batches",),
    "msgspec": (
        "analyzer.billing.dependent_readers",
        "analyzer.counting",
        "analyzer.faces.cli.output",
        "analyzer.judging",
        "analyzer.plan",
        "analyzer.replay.replayed_plan",
    ),  # rows as JSON, in millions
    "prometheus_client": (
        "analyzer.faces.signals.metrics",
        "analyzer.faces.signals.open_telemetry",
        "analyzer.faces.signals.telemetry_switch",
        "gatekeeper.telemetry.prometheus",
    ),
    "pyarrow": ("analyzer.billing.reports.parquet_rows",),
    "pydantic": ("analyzer.config", "analyzer.kernel.secrets"),
    "pydantic_core": ("analyzer.config", "analyzer.kernel.refused_values"),
    "pydantic_settings": ("analyzer.config",),
    "pytest": ("gatekeeper.testing.plugin",),
    "redis": ("gatekeeper.limits.redis",),
    "rich": ("analyzer.faces.cli", "analyzer.demo", "analyzer.faces.tui.top_app"),
    "sqlalchemy": (  # and nothing that is pure
        "analyzer.config.tables.database",  # parses URLs as the engine does
        *(
            f"analyzer.{chapter}"
            for chapter in ("alerts", "billing", "build", "callers", "counting", "delays", "demo")
        ),
        *(f"analyzer.{chapter}" for chapter in ("faces", "flush", "forecast.simulation", "gates")),
        *(f"analyzer.{chapter}" for chapter in ("judging", "kernel", "maintenance", "replay", "restore")),
        *("analyzer.plan.catalog", "analyzer.plan.counted_stretches", "analyzer.plan.stretches"),
        *("gatekeeper.sources.postgres_sessions", "gatekeeper.sources.sql"),
    ),
    "jinja2": ("analyzer.faces.pages",),
    "markupsafe": ("analyzer.faces.pages",),
    "starlette": ("analyzer.faces", "analyzer.server"),
    "textual": ("analyzer.faces.tui.top_app",),
    "opentelemetry": ("analyzer.faces.signals.open_telemetry",),
    "click": ("analyzer.faces.cli",),
    "uvicorn": ("analyzer.server", "analyzer.demo"),
    "werkzeug": ("gatekeeper.adapters.flask",),
    "zstandard": ("analyzer.sources.batches", "analyzer.sources.files.compressed_files"),
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
            permitted = (*law.but, *law.who) if law.among_themselves else law.but
            if within(imported.name, *law.never) and not within(imported.name, *permitted):
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
    assert set(law.never) - roots <= {*sys.stdlib_module_names, *GUESTS}
    used = {
        root
        for module in modules().values()
        for imported in breaches(law._replace(but=()), module)
        for root in law.but
        if within(imported.name, root)
    }
    assert set(law.but) - used == set()


def chapter_of(name: str) -> int | None:
    """Returns the place of a module's chapter; None for the assembly and the faces."""
    found = [place for place, chapter in enumerate(CHAPTERS) if within(name, f"analyzer.{chapter}")]
    return max(found, key=lambda place: len(CHAPTERS[place]), default=None)


def from_above(module: Module) -> list[str]:
    """Returns what a module of a chapter imports from chapters above it, or from what is above all."""
    place = chapter_of(module.name)
    if place is None:
        return []
    return [
        name
        for _, name, _ in module.imports()
        if within(name, "analyzer")
        if (other := chapter_of(name)) is None or other > place
    ]


def test_every_module_is_of_a_chapter_the_assembly_or_a_face() -> None:
    without = [name for name in modules() if within(name, "analyzer") and chapter_of(name) is None]
    assert [name for name in without if not within(name, *ASSEMBLY, "analyzer.faces")] == ["analyzer"]


def test_no_chapter_imports_one_above_it() -> None:
    upwards = {name: found for name, module in modules().items() if (found := from_above(module))}
    assert upwards == {}


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


def test_pure_modules_call_no_clock() -> None:
    found = [
        f"{module.path}:{node.lineno}: .{node.func.attr}()"
        for module in modules().values()
        if within(module.name, *PURE)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"now", "today", "utcnow"}
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import analyzer.sources.files.file_sources",
        "from analyzer.sources import kafka",
        "from analyzer import config",
        "def late():\n    import analyzer.sources.kafka.client as client",
        "if TYPE_CHECKING:\n    from analyzer.sources.files import FileRecords",
    ],
)
def test_a_breach_is_found_in_every_form_of_import(line: str) -> None:
    module = Module(
        "analyzer.flush.pipeline", ROOT / "analyzer/flush/pipeline.py", lambda _path: ast.parse(line)
    )
    assert list(breaches(LAWS["the loop sees edges through protocols"], module))


def test_a_name_that_only_begins_like_a_package_is_not_within_it() -> None:
    assert not within("analyzer.kafka_raw", "analyzer.sources.kafka")
    assert within("analyzer.sources.kafka.internals", "analyzer.sources.kafka")


def test_the_second_counter_needs_nothing_but_the_standard_library() -> None:
    """Neither what it imports itself, nor what that imports, is of the first counter."""
    found = {
        name.partition(".")[0]
        for module in modules().values()
        if within(module.name, "analyzer.billing.recount")
        for _, name, _ in module.imports()
    }
    assert found - sys.stdlib_module_names == {"analyzer"}
