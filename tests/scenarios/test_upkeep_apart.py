"""Upkeep that fails or hangs does not disturb counting: on a real PostgreSQL, with all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from analyzer import build as builder
from analyzer.config.settings import load
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Measurements, Metrics
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.jobs.job_runs import JobOutcome, job_outcomes
from analyzer.kernel.tables.schema import offsets
from analyzer.maintenance import job_table, roll_up
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

CONFIGURATION = """
database = {{ url = "{url}" }}
analyzer = {{ http = "off" }}
[[sources]]
file = "{log}"
format = "combined"
"""
LINE = '192.0.2.{0} - ann [{1}] "GET / HTTP/1.1" 200 7 "-" "-"\n'
WITHIN_S = 60.0


@dataclass
class RunningAnalyzer:
    """An analyzer that follows a file, in threads of this process."""

    url: str
    engine: sa.Engine
    log: Path
    health: Health
    lines: int = 0

    def write(self, lines: int = 10) -> None:
        stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
        with self.log.open("a") as log:
            log.writelines(LINE.format(n % 200, stamp) for n in range(lines))
        self.lines += lines

    def counted(self) -> int:
        with self.engine.connect() as db:
            return sum(db.scalars(sa.select(offsets.c.counted)))

    def count_some(self, times: int = 5) -> None:
        """Writes lines, and waits until they are counted, several times."""
        for _ in range(times):
            self.write()
            wait_until(lambda: self.counted() == self.lines, WITHIN_S)

    def outcome(self, job: str) -> JobOutcome | None:
        return {found.name: found for found in job_outcomes(self.engine)}.get(job)

    def wait_for_failure(self, job: str) -> JobOutcome:
        wait_until(lambda: (found := self.outcome(job)) and found.failing_s is not None, WITHIN_S)
        found = self.outcome(job)
        assert found is not None
        return found

    def wait_for_recovery(self, job: str) -> None:
        wait_until(lambda: (found := self.outcome(job)) and found.failing_s is None, WITHIN_S)


@pytest.fixture
def url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = open_engine(url)
    yield engine
    engine.dispose()


@contextmanager
def running(url: str, engine: sa.Engine, folder: Path) -> Iterator[RunningAnalyzer]:
    log, file = folder / "access.log", folder / "gatelock.toml"
    log.touch()
    file.write_text(CONFIGURATION.format(url=url, log=log))
    health, stopping = Health(Metrics("1"), time.monotonic), threading.Event()
    with builder.opened(settings := load(file)) as own_engine:
        daemon = builder.build(settings, own_engine, health)
        thread = threading.Thread(target=daemon.run, args=[stopping])
        thread.start()
        try:
            yield RunningAnalyzer(url, engine, log, health)
        finally:
            stopping.set()
            thread.join(WITHIN_S)


def failed_attempts(analyzer: RunningAnalyzer) -> str:
    """Returns the lines of the metric of failures."""
    measurements = Measurements({}, None, None, (), None, None)
    text = analyzer.health.metrics.exposition(measurements, "")[0].decode()
    return "\n".join(line for line in text.splitlines() if line.startswith("gatelock_failures_total"))


def test_counting_continues_while_rows_that_upkeep_needs_are_locked(
    url: str, engine: sa.Engine, tmp_path: Path
) -> None:
    with writing(engine) as db:
        db.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
        db.exec_driver_sql("lock table rejects in access exclusive mode")
        other_engine = open_engine(url)  # this one's connection is in use
        with running(url, other_engine, tmp_path) as analyzer:
            failure = analyzer.wait_for_failure("prune-rejected")
            analyzer.count_some()
            assert "(canceling statement due to lock timeout" in failure.error
            assert analyzer.health.failing_jobs == {"prune-rejected": failure.error}
            assert failed_attempts(analyzer).startswith('gatelock_failures_total{what="prune-rejected"}')
            assert "database" not in failed_attempts(analyzer)
            db.rollback()
            analyzer.wait_for_recovery("prune-rejected")
            assert analyzer.health.failing_jobs == {}
        other_engine.dispose()


def test_counting_continues_while_a_step_hangs_in_the_database_until_its_own_time_out(
    url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def hang(_kept_s: int, db: sa.Connection, _most: int) -> int:
        begun.set()
        db.exec_driver_sql("select pg_sleep(600)")
        return 0

    monkeypatch.setattr(roll_up, "widen_minutes", hang)
    impatient = job_table.UPKEEP._replace(statement_ms=8_000)
    entries = [
        entry._replace(lane=impatient) if entry.lane == job_table.UPKEEP else entry
        for entry in job_table.JOBS
    ]
    monkeypatch.setattr(job_table, "JOBS", entries)
    monkeypatch.setattr(builder, "LANES", (job_table.LOCKS, impatient))
    with running(url, engine, tmp_path) as analyzer:
        assert begun.wait(WITHIN_S)
        analyzer.count_some(times=2)
        assert analyzer.outcome("roll-up") is None, "it still hangs"
        error = analyzer.wait_for_failure("roll-up").error
        assert error.endswith("(canceling statement due to statement timeout)")
        analyzer.count_some()
        assert "database" not in failed_attempts(analyzer)


def test_counting_continues_while_upkeep_has_a_bug(
    url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(roll_up, "widen_minutes", fail)
    with running(url, engine, tmp_path) as analyzer:
        assert analyzer.wait_for_failure("roll-up").error == "ZeroDivisionError('a bug')"
        analyzer.count_some()
        what, attempts = failed_attempts(analyzer).split()
        assert what == 'gatelock_failures_total{what="roll-up"}'
        assert float(attempts) >= 1.0  # the next one is half a second later
