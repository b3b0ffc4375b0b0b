"""An analyzer without partitions, while others hold them all: only its jobs use the database."""

from __future__ import annotations

from pathlib import Path
from random import Random

from analyzer.counting.gaps import SqlGaps
from analyzer.daemon import Daemon
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.flush.pipeline import Pipeline
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.model import Counter
from analyzer.maintenance.job_table import LOCKS, JobContext, new_jobs
from analyzer.plan.plan import Plan
from analyzer.plan.proposals import Agreement
from analyzer.sources.files import ImportedFiles
from gatekeeper.testing import ManualClock
from tests.support.counters import reference_counter
from tests.support.job_runners import JobLoop, new_runner


def counter_for(plan: Plan) -> Counter:
    return reference_counter({}, plan.groupings, plan.meters)


def test_a_spare_analyzer_reports_its_jobs_as_recovered_only_when_the_database_is(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    url = f"sqlite:///{here}/gatelock.db"
    upgrade(url)
    clock, engine = ManualClock(), open_engine(url)
    health = Health(Metrics("test"), clock.uptime_s)
    store, context = SqlStore(engine, "spare"), JobContext(engine, lambda: "mark", judged=health.judged)
    agreement = Agreement.of(store.activate(Plan()), Plan())
    nothing = ImportedFiles([], "log", store)
    pipeline = Pipeline(nothing, counter_for(Plan()), store, agreement, clock.uptime_s)
    jobs = JobLoop(new_runner(new_jobs(context, LOCKS), engine, clock.uptime_s, health))
    gaps = SqlGaps(engine, "here")
    daemon = Daemon(pipeline, lambda: agreement, counter_for, health, Random(7), gaps)
    jobs.run_once()
    assert not health.failing_jobs

    engine.dispose()
    here.rename(elsewhere)
    for _ in range(5):
        clock.advance(1.0)
        assert daemon.run_once() == 0.0
        jobs.run_once()
        assert "unable to open database file" in health.failing_jobs["end-locks"]
    elsewhere.rename(here)
    clock.advance(300.0)
    jobs.run_once()
    assert not health.failing_jobs
    daemon.close()
    engine.dispose()
