"""`gatelock upkeep jobs`: when jobs run, how they went, and a run by hand, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun, Schedule
from analyzer.kernel.tables.schema import gates

Gatelock = Callable[..., Any]
DAILY = Schedule(86_400, 4 * 3_600 + 30 * 60)


@pytest.fixture
def configuration() -> str:
    return '[retention]\nat = "04:30"\n[[sources]]\nfile = "access.log"\nformat = "combined"\n'


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def run_of(engine: sa.Engine, job: str, owner: str = "one:7") -> tuple[SqlJobRuns, BegunRun]:
    runs = SqlJobRuns(engine, owner)
    begun = runs.begin(job, DAILY, is_asked=True)
    assert isinstance(begun, BegunRun)
    return runs, begun


def test_jobs_are_listed_with_their_schedule_last_run_and_holder(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    listed = {job["job"]: job for job in objects(gatelock("upkeep", "jobs", "list", "--json"))}
    assert listed["close-days"]["schedule"] == "every 10 seconds"
    assert listed["prune-locks"]["schedule"] == "daily at 04:30 UTC"
    assert listed["prune-locks"]["next"].endswith("T04:30:00Z")
    assert all((job["last"], job["holder"]) == (None, "") for job in listed.values())
    runs, begun = run_of(engine, "prune-locks")
    assert runs.end(begun, "done", 12)
    run_of(engine, "prune-plans", "two:8")
    listed = {job["job"]: job for job in objects(gatelock("upkeep", "jobs", "list", "--json"))}
    last = listed["prune-locks"]["last"]
    assert (last["outcome"], last["rows"], last["owner"], listed["prune-locks"]["holder"]) == (
        *("done", 12, "one:7"),
        "",
    )
    assert (listed["prune-plans"]["last"]["outcome"], listed["prune-plans"]["holder"]) == ("running", "two:8")
    assert "prune-plans" in gatelock("upkeep", "jobs", "list").stdout


def test_a_job_that_failed_is_shown_with_its_error(gatelock: Gatelock, engine: sa.Engine) -> None:
    runs, begun = run_of(engine, "roll-up")
    runs.end(begun, "failed", 0, "canceling statement")
    result = gatelock("upkeep", "jobs", "list")
    assert result.exit_code == 1
    assert "canceling statement" in result.stdout
    assert "canceling statement" in gatelock("doctor", "--json").stdout


def test_a_job_is_run_now_and_its_runs_are_listed(gatelock: Gatelock, engine: sa.Engine) -> None:
    with writing(engine) as db:
        row = {"instance": "gate", "number": 1, "at_ms": 1, "first_ms": 1, "told": "{}"}
        db.execute(sa.insert(gates).values(row))
    assert gatelock("upkeep", "jobs", "run", "prune-gates").stdout == "prune-gates: done, 1 rows\n"
    [done] = objects(gatelock("upkeep", "jobs", "run", "prune-gates", "--json"))
    assert done == {"job": "prune-gates", "outcome": "done", "rows": 0, "error": ""}
    gatelock("upkeep", "jobs", "run", "empty-slots")
    found = objects(gatelock("upkeep", "jobs", "list", "prune-gates", "--json"))
    assert [(run["outcome"], run["rows"]) for run in found] == [("done", 0), ("done", 1)]
    found = objects(gatelock("upkeep", "jobs", "list", "empty-slots", "--json", "--since", "1h"))
    assert {run["job"] for run in found} == {"empty-slots"}
    refused = gatelock("upkeep", "jobs", "list", "--since", "1h")
    assert (refused.exit_code, refused.stderr) == (2, "--since: works only with JOB\n")
    assert gatelock("upkeep", "jobs", "list", "roll-up").stdout == "nothing matches\n"


def test_a_job_that_another_process_runs_is_refused_and_the_process_named(
    gatelock: Gatelock, engine: sa.Engine
) -> None:
    run_of(engine, "roll-up", "two:8")
    result = gatelock("upkeep", "jobs", "run", "roll-up")
    assert result.exit_code == 1
    assert result.stderr == "two:8 runs roll-up at the moment: wait for its end (gatelock upkeep jobs list)\n"


@pytest.mark.usefixtures("engine")
def test_a_job_that_does_not_exist_is_wrong_usage(gatelock: Gatelock) -> None:
    result = gatelock("upkeep", "jobs", "run", "prune")
    assert result.exit_code == 2
    assert result.stderr.startswith("prune is not a job: use one of activation, apply-brakes, ")
    result = gatelock("upkeep", "jobs", "list", "prune")
    assert result.exit_code == 2
    assert result.stderr.startswith("JOB: prune: no such name; did you mean ")


def test_the_clock_of_the_database_is_shown(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.connect() as db:
        now_ms = db.execute(sa.select(NowMs())).scalar_one()
    runs, begun = run_of(engine, "prune-locks")
    runs.end(begun, "done", 0)
    [run] = objects(gatelock("upkeep", "jobs", "list", "prune-locks", "--json"))
    assert run["scheduled"].endswith("T04:30:00Z")
    assert begun.scheduled_ms <= now_ms
