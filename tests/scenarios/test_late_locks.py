"""Locks that let more through than was estimated, and those that did not."""

from __future__ import annotations

import pytest

from analyzer.delays.exceeded_overshoots import COUNTED_LATE, recent_overshoots
from analyzer.delays.standstills import WATCH
from analyzer.judging.locks.lock_outcomes import LockOutcome, lock_outcomes
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.jobs.job_runs import SqlJobRuns
from analyzer.kernel.jobs.job_schedules import BegunRun
from analyzer.maintenance.job_runner import Job
from analyzer.maintenance.job_table import JOBS, JobContext
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import START, World

SOURCE = """
[[sources]]
name = "log"
topic = "access-log"
format = "json"
caller = ["api_key"]
deny_if = { status = "429" }
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
status = "status"
"""
HOURLY = """
[[policies]]
name = "hourly"
limit = 10
window = { per = "hour" }
"""
SHADOW = 'mode = "shadow"\n'
ROLLING = """
[[policies]]
name = "rolling"
limit = 10
window = { rolling = "10m" }
"""


def late_locks(engine: Engine, flush_s: float) -> dict[str, str]:
    """Returns the sentence of each cause."""
    return {late.cause: str(late) for late in recent_overshoots(engine, flush_s)}


def write(world: World, number: int) -> None:
    for _ in range(number):
        world.log.write(key="ann", status=200)
    world.pass_s(2)


def run_job(runs: SqlJobRuns, job: Job) -> None:
    """Runs the job as an analyzer does, until a step has found nothing."""
    run = runs.begin(job.name, job.schedule, is_asked=True)
    assert isinstance(run, BegunRun)
    rows = 0
    while found := job.step():
        rows += found
    assert runs.end(run, "done", rows)


def pass_a_minute(world: World) -> None:
    """Passes a minute in which nothing happens, and has the analyzer run at its end."""
    world.clock.jump(57)
    world.pass_s(3)


def watching(world: World) -> tuple[SqlJobRuns, Job]:
    context = JobContext(world.engine, str)
    job = next(entry.job(context) for entry in JOBS if entry.name == WATCH)
    return SqlJobRuns(world.engine, "one:1"), job


def outcome(world: World) -> LockOutcome:
    [found] = lock_outcomes(world.engine, millis(START))
    return found


def test_the_overshoot_of_a_lock_begins_at_the_limit(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    write(world, 14)
    assert outcome(world).overshoot == 4, "one flush has counted beyond the limit"
    write(world, 3)
    for _ in range(5):
        world.log.write(key="ann", status=429)
    assert (outcome(world).used, outcome(world).overshoot) == (3, 7)
    assert late_locks(world.engine, 0.1) == {}, "as many as a burst within a minute explains"


def test_a_gate_that_stays_open_is_reported_until_an_hour_has_passed(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    write(world, 10)
    assert late_locks(world.engine, 0.1) == {}
    write(world, 90)
    [sentence] = late_locks(world.engine, 0.1).values()
    assert sentence.startswith(
        "the lock of caller api_key:ann by hourly came late: 90 admitted beyond the limit;"
    )
    assert "an estimate" in sentence
    world.clock.jump(3_700)
    assert late_locks(world.engine, 0.1) == {}


@pytest.mark.parametrize("policies", [HOURLY + SHADOW, HOURLY + 'action = "tag"\n'], ids=["shadow", "tag"])
def test_a_lock_that_refuses_nothing_has_no_overshoot(open_world: OpenWorld, policies: str) -> None:
    world = open_world(SOURCE + policies)
    write(world, 10)
    write(world, 90)
    assert outcome(world).overshoot is None
    assert late_locks(world.engine, 0.1) == {}


def test_of_a_rolling_window_only_what_came_during_the_lock_is_known(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + ROLLING)
    write(world, 14)
    write(world, 80)
    before, extended = lock_outcomes(world.engine, millis(START))
    assert (before.overshoot, extended.overshoot) == (80, 0)
    assert before.ended_ms == extended.began_ms, "what was counted has moved the end of the lock"
    assert len(late_locks(world.engine, 0.1)) == 1


def write_of_many(world: World, callers: int, number: int) -> None:
    world.log.taken_max = callers * number  # one flush holds them, as after a stop
    for name in range(callers):
        for _ in range(number):
            world.log.write(key=f"caller-{name}", status=200)


def test_after_an_outage_there_is_one_alarm_that_names_it_and_not_one_of_each_caller(
    open_world: OpenWorld,
) -> None:
    world = open_world(SOURCE + HOURLY)
    runs, job = watching(world)
    for _ in range(3):  # idle runs replace each other
        run_job(runs, job)
        pass_a_minute(world)
    run_job(runs, job)
    began = world.clock.now()
    world.clock.jump(600)  # no analyzer runs, or the database is away
    write_of_many(world, 40, 500)
    world.pass_s(5)
    for _ in range(4):
        run_job(runs, job)
        pass_a_minute(world)
    [alarm] = late_locks(world.engine, 0.1).values()
    assert alarm.startswith(f"nothing was counted from {began:%Y-%m-%d %H:%M}")
    assert "the database was away, or no analyzer ran" in alarm
    assert "490 admitted beyond the limit" in alarm
    assert alarm.endswith("and 39 more locks of the last hour")


def test_one_stopped_analyzer_is_named_by_what_was_counted_before_the_lock(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    runs, job = watching(world)
    for _ in range(2):  # another analyzer does the job meanwhile
        run_job(runs, job)
        pass_a_minute(world)
    write_of_many(world, 3, 500)
    world.pass_s(5)
    [sentence] = late_locks(world.engine, 0.1).values()
    assert sentence.startswith(COUNTED_LATE)
    assert sentence.endswith("and 2 more locks of the last hour")


def test_late_gates_are_another_cause_and_come_last(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    write_of_many(world, 3, 500)
    world.pass_s(2)
    write(world, 10)
    write(world, 490)
    behind, gates = late_locks(world.engine, 0.1).values()
    assert behind.startswith(COUNTED_LATE)
    assert gates.startswith("the lock of caller api_key:ann by hourly came late: 490")
