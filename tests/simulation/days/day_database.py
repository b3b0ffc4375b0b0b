"""A database in which a day can be closed: a file, because a snapshot stays open while others write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from tests.simulation.database import Opened, SimulatedDatabase, opened_database
from tests.support.step_faults import AFTER_COMMIT

MEMORY = Path("/dev/shm")


class DayFile(NamedTuple):
    """The file of all simulations of this process, and an engine for the snapshots of closings."""

    folder: tempfile.TemporaryDirectory[str]  # deleted with the process
    opened: Opened
    snapshots: sa.Engine


@cache
def day_file() -> DayFile:
    """Opens the file, in memory where the system has such files."""
    folder = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
    path = Path(folder.name) / "gatelock.db"
    opened = opened_database(str(path))
    opened.connection.execute("pragma journal_mode = wal")
    opened.connection.execute("pragma synchronous = off")
    return DayFile(folder, opened, open_engine(f"sqlite:///{path}"))


@dataclass
class DayDatabase(SimulatedDatabase):
    """A simulated database with snapshots, and with pauses behind the transactions of some processes."""

    # By the name of a process that closes a day: called when a transaction of it has ended.
    pauses: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.snapshots.dispose()
        super().__post_init__()
        self.connection.execute("pragma wal_checkpoint(truncate)")

    @staticmethod
    def opened() -> Opened:
        return day_file().opened

    @property
    def snapshots(self) -> sa.Engine:
        """Each connection of it sees the database as it was when it began to read."""
        return day_file().snapshots

    def step(self, what: str) -> None:
        super().step(what)
        process = self.scheduler.current
        if what == AFTER_COMMIT and process is not None and process.name in self.pauses:
            self.pauses[process.name]()
