"""One consistent copy of the database with the files that belong to it, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import stored_days
from analyzer.billing.reports.atomic_files import file_at
from analyzer.billing.reports.manifest import WrittenFile
from analyzer.kernel.database.chain import tip
from analyzer.kernel.database.engine import reading
from analyzer.kernel.errors import BackupFailed
from analyzer.kernel.tables.billing_tables import days

SCHEMA = 1
LIST = "backup.json"
DUMP_MAX_S = 24 * 3_600
OF_CONNECTION = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "service",
    "passfile",
    "options",
)


class Backup(NamedTuple):
    """A backup as its list has it.

    Attributes:
        folder: Its own.
        files: What is in it.
        entries: Of the chain, at the least.
        closed: The last closed day of each zone, at the least.
    """

    folder: Path
    files: Sequence[WrittenFile]
    entries: int
    closed: Mapping[str, str]


def write_backup(
    engine: sa.Engine, folder: Path, beside: Sequence[Path], revision: str, now_ms: int
) -> Backup:
    """Writes the database and the files `beside` it into a new folder below `folder`.

    The folder has its name when everything is on the disk. Only this user can read it. Analyzers go on
    meanwhile. Raises BackupFailed, StoreAway, OSError.
    """
    with reading(engine) as db:
        # Read before the copy: it has these, and perhaps more.
        entries = tip(db).number
        closed = {day.zone: day.date for day in stored_days(db, days.c.state == "closed")}
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    whole = folder / f"gatelock-{at:%Y%m%dT%H%M%SZ}"
    partial = folder / f".{whole.name}.{os.getpid()}"
    if whole.exists():
        raise BackupFailed(f"{whole} is there already")
    folder.mkdir(parents=True, exist_ok=True)
    partial.mkdir(mode=0o700)
    try:
        COPIES[engine.dialect.name](engine, partial)
        for file in beside:
            shutil.copy(file, partial / file.name)
        files = []
        for path in sorted(partial.iterdir()):
            path.chmod(0o600)
            _sync(path)
            if (written := file_at(path)) is not None:
                files.append(written)
        content = {
            "schema": SCHEMA, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "tables": revision,
            "chain_entries": entries, "closed": closed, "files": [file._asdict() for file in files],
        }  # fmt: skip
        (partial / LIST).write_text(json.dumps(content, indent=2) + "\n")
        (partial / LIST).chmod(0o600)
        _sync(partial / LIST)
        partial.rename(whole)
        _sync(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Backup(whole, files, entries, closed)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _copy_sqlite(engine: sa.Engine, folder: Path) -> None:
    """Copies by SQLite's backup API, in one step: with a write-ahead log no writer waits for it."""
    with reading(engine) as db:
        source = db.connection.driver_connection
        if not isinstance(source, sqlite3.Connection):
            raise BackupFailed(f"{engine.url}: not a SQLite database")
        with closing(sqlite3.connect(folder / "gatelock.db")) as copy:
            source.backup(copy)
            copy.execute("pragma journal_mode = delete").fetchall()  # one file, without a log beside it
            [found] = copy.execute("pragma quick_check(1)").fetchone()
    if found != "ok":
        raise BackupFailed(f"the copy is damaged: {found}")


def _copy_postgresql(engine: sa.Engine, folder: Path) -> None:
    """Copies by `pg_dump`, which reads one snapshot."""
    url = engine.url
    program = shutil.which("pg_dump")
    if program is None:
        raise BackupFailed("pg_dump is not installed: install the PostgreSQL client of the server's version")
    parameters = {
        "host": url.host, "port": url.port, "user": url.username, "dbname": url.database,
        **{name: value for name, value in url.query.items() if name in OF_CONNECTION},
    }  # fmt: skip
    connection = " ".join(f"{name}={_quoted(value)}" for name, value in parameters.items() if value)
    environment = {**os.environ, **({} if url.password is None else {"PGPASSWORD": str(url.password)})}
    command = [program, "--format=custom", f"--file={folder / 'gatelock.dump'}", f"--dbname={connection}"]
    try:
        dumped = subprocess.run(  # noqa: S603 - a program of PostgreSQL
            command, env=environment, capture_output=True, text=True, timeout=DUMP_MAX_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BackupFailed(f"pg_dump has not ended within {DUMP_MAX_S // 3600} hours") from error
    if dumped.returncode:
        reason = (dumped.stderr.strip().splitlines() or ["no reason was given"])[0]
        raise BackupFailed(f"pg_dump failed: {reason}")


def _quoted(value: object) -> str:
    """Returns a value of a connection string, as libpq reads it."""
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


COPIES: Mapping[str, Callable[[sa.Engine, Path], None]] = {
    "sqlite": _copy_sqlite,
    "postgresql": _copy_postgresql,
}
