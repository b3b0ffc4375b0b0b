"""Copies of a database that was migrated once, as if they had been migrated just now."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg

from tests.support.servers.postgres import dsn_of

NOW_MS = "cast(round((julianday('now') - 2440587.5) * 86400000) as integer)"
POSTGRES_NOW_MS = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
BEGIN = "update lock_history set began_ms = {} where scope = ''"


def copy_sqlite(template: Path, copy: Path) -> str:
    """Returns the URL of a copy whose history of locks begins now."""
    shutil.copyfile(template, copy)
    with closing(sqlite3.connect(copy)) as db, db:
        db.execute(BEGIN.format(NOW_MS))
    return f"sqlite:///{copy}"


def migrated_sqlite(folder: Path) -> str:
    """Returns the URL of the new, migrated database gatelock.db in `folder`, for tests without a fixture."""
    file = folder / "gatelock.db"
    file.write_bytes(_migrated_file())
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(BEGIN.format(NOW_MS))
    return f"sqlite:///{file}"


@cache
def _migrated_file() -> bytes:
    """Returns the content of a migrated file: to migrate one takes a tenth of a second."""
    from analyzer.kernel.database.migrate import upgrade

    with tempfile.TemporaryDirectory(prefix="gatelock-template-") as folder:
        upgrade(f"sqlite:///{folder}/gatelock.db")
        return Path(folder, "gatelock.db").read_bytes()


def begin_history(postgres_url: str) -> None:
    """Lets the history of locks begin now."""
    with psycopg.connect(dsn_of(postgres_url)) as db:
        db.execute(BEGIN.format(POSTGRES_NOW_MS))
