"""Locks that operators set, clear and extend, from log lines to the gate's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.config.settings import load
from analyzer.judging.locks.locks_by_hand import (
    By,
    Effect,
    LockTarget,
    clear_locks,
    extend_locks,
    set_locks,
)
from analyzer.judging.sql import hold_offs
from analyzer.judging.sql.raised_notices import raised_notices
from analyzer.kernel.database.engine import reading
from analyzer.maintenance.audit import audit
from gatekeeper.model import Rate
from tests.scenarios.conftest import OpenWorld
from tests.scenarios.test_modes import FLOOD, HOURLY
from tests.scenarios.test_surges import SOURCE, send
from tests.support.whole_loop import World

ANN = LockTarget("caller", "api_key:ann")
BY_ANN = By("ops", "TICKET-7")
HOUR_MS = 3_600_000
SIX_HOURS = """
[[policies]]
name = "six-hours"
limit = 60
window = { rolling = "6h" }
"""


def mark() -> str:
    return "by-hand"


def clear(world: World, hold_off_ms: int | None = None, policy: str | None = None) -> int:
    """Clears ann's locks; returns how many there were."""
    found = clear_locks(world.engine, [ANN], policy, hold_off_ms, BY_ANN, mark)
    world.pass_s(1)
    return len(found)


@pytest.mark.parametrize("policy", [HOURLY, FLOOD, SIX_HOURS])
def test_a_cleared_lock_stays_away_through_requests_and_restarts(open_world: OpenWorld, policy: str) -> None:
    world = open_world(SOURCE + policy)
    assert not send(world, 10, 10)[-1]
    assert clear(world, 300_000) == 1
    assert all(send(world, 10, 10))
    world.restart_analyzer()
    assert all(send(world, 10, 10))


@pytest.mark.parametrize("policy", [HOURLY, SIX_HOURS])
def test_at_the_end_of_the_hold_off_the_lock_returns_without_requests(
    open_world: OpenWorld, policy: str
) -> None:
    world = open_world(SOURCE + policy)
    send(world, 10, 10)
    clear(world, 60_000)
    world.clock.jump(50)
    world.pass_s(2)
    assert world.gate.check("api_key:ann").allowed
    world.clock.jump(10)
    world.pass_s(3)
    assert not world.gate.check("api_key:ann").allowed


def test_a_hold_off_lasts_as_long_as_the_lock_would_have(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    send(world, 10, 10)
    [cleared] = clear_locks(world.engine, [ANN], None, None, BY_ANN, mark)
    assert cleared.held_off_ms == cleared.lock.until.timestamp() * 1000
    with reading(world.engine) as db:
        [held] = hold_offs.of_series(db, "caller", "api_key:ann")
    assert (held.at, held.who, held.reason) == (cleared.lock.at, "ops", "TICKET-7")


def test_a_notice_ends_while_the_lock_of_its_limit_is_held_off(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + SIX_HOURS.replace('"6h"', '"10m"') + "notify = [0.5]\n")
    send(world, 10, 10)
    clear(world, HOUR_MS)
    [raised] = raised_notices(world.engine)
    assert raised.notice.until_s > world.clock.now().timestamp() + 3600, "it has no end yet"
    world.clock.jump(660)
    world.pass_s(2)
    [raised] = raised_notices(world.engine)
    assert raised.notice.until_s <= world.clock.now().timestamp()


def test_without_a_hold_off_the_next_judgement_locks_again(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + FLOOD)
    send(world, 10, 10)
    assert clear(world, 0) == 1
    assert not all(send(world, 10, 10))


def test_another_policy_still_locks_during_a_hold_off(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + FLOOD + HOURLY.replace("60", "150"))
    send(world, 10, 10)
    assert clear(world, HOUR_MS, policy="flood") == 1
    assert clear(world, HOUR_MS, policy="flood") == 0, "there is no lock any more"
    assert not all(send(world, 10, 15))
    assert world.gate.check("api_key:ann").policy == "hourly"


def test_a_changed_plan_keeps_a_hold_off(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(SOURCE + HOURLY)
    send(world, 10, 10)
    clear(world, HOUR_MS)
    file = tmp_path / "changed.toml"
    file.write_text(SOURCE + HOURLY.replace("60", "50"))
    world.store.activate(load(file).plan())
    world.pass_s(2)
    assert world.gate.check("api_key:ann").allowed


def test_the_audit_misses_no_lock_that_is_held_off(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    send(world, 10, 10)
    clear(world, HOUR_MS)
    assert not audit(world.engine).locks
    set_locks(world.engine, [ANN], HOUR_MS, Effect(), BY_ANN, mark)
    assert not audit(world.engine).locks


def test_a_lock_by_hand_refuses_until_its_end(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    wanted = [ANN, LockTarget("range", "203.0.113.0/24"), LockTarget("resource", "/v1/export")]
    set_locks(world.engine, wanted, 60_000, Effect(status=403), BY_ANN, mark)
    world.pass_s(1)
    decision = world.gate.check("api_key:ann")
    assert (decision.allowed, decision.policy, decision.status) == (False, ":manual", 403)
    assert decision.detail == "TICKET-7"
    assert not world.gate.check("api_key:bob", address="203.0.113.9").allowed
    assert not world.gate.check("api_key:bob", resource="/v1/export").allowed
    assert world.gate.check("api_key:bob", resource="/v1/items").allowed
    world.clock.jump(60)
    world.pass_s(2)
    assert world.gate.check("api_key:ann").allowed


def test_a_lock_by_hand_may_slow(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    set_locks(world.engine, [ANN], 60_000, Effect("slow", slow=Rate(2, 10)), BY_ANN, mark)
    world.pass_s(1)
    assert [world.gate.allow("api_key:ann") for _ in range(3)] == [True, True, False]


def test_an_extended_lock_lasts_beyond_its_window(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    send(world, 10, 10)
    [lock] = extend_locks(world.engine, [ANN], None, 3 * HOUR_MS, BY_ANN, mark)
    assert lock.detail.endswith("; TICKET-7")
    assert extend_locks(world.engine, [ANN], None, HOUR_MS, BY_ANN, mark) == []
    world.clock.jump(3_600)
    world.pass_s(2)
    assert world.gate.check("api_key:ann").policy == ":manual"
    assert clear(world) == 1
    assert world.gate.check("api_key:ann").allowed


def test_an_act_that_is_only_shown_changes_nothing(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + HOURLY)
    send(world, 10, 10)
    shown = BY_ANN._replace(is_shown_only=True)
    assert len(clear_locks(world.engine, [ANN], None, None, shown, mark)) == 1
    assert len(set_locks(world.engine, [ANN], HOUR_MS, Effect(), shown, mark)) == 1
    assert len(extend_locks(world.engine, [ANN], None, 9 * HOUR_MS, shown, mark)) == 1
    world.pass_s(1)
    assert world.gate.check("api_key:ann").policy == "hourly"
