"""The databases for tests."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from tests.support.servers.postgres import NativePostgres, Postgres, dsn_of


def test_each_test_has_a_separate_empty_database(database_url: str, database: str) -> None:
    engine = create_engine(database_url)
    try:
        with engine.begin() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
            # Fails when another test has created it here.
            connection.execute(text("CREATE TABLE mine (id integer)"))
    finally:
        engine.dispose()
    assert make_url(database_url).get_backend_name() == database


test_and_the_next_test_does_not_see_it = test_each_test_has_a_separate_empty_database


def test_a_database_is_copied_with_its_contents(postgres: Postgres) -> None:
    first = postgres.new_database()
    with psycopg.connect(dsn_of(first)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    with psycopg.connect(dsn_of(postgres.new_database(template=first))) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)


def test_a_database_is_dropped_under_a_client_that_is_still_connected(postgres: Postgres) -> None:
    url = postgres.new_database()
    with psycopg.connect(dsn_of(url)) as connection:
        postgres.drop(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_killed_server_keeps_what_it_committed(own_postgres: NativePostgres) -> None:
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    own_postgres.kill()
    own_postgres.start()
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)


def test_a_paused_server_does_not_answer_until_it_is_resumed(own_postgres: NativePostgres) -> None:
    own_postgres.pause()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(own_postgres.dsn, connect_timeout=2)
    own_postgres.resume()
    psycopg.connect(own_postgres.dsn).close()
