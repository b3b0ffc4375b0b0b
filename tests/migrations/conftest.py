"""An empty database for each test; on PostgreSQL one for all of them, emptied in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

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
