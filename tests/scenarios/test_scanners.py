"""Policies on distinct values, from log lines to a refused request: scanning, and keys that are shared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from analyzer.kernel.tables.schema import distinct_values, totals
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import World

ROUTES = [f"/items/{number}" for number in range(100)]
SOURCE = f"""
[[sources]]
topic = "access-log"
name = "log"
caller = "api_key"
deny_if = {{ status = 429 }}
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
status = "status"
resource = {{ path = "path", routes = {ROUTES} }}
address = "ip"

[[meters]]
name = "resources"
distinct = "resource"

[[meters]]
name = "addresses"
distinct = "address"
"""
SCAN = """
[[policies]]
name = "scan"
kind = "surge"
meter = "resources"
limit = 20
window = { rolling = "60s" }
lock_for = "5m"
"""
SHARED = """
[[policies]]
name = "shared-key"
meter = "addresses"
limit = 5
window = { per = "day" }
"""

NewWorld = Callable[[str], World]  # by the policies


@pytest.fixture
def new_world(open_world: OpenWorld) -> NewWorld:
    return lambda policies: open_world(SOURCE + policies)


def ask(world: World, key: str, path: str = "/", ip: str = "192.0.2.1") -> bool:
    """Sends a request: the gate decides, and the answer is written to the log."""
    is_allowed = world.gate.allow(f"api_key:{key}")
    world.log.write(key=key, path=path, ip=ip, status=200 if is_allowed else 429)
    return is_allowed


def rows_of(world: World, key: str) -> int:
    rows = sa.select(sa.func.count()).where(distinct_values.c.key == f"api_key:{key}")
    with world.engine.connect() as db:
        return int(db.execute(rows).scalar_one())


def test_a_scanner_is_locked_and_a_busy_client_is_not(new_world: NewWorld) -> None:
    world = new_world(SCAN)
    for second in range(19):
        assert ask(world, "ann", f"/items/{second}")
        assert all(ask(world, "bob", f"/items/{number % 19}") for number in range(30))
        world.pass_s(1)
    assert ask(world, "ann", "/items/19"), "19 resources are below the limit"
    world.pass_s(2)
    decision = world.gate.check("api_key:ann")
    assert (decision.policy, decision.reason) == ("scan", "abnormal-usage-detected")
    assert decision.detail == "20 resources in any 1m, 20 counted; locked for 5m"
    assert world.gate.allow("api_key:bob"), "570 requests, but only 19 resources"
    world.clock.jump(300)
    world.pass_s(5)
    assert world.gate.allow("api_key:ann")


def test_a_slow_walk_through_all_resources_raises_no_lock(new_world: NewWorld) -> None:
    world = new_world(SCAN)
    for number in range(60):
        assert ask(world, "ann", f"/items/{number}"), f"request {number}"
        world.pass_s(1)
        world.clock.jump(2)
        world.pass_s(1)


def test_a_resource_that_comes_again_in_another_slot_counts_once(new_world: NewWorld) -> None:
    world = new_world(SCAN)
    for _ in range(6):
        assert all(ask(world, "ann", f"/items/{number}") for number in range(19))
        world.pass_s(10)
    assert rows_of(world, "ann") > 19
    assert world.gate.allow("api_key:ann")


def test_a_shared_key_is_locked_for_the_day_through_a_restart(new_world: NewWorld) -> None:
    world = new_world(SHARED)
    for number in range(4):
        for _ in range(5):
            assert ask(world, "ann", ip=f"192.0.2.{number}")
            world.pass_s(1)
    world.restart_analyzer()
    assert ask(world, "ann", ip="192.0.2.0"), "this address was counted by the analyzer before"
    world.pass_s(2)
    assert world.gate.allow("api_key:ann")
    assert ask(world, "ann", ip="192.0.2.4")
    world.pass_s(2)
    decision = world.gate.check("api_key:ann")
    assert (decision.policy, decision.reason) == ("shared-key", "quota-exceeded")
    assert decision.detail == "5 addresses per day (UTC), 5 counted"
    assert rows_of(world, "ann") == 5


def test_no_more_values_are_kept_than_the_limit_and_one(new_world: NewWorld) -> None:
    world = new_world(SHARED)
    for number in range(50):
        ask(world, "ann", ip=f"192.0.2.{number}")
    world.pass_s(2)
    assert world.gate.check("api_key:ann").detail == "5 addresses per day (UTC), at least 6 counted"
    assert rows_of(world, "ann") == 6


def test_no_more_values_are_kept_in_a_slot_than_the_limit_and_one(new_world: NewWorld) -> None:
    world = new_world(SCAN)
    for number in range(90):
        ask(world, "ann", f"/items/{number}")
    world.pass_s(2)
    assert world.gate.check("api_key:ann").detail.startswith("20 resources in any 1m, at least 21 counted")
    assert rows_of(world, "ann") == 21


def test_values_are_deleted_with_their_windows(new_world: NewWorld) -> None:
    world = new_world(SCAN + SHARED)
    world.step_s = 1.0
    ask(world, "ann", "/items/1")
    world.pass_s(2)
    assert rows_of(world, "ann") == 2
    for _ in range(4):
        world.clock.jump(86_400)
        ask(world, "bob", "/items/1")
        world.pass_s(100)
    assert rows_of(world, "ann") == 0
    with world.engine.connect() as db:
        keys = set(db.scalars(sa.select(totals.c.key)))
        assert keys == {"api_key:bob"}
    assert rows_of(world, "bob") > 0
