"""A migrated database and what stands on it, for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import sqlalchemy as sa

from analyzer.store.engine import open_engine
from analyzer.store.store import SqlStore
from analyzer.store.upkeep import Upkeep


@pytest.fixture
def new_engine(migrated_url: str) -> Iterator[Callable[[], sa.Engine]]:
    """Engines of one database: every analyzer has its own."""
    opened: list[sa.Engine] = []

    def open_another() -> sa.Engine:
        opened.append(open_engine(migrated_url))
        return opened[-1]

    yield open_another
    for engine in opened:
        engine.dispose()


@pytest.fixture
def engine(new_engine: Callable[[], sa.Engine]) -> sa.Engine:
    return new_engine()


@pytest.fixture
def marks() -> Callable[[], str]:
    """Marks that tell in which order they were given: a1, a2, ..."""
    numbers = count(1)
    return lambda: f"a{next(numbers)}"


@pytest.fixture
def store(engine: sa.Engine, marks: Callable[[], str]) -> SqlStore:
    return SqlStore(engine, "here", marks)


@pytest.fixture
def upkeep(engine: sa.Engine, marks: Callable[[], str]) -> Upkeep:
    return Upkeep(engine, "here", marks)
