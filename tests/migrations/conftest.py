"""An empty database for each test; on PostgreSQL one per worker, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres


@pytest.fixture(scope="session")
def shared_postgres_url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def database_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if database == "sqlite":
        return f"sqlite:///{tmp_path}/gatelock.db"
    from tests.support.servers.postgres import dsn_of

    url: str = request.getfixturevalue("shared_postgres_url")
    with psycopg.connect(dsn_of(url), autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """Connections to the test's database, which is empty at first."""
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def migrated(migrated_url: str) -> Iterator[sa.Engine]:
    """Connections to a database with all tables."""
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()
