"""Locks and notices that judgements have brought: in the log of the daemon, and printed by commands."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analyzer.callers import applied_facts, caller_changes, changed_limits
from analyzer.judging.earned_notices import Notice, NoticeKey
from analyzer.judging.judge import Evidence, Judged, JudgedRows
from analyzer.judging.judged_changes import JudgedChanges
from analyzer.judging.judgement_log import SHOWN_MAX, log_judged, log_lines
from analyzer.judging.sql import braked_policies, plans, waiting_judgements
from analyzer.kernel.database.engine import open_engine
from analyzer.maintenance.job_table import LOCKS, JobContext, new_jobs
from gatekeeper.model import Clear, Lock, Set

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
LOCK = Lock("caller", "user:ann", "daily", BEGAN, BEGAN + timedelta(hours=1), "/v1/export", detail="9 of 5")
NOTICE = Notice(NoticeKey("daily", "sum", "user:ann", "", 0, 800), "caller", 8, 10, 60, "80% reached")
JUDGED = Judged([Set(LOCK), Clear(LOCK.at)], [NOTICE])
LINES = [
    "locked user:ann /v1/export from 2026-11-21 12:00:00Z until 2026-11-21 13:00:00Z: deny by daily: 9 of 5",
    "unlocked user:ann /v1/export: its lock by daily has ended",
    "notice about user:ann by daily: 80% reached",
]


def test_locks_and_notices_are_logged_with_their_cause(caplog: pytest.LogCaptureFixture) -> None:
    assert list(log_lines(JUDGED)) == LINES
    with caplog.at_level(logging.INFO):
        log_judged(JUDGED, "plan 3")
        log_judged(JUDGED)
    assert caplog.messages == [f"plan 3: {line}" for line in LINES] + LINES


def test_a_lock_that_a_new_plan_ends_names_the_plan_as_its_cause() -> None:
    judged = Judged([Clear(LOCK.at)], evidence=Evidence(4, cause_of_end="plan"))
    assert list(log_lines(judged)) == ["unlocked user:ann /v1/export: plan 4 ends its lock by daily"]


def test_of_very_many_the_first_are_logged_and_the_number_of_the_others() -> None:
    many = Judged([Clear(LOCK.at)] * (SHOWN_MAX + 2_000), [NOTICE] * (SHOWN_MAX + 1))
    lines = list(log_lines(many))
    assert len(lines) == 2 * SHOWN_MAX + 2
    assert lines[SHOWN_MAX] == "2,000 more changes of locks: gatelock locks list"
    assert lines[-1] == "1 more notices: gatelock locks list --notices"


# By job, the function that judges in its transaction.
JUDGES = {
    "end-locks": (waiting_judgements, "end_locks"),
    "judge-waiting": (waiting_judgements, "judge_waiting"),
    "change-overrides": (caller_changes, "change_due"),
    "apply-facts": (applied_facts, "apply_waiting"),
    "refill-totals": (changed_limits, "refill"),
    "apply-brakes": (braked_policies, "turn_to_shadow"),
    "activation": (plans, "continue_activation"),
}


def test_each_job_of_the_warden_logs_and_reports_what_it_judged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for module, function in JUDGES.values():
        monkeypatch.setattr(module, function, lambda *_: JudgedRows(7, JUDGED))
    reported: list[tuple[Judged, str]] = []
    engine = open_engine(f"sqlite:///{tmp_path}/gatelock.db")
    context = JobContext(engine, str, judged=lambda judged, job: reported.append((judged, job)))
    for job in new_jobs(context, LOCKS):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert job.step() == 7
        assert caplog.messages == LINES, job.name
    assert reported == [(JUDGED, job) for job in JUDGES]
    engine.dispose()


def test_a_command_adds_up_what_several_transactions_have_judged() -> None:
    done = JudgedChanges(JUDGED, Judged([Clear(LOCK.at)]))
    assert done.sentence.splitlines()[0] == "1 locked, 2 freed, 1 notice"
    assert done.sentence.splitlines()[1:] == [f"  {line}" for line in (*LINES, LINES[1])]
    assert done.fields == {"locked": 1, "freed": 2, "notices": 1, "judged": [*LINES, LINES[1]]}
    assert done.addition == f"; {done.sentence}"
    assert (JudgedChanges().sentence, JudgedChanges().addition) == ("0 locked, 0 freed", "")
    for _ in range(SHOWN_MAX):
        done.add(JUDGED)
    assert len(done.fields["judged"]) == SHOWN_MAX
