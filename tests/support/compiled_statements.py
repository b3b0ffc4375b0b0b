"""Statements are compiled once for all databases of a test run, instead of once for each engine.

A test opens an engine or several, and compiling its statements for each of them took two fifths of the time
of tests that use a database.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import sqlalchemy as sa

KEPT_MAX = 10_000


class CompiledStatements(dict[Any, Any]):
    """The statements of all engines of a driver. SQLAlchemy's keys begin with the dialect of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        if len(self) >= KEPT_MAX:
            self.clear()
        super().__setitem__(key[1:], compiled)


def share_compiled_statements() -> None:
    """Has all engines that are created from here on share compiled statements, by driver."""
    create_engine = sa.create_engine
    by_driver: MutableMapping[str, CompiledStatements] = {}

    def create(*arguments: Any, **options: Any) -> sa.Engine:
        engine = create_engine(*arguments, **options)
        kept = by_driver.setdefault(f"{engine.dialect.name}+{engine.driver}", CompiledStatements())
        engine.update_execution_options(compiled_cache=kept)
        return engine

    sa.create_engine = create
