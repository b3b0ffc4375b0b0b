"""Worlds that are opened by a configuration, and closed with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from tests.support.fresh_databases import copy_sqlite
from tests.support.whole_loop import World

OpenWorld = Callable[[str], World]


@pytest.fixture
def open_world(sqlite_template: Path, tmp_path: Path) -> Iterator[OpenWorld]:
    """Opens a world by the text of a configuration, whose analyzer and gate have begun."""
    opened: list[World] = []

    def open_world(configuration: str) -> World:
        url = copy_sqlite(sqlite_template, tmp_path / "gatelock.db")
        (tmp_path / "gatelock.toml").write_text(configuration)
        world = World(url, InlineFlushes(), load(tmp_path / "gatelock.toml").plan())
        opened.append(world)
        world.gate.ready(1)
        world.pass_s(1)
        return world

    yield open_world
    for world in opened:
        world.close()
