"""The database of a simulation: SQLite in memory, with the simulation's clock, and faults at any step.

All processes share one connection, because one transaction at a time is open: a transaction is one event.
What happens when statements of several transactions alternate is tried on PostgreSQL.
"""

from __future__ import annotations

import gc
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from gatekeeper.sources.sql import SqlSource
from tests.simulation.scheduler import Scheduler
from tests.support.step_faults import AFTER_COMMIT, Killed, cut_off, watch_steps

FaultKind = Literal["kill", "cut", "lose the reply"]
WRITES_BUCKETS = re.compile(r"\b(insert into|update|delete from) buckets\b", re.IGNORECASE)
JULIAN_EPOCH, DAY_MS = 2_440_587.5, 86_400_000


@dataclass
class StepFault:
    """A fault that happens to a process in its database, some steps from now."""

    kind: FaultKind
    steps_left: int


class OnlyConnection(sqlite3.Connection):
    """A connection that takes the place of all that the processes open and lose."""

    def close(self) -> None:
        """Ends an open transaction, as closing a connection does."""
        if self.in_transaction:
            self.rollback()


@dataclass
class SimulatedDatabase:
    """A migrated database; `engine` is for analyzers, `gate_engine` for gates."""

    scheduler: Scheduler
    wall_s: Callable[[], float]
    after_commit: Callable[[], None] = lambda: None
    faults: dict[str, StepFault] = field(default_factory=dict)  # by process
    applied: Counter[str] = field(default_factory=Counter)  # faults that a process had
    away_until_s: float = 0.0
    clock_ahead_s: float = 0.0  # of the database's clock
    has_written_buckets: bool = False  # perhaps, since it was last set to False

    def __post_init__(self) -> None:
        opened = self.opened()
        self.connection, self.engine, self.gate_engine = opened[:3]
        opened.steps.database = self
        gc.collect()
        self.connection.close()  # what the simulation before left open
        template().backup(self.connection)
        self.connection.create_function("julianday", 1, self._julian_day)

    @staticmethod
    def opened() -> Opened:
        """Returns the connection and the engines, which all simulations of this process share."""
        return opened_once()

    def read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Returns rows, for checks: without faults, without steps."""
        return self.connection.execute(statement, values).fetchall()

    def dump(self) -> sqlite3.Connection:
        """Returns a copy of the whole database."""
        copy = sqlite3.connect(":memory:")
        self.connection.backup(copy)
        return copy

    def restore(self, dump: sqlite3.Connection) -> None:
        """Replaces the whole database by a copy."""
        gc.collect()  # SQLite replaces nothing while a cursor is open, and errors refer to cursors
        dump.backup(self.connection)

    def clock_s(self) -> float:
        """Returns the time by the database's clock."""
        return self.wall_s() + self.clock_ahead_s

    def _julian_day(self, _time: str) -> float:
        # The time of NowMs; exact to 0.04 ms, and NowMs rounds to whole milliseconds.
        return JULIAN_EPOCH + round(self.clock_s() * 1000) / DAY_MS

    # -- faults ----------------------------------------------------------------------------------

    def step(self, what: str) -> None:
        """Is called at each step of the engine, as `watch_steps` says."""
        if what == AFTER_COMMIT:
            self.after_commit()
        self.has_written_buckets |= bool(WRITES_BUCKETS.search(what))
        process = self.scheduler.current
        if process is None:
            return
        if self.scheduler.now_s < self.away_until_s:
            raise cut_off(self.engine.dialect)
        fault = self.faults.get(process.name)
        if fault is None:
            return
        fault.steps_left -= 1
        if fault.steps_left > 0 or (fault.kind == "lose the reply" and what != AFTER_COMMIT):
            return
        del self.faults[process.name]
        self.applied[fault.kind] += 1
        if fault.kind == "kill":
            raise Killed
        raise cut_off(self.engine.dialect)


@dataclass
class StepsOfPresent:
    """Passes the engine's steps on to the database of the present simulation."""

    database: SimulatedDatabase | None = None

    def __call__(self, what: str) -> None:
        if self.database is not None:
            self.database.step(what)


class Opened(NamedTuple):
    """The connection and the engines of all simulations of this process, one after the other."""

    connection: sqlite3.Connection
    engine: sa.Engine
    gate_engine: sa.Engine
    steps: StepsOfPresent


@cache
def opened_once() -> Opened:
    """Opens the only database: SQLAlchemy's cache of compiled statements stays from run to run."""
    return opened_database(":memory:")


def opened_database(path: str) -> Opened:
    """Opens a database as the only connection of its processes."""
    connection = sqlite3.connect(path, isolation_level=None, factory=OnlyConnection)
    engine, gate_engine = open_engine("sqlite://"), sa.create_engine("sqlite://")
    for one in (engine, gate_engine):
        one.pool = sa.StaticPool(lambda: connection)
        one.connect().close()  # SQLAlchemy asks the first connection for its version
    gc.collect()
    gc.freeze()  # modules live to the end; scanning them again took a quarter of each story
    steps = StepsOfPresent()
    watch_steps(pytest.MonkeyPatch(), engine, steps)
    return Opened(connection, engine, gate_engine, steps)


@cache
def template() -> sqlite3.Connection:
    """Returns an empty database with all tables."""
    found = sqlite3.connect(":memory:")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gatelock.db"
        upgrade(f"sqlite:///{file}")
        with sqlite3.connect(file) as migrated:
            migrated.backup(found)
        # The history of locks is complete: this database began long ago.
        found.execute("update lock_history set began_ms = 0")
        found.commit()
        migrated.close()
    return found


class SimulatedSqlSource(SqlSource):
    """A gate's source that reads the simulated database."""

    def __init__(self, database: SimulatedDatabase) -> None:
        super().__init__("sqlite:////simulated.db")
        self._engine = database.gate_engine

    def _disconnect(self) -> None:
        """Keeps the only connection."""
