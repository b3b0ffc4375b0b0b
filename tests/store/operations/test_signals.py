"""Signals: what a look stores, what it logs, and what the faces read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.faces.pages.page_list import PAGES
from analyzer.faces.pages.signals_page import signals_banner
from analyzer.faces.signals.doctor.examination import CHECKS
from analyzer.faces.signals.signal_kinds import SIGNAL_KINDS, Signal, fine, raised, standing
from analyzer.faces.signals.signal_table import HOLD_MS, WATCH, SignalChanges, standing_signals, store_signals
from analyzer.faces.signals.signal_watch import SignalWatch, signal_work
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.suspension import suspend
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.tables.outbox_tables import outbox
from analyzer.kernel.tables.signal_tables import signals
from analyzer.maintenance.job_table import JOBS, JobContext, schedules
from tests.store.flushing import plan, quota

BRAKE = Signal("brake", "daily", "warning", "the brake of daily acts", "see `gatelock policies list`")
STOPPED = Signal("partition-stopped", "calls[1]", "critical", "calls[1] is stopped", "")


def note_look(engine: sa.Engine) -> None:
    """Stores a run of the job, as an analyzer does."""
    runs = SqlJobRuns(engine, "here:1")
    run = runs.begin(WATCH, schedules(Retention())[WATCH], is_asked=True)
    assert isinstance(run, BegunRun)
    runs.end(run, "done", 0)


def pass_ms(engine: sa.Engine, elapsed_ms: int) -> None:
    with writing(engine) as db:
        for column in (signals.c.since_ms, signals.c.over_ms):
            db.execute(sa.update(signals).values({column: column - elapsed_ms}))


def names(found: SignalChanges) -> tuple[list[str], list[str]]:
    return [signal.name for signal in found.began], [signal.name for signal in found.ended]


def test_a_signal_keeps_its_begin_while_its_sentence_changes(engine: sa.Engine) -> None:
    [begun] = store_signals(engine, [BRAKE]).began
    pass_ms(engine, 5_000)
    assert store_signals(engine, [BRAKE._replace(what="acts still")]) == SignalChanges([], [])
    note_look(engine)
    [shown] = standing_signals(engine)
    assert (shown.what, shown.since_ms) == ("acts still", begun.since_ms - 5_000)


def test_a_signal_that_comes_back_within_a_minute_was_never_over(engine: sa.Engine) -> None:
    store_signals(engine, [BRAKE])
    note_look(engine)
    assert store_signals(engine, []) == SignalChanges([], [])
    assert standing_signals(engine) == [], "faces show what is seen now"
    pass_ms(engine, HOLD_MS - 10_000)
    assert names(store_signals(engine, [BRAKE])) == ([], [])
    [shown] = standing_signals(engine)
    store_signals(engine, [])
    pass_ms(engine, HOLD_MS + 1_000)
    assert names(store_signals(engine, [STOPPED])) == (["partition-stopped"], ["brake"])
    assert shown.subject == "daily"
    with reading(engine) as db:
        events = [
            tuple(row) for row in db.execute(sa.select(outbox.c["kind", "about"]).order_by(outbox.c.id))
        ]
    assert events == [
        ("signal.began", "brake"), ("signal.began", "partition-stopped"), ("signal.ended", "brake"),
    ]  # fmt: skip


def test_the_worst_comes_first_and_then_the_oldest(engine: sa.Engine) -> None:
    store_signals(engine, [BRAKE])
    pass_ms(engine, 1_000)
    store_signals(engine, [BRAKE, BRAKE._replace(subject="hourly"), STOPPED])
    note_look(engine)
    order = [signal.subject for signal in standing_signals(engine)]
    assert order == ["calls[1]", "daily", "hourly"]
    banner = signals_banner(engine)
    assert (banner.text, banner.mood) == ("Calls[1] is stopped.", "bad")
    assert (banner.more, banner.address) == ("2 more", "/signals")


def test_without_a_look_the_first_signal_names_that(engine: sa.Engine) -> None:
    assert signals_banner(engine).mood == "bad"
    note_look(engine)
    store_signals(engine, [BRAKE])
    assert [signal.name for signal in standing_signals(engine)] == ["brake"]
    with writing(engine) as db:
        db.execute(sa.text("update job_runs set done_ms = done_ms - 90000"))
    first, second = standing_signals(engine)
    assert first.name == "not-watched"
    assert "for 90 s" in first.what
    assert second.name == "brake"


def test_observations_of_one_subject_are_one_signal() -> None:
    found = [raised("lock-unmet", "daily", f"{name} is locked", "guard it") for name in ("ann", "bob", "eve")]
    [signal] = standing([fine("all is well"), *found])
    assert (signal.subject, signal.what) == ("daily", "ann is locked; 2 more of this kind")


def test_the_job_stores_and_logs_what_begins_once(
    engine: sa.Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gatelock.toml"
    address = engine.url.render_as_string(hide_password=False)
    file.write_text(f'[database]\nurl = "{address}"\n')
    settings = load(file)
    SqlStore(engine, "here").activate(plan(quota(10)))
    context = JobContext(engine, str, watch=lambda of: signal_work(lambda: settings, of))
    job = next(entry.job(context) for entry in JOBS if entry.name == WATCH)
    with caplog.at_level(logging.INFO):
        job.step()
        assert caplog.messages == []
        suspend(engine, 60_000, "ann", "an exercise", new_mark)
        job.step()
        job.step()
        [warning] = caplog.messages
        note_look(engine)
        assert warning.startswith("all locks are suspended until ")
        assert [signal.name for signal in standing_signals(engine)] == ["locks-suspended"]
        with writing(engine) as db:
            db.execute(sa.text("delete from locks"))
        job.step()
        assert standing_signals(engine) == []
        pass_ms(engine, HOLD_MS + 1_000)
        job.step()
    assert caplog.messages[1:] == [f"over: {warning.partition(';')[0]}"]


def test_an_observation_that_lasts_too_short_for_its_kind_is_not_a_signal(
    engine: sa.Engine, tmp_path: Path
) -> None:
    file = tmp_path / "gatelock.toml"
    address = engine.url.render_as_string(hide_password=False)
    source = '[[sources]]\nname = "log"\nfile = "log"\nformat = "json"\ncaller = ["user"]\n[sources.fields]\n'
    file.write_text(
        f'[database]\nurl = "{address}"\n{source}time = {{ path = "t", unit = "s" }}\nuser = "u"\n'
    )
    settings, uptimes_s = load(file), iter([1_000.0, 1_115.0, 1_120.0])
    SqlStore(engine, "here").activate(settings.plan())
    watch = SignalWatch(engine, lambda: settings, lambda: next(uptimes_s))
    expectations: list[list[str]] = [[], [], ["source-unread"]]
    for expected in expectations:
        watch.step()
        note_look(engine)
        assert [signal.name for signal in standing_signals(engine)] == expected


def test_every_signal_has_a_page_that_exists() -> None:
    assert {kind.page for kind in SIGNAL_KINDS.values()} <= {page.path for page in PAGES}
    assert {part.every_s for part in CHECKS} == {0, 5, 60}
