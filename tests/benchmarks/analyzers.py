"""`gatelock run` as processes that are measured: started, watched from outside, killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables.schema import offsets

COUNTED = sa.select(offsets.c.partition, offsets.c.counted).order_by(offsets.c.partition)


class Analyzer:
    """One process of `gatelock --config CONFIG run`."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_suffix(f".{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "analyzer.faces.cli", "--config", str(config), "run"]
        with self._log.open("wb") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log)
        self._process = psutil.Process(self.child.pid)

    def cpu_s(self) -> float:
        """CPU-seconds that it has taken so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    def rss_mb(self) -> float:
        return float(self._process.memory_info().rss) / 1e6

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(5)

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(20)


@contextmanager
def running(config: Path, count: int = 1) -> Iterator[list[Analyzer]]:
    """So many analyzers, stopped at the end; the list may be changed."""
    analyzers = [Analyzer(config) for _ in range(count)]
    try:
        yield analyzers
    finally:
        for analyzer in analyzers:
            analyzer.stop()


class Watched(NamedTuple):
    """A database, looked at while others write to it."""

    engine: sa.Engine

    def counted(self) -> dict[int, int]:
        """Records counted of each partition; nothing before the tables are there."""
        try:
            with self.engine.connect() as db:
                return dict(db.execute(COUNTED).tuples().all())
        except sa.exc.ProgrammingError:
            return {}

    def total(self) -> int:
        return sum(self.counted().values())

    def wait_for_positions(self, timeout_s: float) -> None:
        """Returns when an analyzer has taken a partition. Raises TimeoutError."""
        until_s = time.monotonic() + timeout_s
        while not self.counted():
            if time.monotonic() > until_s:
                raise TimeoutError(f"no analyzer has taken a partition after {timeout_s:g} s")
            time.sleep(0.02)

    def wait_for(self, total: int, timeout_s: float, every_s: float = 0.01) -> float:
        """Seconds until `total` records are counted. Raises TimeoutError."""
        began_s = time.monotonic()
        while self.total() < total:
            if time.monotonic() - began_s > timeout_s:
                raise TimeoutError(f"{self.total():,} of {total:,} counted after {timeout_s:g} s")
            time.sleep(every_s)
        return time.monotonic() - began_s


@contextmanager
def watched(url: str) -> Iterator[Watched]:
    engine = open_engine(url)
    try:
        yield Watched(engine)
    finally:
        engine.dispose()
