"""The brake of a policy, from log lines to gates that open again, and to a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.callers.caller_document import caller_document
from analyzer.callers.caller_standing import caller_standing, held_by_brakes
from analyzer.config.settings import load
from analyzer.flush.analyzers import change_plan
from analyzer.judging import brakes
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.judging.sql.braked_policies import brake_states, brake_texts, release_policy
from analyzer.kernel.database.audit_log import entries
from analyzer.plan.policies import Brake
from tests.scenarios.conftest import OpenWorld
from tests.scenarios.test_surges import SOURCE
from tests.support.whole_loop import World

DAILY = """
[[policies]]
name = "daily"
limit = 5
window = { per = "day" }
"""
THREE = 'brake = { callers = 3, per = "5m" }\n'
DAY_S = 86_400


def send_all(world: World, callers: range, number: int = 8) -> None:
    """Each caller sends requests, and two seconds pass."""
    for _ in range(number):
        for caller in callers:
            world.log.write(key=f"c{caller}", status=200)
    world.pass_s(2)


def locked(world: World, *, in_shadow: bool = False) -> set[str]:
    """Returns the callers with a lock that gates get, or with one in shadow."""
    found = {lock.key.removeprefix("api_key:") for lock in locks_in_force(world.engine, in_shadow=in_shadow)}
    if not in_shadow:
        refused = {key for key in found if not world.gate.check(f"api_key:{key}").allowed}
        assert refused == found, "gates have the locks of the database"
    return found


def put_in_force(world: World, text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(SOURCE + text)
    change_plan(world.engine, lambda _: load(file).plan(), "ann")
    world.pass_s(2)


def test_a_young_policy_within_its_bound_locks(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    send_all(world, range(3))
    assert locked(world) == {"c0", "c1", "c2"}
    assert brake_texts(world.engine) == {}


def test_a_young_policy_beyond_its_bound_opens_all_gates_and_alarms(
    open_world: OpenWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    send_all(world, range(2))
    assert locked(world) == {"c0", "c1"}
    send_all(world, range(2, 4))
    world.pass_s(2)
    assert locked(world) == set(), "its earlier locks, too"
    assert locked(world, in_shadow=True) == {"c0", "c1", "c2", "c3"}
    alarms = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    [why] = [text for text in alarms if "brake" in text]
    assert why == (
        "the brake holds daily: it locks 4 in 5m, and 3 are allowed; its locks are in shadow from now on"
    )
    [event] = [entry for entry in entries(world.engine) if entry.act == "brake"]
    assert (event.about, event.why) == ("policy daily", why)
    send_all(world, range(4, 5))
    assert locked(world) == set(), "in shadow from then on"
    world.restart_analyzer()
    world.clock.jump(600)
    send_all(world, range(5, 6))
    assert locked(world) == set(), "also in later intervals, and through a restart"
    standing = caller_standing(world.engine, "api_key:c0")
    assert held_by_brakes(standing) == ["daily"]
    assert standing.braked["daily"].startswith("in shadow since 2026-11-21 04:3")
    assert caller_document(standing)["limits"] == [], "it has no effect that the caller notices"
    released = release_policy(world.engine, "daily", "ann", "a real flood", lambda: "m")
    assert released is not None
    standing = caller_standing(world.engine, "api_key:c0")
    assert len(caller_document(standing)["limits"]) == 1


def test_a_release_enforces_the_locks_in_shadow_and_is_not_taken_back(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    send_all(world, range(5))
    world.pass_s(2)
    assert locked(world) == set()
    done = release_policy(world.engine, "daily", "ann", "a real flood", lambda: "m")
    assert done is not None
    assert done.locks == 5
    world.pass_s(2)
    assert locked(world) == {f"c{n}" for n in range(5)}
    send_all(world, range(5, 9))
    assert len(locked(world)) == 8, "three in this interval, as of an older policy"
    world.clock.jump(300)
    world.pass_s(3)
    assert len(locked(world)) == 9
    assert release_policy(world.engine, "daily", "ann", "again", lambda: "m") is None


def test_an_older_policy_locks_the_heaviest_first_and_the_rest_in_later_intervals(
    open_world: OpenWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    world.clock.jump(DAY_S + 1)
    for caller in range(8):
        for _ in range(8 + caller):
            world.log.write(key=f"c{caller}", status=200)
    world.pass_s(2)
    assert locked(world) == {"c7", "c6", "c5"}
    assert brake_texts(world.engine) == {"daily": "new locks wait for their interval"}
    assert held_by_brakes(caller_standing(world.engine, "api_key:c0")) == ["daily"]
    assert held_by_brakes(caller_standing(world.engine, "api_key:c7")) == []
    world.clock.jump(299)
    world.pass_s(4)
    assert locked(world) == {"c7", "c6", "c5", "c4", "c3", "c2"}
    world.clock.jump(300)
    world.pass_s(3)
    assert len(locked(world)) == 8
    text = (
        "the brake slows daily: 5 new locks and more wait, the heaviest are first; at most 3 new locks in 5m"
    )
    assert [line.getMessage() for line in caplog.records if "brake" in line.getMessage()] == [text]
    world.clock.jump(900)
    world.pass_s(2)
    assert brake_texts(world.engine) == {}


def test_a_lock_that_is_not_earned_any_more_is_not_set_later(open_world: OpenWorld) -> None:
    rolling = DAILY.replace('per = "day"', 'rolling = "2m"')
    world = open_world(SOURCE + rolling + THREE)
    world.clock.jump(DAY_S + 1)
    send_all(world, range(5))
    assert len(locked(world)) == 3
    world.clock.jump(301)
    world.pass_s(3)
    assert locked(world) == set()


def test_a_changed_limit_makes_a_policy_young_and_a_comment_does_not(
    open_world: OpenWorld, tmp_path: Path
) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    since_ms = brake_states(world.engine)["daily"].since_ms
    world.clock.jump(DAY_S + 1)
    put_in_force(world, "# moved\n" + DAILY + THREE, tmp_path)
    put_in_force(world, DAILY + THREE + "status = 403\n" + DAILY.replace("daily", "other"), tmp_path)
    assert brake_states(world.engine)["daily"].since_ms == since_ms
    put_in_force(world, DAILY.replace("5", "6") + THREE, tmp_path)
    assert brake_states(world.engine)["daily"].since_ms > since_ms + DAY_S * 1000
    assert brake_states(world.engine).keys() == {"daily"}, "the row of a policy goes with it"
    send_all(world, range(5))
    world.pass_s(2)
    assert locked(world) == set()


def test_a_new_plan_that_locks_too_many_at_once_is_in_shadow(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(SOURCE + DAILY.replace("5", "100") + THREE)
    send_all(world, range(6))
    world.clock.jump(DAY_S // 4)
    put_in_force(world, DAILY + THREE, tmp_path)
    assert locked(world) == set()
    assert len(locked(world, in_shadow=True)) == 6
    put_in_force(world, DAILY.replace("5", "100") + THREE, tmp_path)
    assert locked(world, in_shadow=True) == set()
    assert brake_texts(world.engine) == {}


def test_a_brake_that_is_switched_off_holds_the_policy_no_more(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(SOURCE + DAILY + THREE)
    send_all(world, range(6))
    world.pass_s(2)
    assert locked(world) == set()
    put_in_force(world, DAILY + 'brake = "off"\n', tmp_path)
    assert len(locked(world)) == 6


@pytest.mark.parametrize(("others", "expected"), [(20, {"c0"}), (2, set[str]())])
def test_a_young_policy_that_locks_a_large_part_of_the_traffic_is_in_shadow(
    open_world: OpenWorld, others: int, expected: set[str]
) -> None:
    world = open_world(SOURCE + DAILY + 'brake = { traffic = 0.3, per = "2m" }\n')
    world.clock.jump(125)
    world.pass_s(1)
    for caller in range(1, others + 1):
        for _ in range(4):
            world.log.write(key=f"c{caller}", status=200)
    world.pass_s(1)
    world.clock.jump(30)
    send_all(world, range(1), 6)
    world.pass_s(2)
    assert locked(world) == expected
    assert bool(brake_texts(world.engine)) is (expected == set())


@pytest.mark.parametrize(("age_s", "number"), [(0, 0), (DAY_S + 1, 6)])
def test_without_a_stated_brake_a_young_policy_has_one_and_an_older_one_has_none(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch, age_s: int, number: int
) -> None:
    monkeypatch.setattr(brakes, "DEFAULT_BRAKE", Brake(callers=3))
    world = open_world(SOURCE + DAILY)
    world.clock.jump(age_s)
    send_all(world, range(6))
    world.pass_s(2)
    assert len(locked(world)) == number
