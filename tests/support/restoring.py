"""A copy of a database, and the database as it was when the copy was made."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import psycopg
import sqlalchemy as sa
from psycopg import sql


def backed_up(engine: sa.Engine) -> Callable[[], None]:
    """Copies the database; returns what restores it."""
    engine.dispose()
    return _sqlite(engine) if engine.dialect.name == "sqlite" else _postgresql(engine)


def _sqlite(engine: sa.Engine) -> Callable[[], None]:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(sqlite3.connect(str(engine.url.database))) as database:
        database.backup(copy)

    def restore() -> None:
        engine.dispose()
        with closing(sqlite3.connect(str(engine.url.database))) as database:
            copy.backup(database)

    return restore


def _postgresql(engine: sa.Engine) -> Callable[[], None]:
    url = engine.url
    name, copy = str(url.database), f"{url.database}_copy"
    dsn = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)

    def make(new: str, template: str) -> None:
        engine.dispose()
        with psycopg.connect(dsn, autocommit=True) as server:
            for words in ("drop database if exists {} with (force)", "create database {} template {}"):
                server.execute(sql.SQL(words).format(sql.Identifier(new), sql.Identifier(template)))

    make(copy, name)
    return lambda: make(name, copy)
