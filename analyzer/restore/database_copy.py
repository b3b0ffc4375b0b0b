"""One consistent copy of the database with the files that belong to it, in a separate folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import stored_days
from analyzer.billing.reports.atomic_files import file_at
from analyzer.billing.reports.manifest import WrittenFile
from analyzer.kernel.database.chain import tip
from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import reading
from analyzer.kernel.errors import BackupFailed
from analyzer.kernel.tables.billing_tables import days

SCHEMA = 1
LIST = "backup.json"


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

    The folder has its name when everything is on the disk. Only this user can read it. Analyzers
    continue meanwhile. Raises BackupFailed, StoreAway, OSError.
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
        dialect_of(engine).copy(engine, partial)
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
