"""Policies in shadow and candidates, from log lines to what `gatelock policies` says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.flush.analyzers import change_plan
from analyzer.judging.locks.lock_outcomes import (
    LockOutcome,
    lock_outcomes,
    outcomes_by_policy,
    policy_outcomes,
)
from analyzer.kernel.database.clock import millis
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import lock_history
from analyzer.plan.proposals import promoted
from gatekeeper.model import LockKey
from tests.scenarios.conftest import OpenWorld
from tests.scenarios.test_surges import SOURCE, send
from tests.support.whole_loop import START, World

HOURLY = """
[[policies]]
name = "hourly"
limit = 60
window = { per = "hour" }
"""
SHADOW = 'mode = "shadow"\n'
CANDIDATE = "candidate = { limit = 20 }\n"
FLOOD = """
[[policies]]
name = "flood"
kind = "surge"
limit = 60
window = { rolling = "60s" }
lock_for = ["2m", "10m"]
"""


def outcomes(world: World) -> list[LockOutcome]:
    """Returns the locks so far, when all requests are counted."""
    world.pass_s(2)
    found = list(lock_outcomes(world.engine, millis(START)))
    assert outcomes_by_policy(world.engine, millis(START)) == policy_outcomes(found)
    return found


def promote(world: World, name: str) -> None:
    """Promotes a policy, as `gatelock policies enforce` does."""
    change_plan(world.engine, lambda plan: promoted(plan, name) or plan, "ann")


def test_a_quota_in_shadow_refuses_nothing_and_counts_what_it_would_have_refused(
    open_world: OpenWorld,
) -> None:
    world = open_world(SOURCE + HOURLY + SHADOW)
    assert all(send(world, 10, 10))
    assert world.gate.check("api_key:ann").allowed
    [found] = outcomes(world)
    assert (found.at.policy, found.action, found.ended_ms) == ("hourly", "shadow", None)
    assert found.detail.startswith("60 requests per hour (UTC), ")
    used_when_it_began = int(found.detail.rpartition(", ")[2].split()[0])
    assert 60 <= used_when_it_began < 70
    assert found.used == 100 - used_when_it_began
    world.clock.jump(3_600)
    world.pass_s(2)
    [found] = outcomes(world)
    assert found.used == 100 - used_when_it_began, "known beyond its end"
    assert found.ended_ms == millis(START) + 1_802_000
    [one] = policy_outcomes([found])
    assert one == ("hourly", "shadow", 1, 1, 0, found.used)


def test_of_an_enforced_lock_the_history_has_what_gates_let_through(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    assert not send(world, 10, 10)[-1]
    for _ in range(7):
        world.log.write(key="ann", status=200)  # a gate that does not have the lock yet
    [found] = outcomes(world)
    assert (found.action, found.used) == ("deny", 7)


def test_a_promoted_quota_locks_whom_it_had_locked_in_shadow(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY + SHADOW)
    send(world, 10, 10)
    send(world, 1, 5, key="bob")
    promote(world, "hourly")
    world.pass_s(2)
    assert not world.gate.check("api_key:ann").allowed
    assert world.gate.check("api_key:bob").allowed
    found = outcomes(world)
    assert [(one.action, one.ended_ms is None) for one in found] == [("shadow", False), ("deny", True)]
    assert [one.plan for one in found] == [1, 2], "the plan that has earned each"
    assert found[1].used == 0, "known from the promotion on"


def test_a_policy_that_goes_into_shadow_opens_the_gates(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(SOURCE + HOURLY)
    assert not send(world, 10, 10)[-1]
    file = tmp_path / "gatelock.toml"
    file.write_text(SOURCE + HOURLY + SHADOW)
    change_plan(world.engine, lambda _: load(file).plan(), "ann")
    world.pass_s(2)
    assert world.gate.check("api_key:ann").allowed


def test_a_candidate_is_judged_beside_its_policy(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY + CANDIDATE)
    assert all(send(world, 4, 10)), "40 requests are below the limit in force"
    [found] = outcomes(world)
    assert (found.at, found.action) == (LockKey("caller", "api_key:ann", "", "hourly/candidate"), "shadow")
    assert not all(send(world, 4, 10))
    assert world.gate.check("api_key:ann").policy == "hourly"
    assert {one.at.policy for one in outcomes(world)} == {"hourly", "hourly/candidate"}


def test_a_promoted_candidate_takes_the_place_of_its_policy(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY + CANDIDATE)
    send(world, 4, 10)
    promote(world, "hourly")
    world.pass_s(2)
    assert world.gate.check("api_key:ann").policy == "hourly"
    plan = world.store.active_plan()[1]
    assert [policy.name for policy in plan.policies] == ["hourly"]
    assert plan.policies[0].limit == 20
    assert promoted(plan, "hourly") is None


@pytest.mark.parametrize("mode", ["", SHADOW])
def test_a_surge_escalates_in_shadow_as_it_does_in_force(open_world: OpenWorld, mode: str) -> None:
    world = open_world(SOURCE + FLOOD + mode)
    for _ in range(2):
        send(world, 10, 10)
        world.clock.jump(150)
        world.pass_s(1)
    lasted_s = [((one.ended_ms or 0) - one.began_ms) // 1000 for one in outcomes(world)]
    assert lasted_s[0] in range(119, 122)
    assert "offence 2" in outcomes(world)[1].detail


def test_offences_in_shadow_make_no_lock_in_force_longer(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + FLOOD + SHADOW)
    send(world, 10, 10)
    world.clock.jump(150)
    world.pass_s(1)
    promote(world, "flood")
    send(world, 10, 10)
    assert world.gate.check("api_key:ann").detail.endswith("locked for 2m")


def test_a_verdict_is_not_believed_for_a_lock_in_shadow(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY + SHADOW)
    with writing(world.engine) as db:  # as if this version ran for long
        db.execute(sa.update(lock_history).values(began_ms=0))
    send(world, 10, 10)
    for _ in range(5):
        world.log.write(key="ann", status=429)
    world.pass_s(1)
    [found] = outcomes(world)
    began = int(found.detail.rpartition(", ")[2].split()[0])
    assert found.used == 105 - began, "requests that nothing refused count"
