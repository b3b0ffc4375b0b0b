"""An analyzer without partitions, while others hold them all."""

from __future__ import annotations

from pathlib import Path
from random import Random

from analyzer.core.judging.plan import Plan
from analyzer.core.model import Counter
from analyzer.daemon import Daemon
from analyzer.files import ImportedFiles
from analyzer.health import Health
from analyzer.metrics import Metrics
from analyzer.pipeline import Pipeline
from analyzer.store.database.engine import open_engine
from analyzer.store.database.migrate import upgrade
from analyzer.store.operations.upkeep import SqlUpkeep
from analyzer.store.transaction.gaps import SqlGaps
from analyzer.store.transaction.sql_store import SqlStore
from analyzer.warden import Warden
from gatekeeper.testing import ManualClock
from tests.support.counters import reference_counter


def counter_for(plan: Plan) -> Counter:
    return reference_counter({}, plan.groupings, plan.meters)


def test_a_spare_analyzer_reports_the_database_as_recovered_only_when_it_is(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    url = f"sqlite:///{here}/gatelock.db"
    upgrade(url)
    clock, engine = ManualClock(), open_engine(url)
    store, upkeep = SqlStore(engine, "spare"), SqlUpkeep(engine, "spare", lambda: "mark")
    version, plan = store.activate(Plan()), Plan()
    nothing = ImportedFiles([], "log", store)
    pipeline = Pipeline(nothing, counter_for(plan), store, plan, version, clock.uptime_s)
    health = Health(Metrics("test"), clock.uptime_s)
    warden = Warden(upkeep, clock.uptime_s)
    daemon = Daemon(
        pipeline, warden, store.active_plan, counter_for, health, Random(7), SqlGaps(engine, "here")
    )
    daemon.run_once()
    assert not health.failures

    engine.dispose()
    here.rename(elsewhere)
    clock.advance(1.0)
    for _ in range(5):  # within the second in which the warden does not ask the database
        assert daemon.run_once() > 0.0
        assert "database" in health.failures
        clock.advance(0.1)
    elsewhere.rename(here)
    assert daemon.run_once() == 0.0
    assert not health.failures
    daemon.close()
    engine.dispose()
