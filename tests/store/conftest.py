"""Migrated databases, and the store's parts on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from tests.store.simulated_analyzers import empty_tables
from tests.support.fresh_databases import copy_sqlite
from tests.support.lock_order import LockRecorder
from tests.support.upkeep import Upkeep

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres


@pytest.fixture(scope="session")
def lock_recorder() -> Iterator[LockRecorder]:
    recorder = LockRecorder()
    with recorder.recording():
        yield recorder


@pytest.fixture(autouse=True)
def _rows_are_locked_in_one_order(
    lock_recorder: LockRecorder, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Fails a test in which a transaction has locked rows against the order of all transactions."""
    yield
    wrong, lock_recorder.wrong = lock_recorder.wrong, {}
    assert not wrong or "mutated" in request.keywords, f"see tests/support/lock_order.py: {wrong}"


@pytest.fixture(scope="session")
def shared_postgres_url(postgres: Postgres, postgres_template: str) -> str:
    return postgres.new_database(template=postgres_template)


@pytest.fixture
def migrated_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a migrated and empty database.

    On PostgreSQL all tests of a process use one after the other, because to create and drop one takes a third
    of a second.
    """
    if database == "sqlite":
        return copy_sqlite(request.getfixturevalue("sqlite_template"), tmp_path / "gatelock.db")
    url: str = request.getfixturevalue("shared_postgres_url")
    engine = open_engine(url)
    empty_tables(engine)
    engine.dispose()
    return url


@pytest.fixture
def separate_postgres_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    """The URL of a migrated database that no other test uses: its settings may be changed."""
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture
def new_engine(migrated_url: str) -> Iterator[Callable[[], sa.Engine]]:
    """Opens further engines of one database, as each analyzer has one."""
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
    """Marks in the order in which they were taken: a1, a2, ..."""
    numbers = count(1)
    return lambda: f"a{next(numbers)}"


@pytest.fixture
def store(engine: sa.Engine, marks: Callable[[], str]) -> SqlStore:
    return SqlStore(engine, "here", marks)


@pytest.fixture
def upkeep(engine: sa.Engine, marks: Callable[[], str]) -> Upkeep:
    return Upkeep(engine, marks)
