"""Who may import whom. Each law is one line, and the source is read, not run."""

from __future__ import annotations

import ast
import sys
from typing import NamedTuple

import pytest

from tests.house.reading import ROOT, Module, modules, within

EDGES = (
    "analyzer.store",
    "analyzer.kafka",
    "analyzer.files",
    "analyzer.formats",
    "analyzer.webhooks",
    "analyzer.config",
)
LOOP = ("analyzer.pipeline", "analyzer.warden", "analyzer.daemon")
FACES = ("analyzer.build", "analyzer.doctor", "analyzer.cli", "analyzer.web", "analyzer.demo")


class Law(NamedTuple):
    """`who` imports nothing of `never`, except what is within `but`."""

    who: tuple[str, ...]
    never: tuple[str, ...]
    but: tuple[str, ...] = ()


LAWS = {
    "applications get no analyzer": Law(("gatekeeper",), ("analyzer",)),
    "the analyzer shares the contract alone": Law(
        ("analyzer.core", *EDGES, *LOOP),
        ("gatekeeper",),
        (
            "gatekeeper.model",
            "gatekeeper.identity",
            "gatekeeper.feed.feed_json",
            "gatekeeper.telemetry.status_json",
        ),
    ),
    "the contract stands on nothing": Law(("gatekeeper.model", "gatekeeper.identity"), ("gatekeeper",)),
    "limits know the contract alone": Law(
        ("gatekeeper.limits",), ("gatekeeper",), ("gatekeeper.limits", "gatekeeper.model", "gatekeeper.clock")
    ),
    "sources do not know who asks them": Law(
        (
            "gatekeeper.sources",
            "gatekeeper.feed.saved_view",
            "gatekeeper.view.lock_view",
            "gatekeeper.feed.feed_json",
        ),
        ("gatekeeper.gate", "gatekeeper.feed.poller", "gatekeeper.adapters"),
    ),
    "a gate does not know what is refused through it": Law(
        ("gatekeeper.gate", "gatekeeper.feed.poller"), ("gatekeeper.adapters",)
    ),
    "the core knows itself and the contract": Law(
        ("analyzer.core",),
        ("analyzer", "gatekeeper"),
        ("analyzer.core", "gatekeeper.model", "gatekeeper.identity"),
    ),
    "the core reads no clock and does no input or output": Law(
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
    "the loop sees edges through protocols": Law(LOOP, EDGES),
    "edges do not know the loop": Law((*EDGES, "analyzer.sources"), (*LOOP, *FACES)),
    "only faces know how parts are put together": Law(LOOP, FACES),
    **{f"{edge} knows no other edge": Law((edge,), EDGES, (edge,)) for edge in EDGES},
}

# Which guest sits where. A new one, or one in another room, is a line here first. The store has SQL,
# the core has what turns bytes into numbers, and gates have nothing until it is chosen.
GUESTS = {
    "alembic": ("analyzer.store",),
    "asgiref": ("gatekeeper.adapters.django",),
    "confluent_kafka": ("analyzer.demo",),
    "cramjam": ("analyzer.core",),
    "crc32c": ("analyzer.core",),
    "django": ("gatekeeper.adapters.django",),
    "fastapi": ("analyzer.web", "gatekeeper.adapters.fastapi"),
    "flask": ("gatekeeper.adapters.flask",),
    "h11": ("analyzer.web.uvicorn_internals",),  # what uvicorn reads HTTP with
    "kafka": ("analyzer.kafka", "analyzer.demo", "gatekeeper.requestlog.kafka"),
    "lz4": ("analyzer.core",),
    "msgspec": ("analyzer.core", "analyzer.store", "analyzer.files", "analyzer.cli", "analyzer.demo"),
    "prometheus_client": ("analyzer.metrics", "analyzer.web"),
    "psycopg": ("analyzer.store",),
    "pydantic": ("analyzer.config", "analyzer.config.settings", "analyzer.web"),
    "pydantic_core": ("analyzer.config", "analyzer.config.settings"),
    "pydantic_settings": ("analyzer.config", "analyzer.config.settings"),
    "redis": ("gatekeeper.limits.redis",),
    "pytest": ("gatekeeper.testing.plugin",),
    "rich": ("analyzer.cli", "analyzer.demo"),
    "snappy": ("analyzer.core",),
    "sqlalchemy": (
        "analyzer.store",
        "analyzer.build",
        "analyzer.cli",
        "analyzer.demo",
        "analyzer.doctor",
        "gatekeeper.sources.sql",
    ),
    "starlette": ("analyzer.web",),
    "typer": ("analyzer.cli", "analyzer.demo"),
    "uvicorn": ("analyzer.web", "analyzer.cli", "analyzer.demo"),
    "werkzeug": ("gatekeeper.adapters.flask",),
    "zstandard": ("analyzer.core",),
}
# Within the core they sit in these files alone.
CODECS = ("cramjam", "crc32c", "lz4", "snappy", "zstandard")
CODEC_FILES = ("analyzer.core.kafka_format.record_batches", "analyzer.core.kafka_format.codecs")


def broken(law: Law, module: Module) -> list[str]:
    """Where `module` breaks `law`, as file:line and what it imports."""
    if not within(module.name, *law.who):
        return []
    return [
        f"{module.path}:{line}: {name}"
        for line, name in module.imports()
        if within(name, *law.never) and not within(name, *law.but)
    ]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_no_import_breaks_the_law(law: Law) -> None:
    assert [breach for module in modules().values() for breach in broken(law, module)] == []


def test_guests_sit_where_they_were_asked_to() -> None:
    ours = {"analyzer", "gatekeeper"} | sys.stdlib_module_names
    strangers = [
        f"{module.path}:{line}: {name}"
        for module in modules().values()
        for line, name in module.imports()
        if (guest := name.partition(".")[0]) not in ours and not within(module.name, *GUESTS.get(guest, ()))
    ]
    assert strangers == []


def test_codecs_sit_in_the_files_that_unpack_batches() -> None:
    elsewhere = [
        f"{module.path}:{line}: {name}"
        for module in modules().values()
        for line, name in module.imports()
        if within(name, *CODECS) and not within(module.name, *CODEC_FILES)
    ]
    assert elsewhere == []


def test_the_core_is_handed_the_time() -> None:
    asked = [
        f"{module.path}:{node.lineno}: .{node.func.attr}()"
        for module in modules().values()
        if within(module.name, "analyzer.core")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"now", "today", "utcnow"}
    ]
    assert asked == []


@pytest.mark.parametrize(
    "line",
    [
        "import analyzer.store.database.schema",
        "from analyzer.store import schema",
        "from analyzer import store",
        "def late():\n    import analyzer.kafka_raw as raw",
        "if TYPE_CHECKING:\n    from analyzer.files import Tail",
    ],
)
def test_a_breach_is_seen_however_it_is_written(line: str) -> None:
    module = Module("analyzer.pipeline", ROOT / "analyzer" / "pipeline.py", ast.parse(line))
    assert broken(LAWS["the loop sees edges through protocols"], module)
