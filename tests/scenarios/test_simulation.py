"""From log lines to the sentence of a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.kernel.tables.schema import lock_history
from tests.scenarios.conftest import OpenWorld
from tests.support.command_line import run_command
from tests.support.whole_loop import World

CONFIGURATION = """
[database]
url = "sqlite:///gatelock.db"
[[sources]]
topic = "access-log"
[sources.fields]
time = { path = "ts", unit = "ms" }
api_key = "key"
[[policies]]
name = "daily"
limit = 100
window = { per = "day" }
"""
PROPOSED = """
[[policies]]
name = "daily"
limit = 40
window = { per = "day" }
notify = [0.5]
[[policies]]
name = "any-hour"
limit = 30
window = { rolling = "1h" }
[[policies]]
name = "flood"
kind = "surge"
limit = 30
window = { rolling = "60s" }
"""


@pytest.fixture
def world(open_world: OpenWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which one caller was locked, and another one had half of the limit in two hours."""
    return world_of(open_world, tmp_path, monkeypatch, CONFIGURATION)


def world_of(
    open_world: OpenWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configuration: str
) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    Path("proposed.toml").write_text(PROPOSED)
    world = open_world(configuration)
    with world.engine.begin() as db:  # made before the clock of this world began
        db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))
    for _ in range(2):
        for caller, requests in (("acme", 60), ("beta", 25), ("calm", 2)):
            for _ in range(requests):
                world.log.write(key=caller)
        world.pass_s(1)
        world.clock.jump(3_600)
        world.pass_s(1)
    return world


def simulated(*arguments: str) -> str:
    result = run_command(["policies", "simulate", "--since", "2026-11-01", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.usefixtures("world")
def test_another_limit_is_compared_with_the_present_one() -> None:
    first, second, third, *table = simulated("--policy", "daily", "--limit", "40").splitlines()
    assert first == (
        "daily at 40 requests per day (UTC) would have locked 2 of 3 callers, 2 times, 52 % of the "
        "traffic; at the present 100: 1 caller, once, 11 %"
    )
    assert second.startswith("  2026-11-21T00:00:00Z to 2026-11-21T06:30:0")
    assert second.endswith(", by stored counts of 1 min: a lock began up to 1 min later than shown")
    assert third == "  it has locked 1 caller, once, since 2026-11-21T00:00:00Z"
    rows = [line.split("\t") for line in table]
    assert rows[1] == [
        *("newly locked", "api_key:beta", "2026-11-21T05:30:00Z", "18 h 30 min"),
        *("", "1", "10"),
    ]
    assert rows[2][:4] == ["longer", "api_key:acme", "2026-11-21T04:29:00Z", "19 h 31 min"]


def test_locks_in_shadow_are_shown_beside_a_simulation(
    open_world: OpenWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world_of(open_world, tmp_path, monkeypatch, CONFIGURATION + 'mode = "shadow"\n')
    _, _, third, *_ = simulated("--policy", "daily", "--limit", "40").splitlines()
    assert third == "  in shadow it has locked 1 caller, once, since 2026-11-21T00:00:00Z"
    found = json.loads(simulated("--policy", "daily", "--limit", "40", "--json"))
    assert (found["in_force"]["locks"], found["in_shadow"]["locks"]) == (0, 1)


@pytest.mark.usefixtures("world")
def test_a_file_of_policies_is_simulated_and_what_is_too_fine_is_refused() -> None:
    result = run_command(["policies", "simulate", "proposed.toml", "--since", "2026-11-01"])
    assert result.exit_code == 1
    text = result.output
    assert "any-hour at 30 requests in any 1h would have locked 1 of 3 callers, 2 times" in text
    assert "thresholds reached: 50% 2 times" in text
    assert "flood cannot be simulated: its windows of 60 s are too short: stored counts are minutes" in text


@pytest.mark.usefixtures("world")
def test_a_brake_that_would_have_acted_is_named() -> None:
    braked = PROPOSED.partition('[[policies]]\nname = "any-hour"')[0].replace("limit = 40", "limit = 20")
    Path("proposed.toml").write_text(braked + 'brake = { callers = 1, per = "5m" }\n')
    shown = simulated("proposed.toml")
    assert "would have locked 2 of 3 callers" in shown
    assert (
        "  the brake would have put daily in shadow at 2026-11-21T04:29:00Z, if that was in its first day: "
        "more than 1 new lock in 5m\n"
    ) in shown
    [found] = map(json.loads, simulated("proposed.toml", "--json").splitlines())
    assert found["braked"] == "2026-11-21T04:29:00Z"
    Path("proposed.toml").write_text(braked + 'brake = { callers = 2, per = "5m" }\n')
    assert "brake" not in simulated("proposed.toml")


@pytest.mark.usefixtures("world")
def test_a_simulation_as_json_has_every_lock() -> None:
    [found] = [
        json.loads(line) for line in simulated("--policy", "daily", "--limit", "40", "--json").splitlines()
    ]
    assert (found["callers"], found["requests"], found["resolution_s"]) == (3, 174, 60)
    assert (found["present"]["limit"], found["simulated"]["callers"]) == (100, 2)
    by_key = {series["key"]: series for series in found["series"]}
    assert by_key["api_key:beta"]["change"] == "newly locked"
    assert by_key["api_key:beta"]["simulated"] == [
        {"began": "2026-11-21T05:30:00Z", "until": "2026-11-22T00:00:00Z", "requests": 10}
    ]


@pytest.mark.usefixtures("world")
def test_a_limit_needs_a_policy_that_exists() -> None:
    assert "--limit needs --policy" in simulated("--limit", "40")
    assert "no such name" in simulated("--policy", "weekly", "--limit", "40")
    assert "is in whole numbers" in simulated("--policy", "daily", "--limit", "1h")
