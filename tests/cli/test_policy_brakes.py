"""`gatelock policies enforce`, and what commands show of a policy that its brake holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_policy_modes import DAILY, Gatelock, counted, lines

__all__ = ["counted"]  # a fixture
TWO = DAILY.replace("5", "2")
ONE = 'brake = { callers = 1, per = "5m" }\n'
WHY = "it locks 2 in 5m, and 1 are allowed"


@pytest.fixture
def braked(counted: Callable[[str], None]) -> None:
    """Both callers are above the limit, and one lock is allowed."""
    counted(TWO + ONE)


@pytest.mark.usefixtures("braked")
def test_a_braked_policy_is_shown(gatelock: Gatelock) -> None:
    assert gatelock("locks", "list").output == "no lock is in force\n"
    listed = gatelock("policies", "list").output
    assert "braked: in shadow since 20" in listed
    [fields] = lines(gatelock("policies", "list", "--json").output)
    assert fields["mode"] == "enforce"
    assert fields["brake"].startswith("in shadow since")
    shown = gatelock("policies", "list", "daily").output
    assert "its brake in the first day: 1 new lock in 5m, then its locks are in shadow" in shown
    assert "at this time: in shadow since" in shown
    assert WHY in gatelock("upkeep", "events", "list").output
    explained = gatelock("explain", "api_key:ann").output
    assert "api_key:ann is not locked" in explained
    assert "not locked by daily: its brake holds the lock, in shadow since" in explained
    assert any(line.split()[:2] == ["daily", "braked"] for line in explained.splitlines())
    [fields] = lines(gatelock("explain", "api_key:bob", "--json").output)
    assert fields["held_by_brakes"] == ["daily"]
    assert fields["policies"][0]["brake"].startswith("in shadow since")
    assert "the brake of policy daily acts: in shadow since" in gatelock("doctor").output


@pytest.mark.usefixtures("braked")
def test_a_release_says_what_it_will_lock_and_locks_it(gatelock: Gatelock) -> None:
    assert gatelock("policies", "enforce", "daily").exit_code == 2, "it needs a reason"
    assert gatelock("policies", "enforce", "daily", "--reason", " ").exit_code == 2
    tried = gatelock("policies", "enforce", "daily", "--reason", "a flood", "--dry-run")
    assert tried.exit_code == 0
    assert WHY in tried.output
    assert "gates get 2 locks at once" in tried.output
    assert gatelock("locks", "list").output == "no lock is in force\n"
    done = gatelock("policies", "enforce", "daily", "--reason", "a flood")
    assert done.exit_code == 0
    assert "daily is enforced again: 2 locks in shadow are in force now" in done.output
    assert len(lines(gatelock("locks", "list", "--json").output)) == 2
    [event, *_] = lines(gatelock("upkeep", "events", "list", "--json").output)
    assert (event["act"], event["about"], event["why"]) == ("policies enforce", "policy daily", "a flood")
    again = gatelock("policies", "enforce", "daily", "--reason", "a flood")
    assert (again.exit_code, again.output) == (1, "daily is enforced, and has no candidate\n")
    assert gatelock("policies", "enforce", "dayly", "--reason", "a flood").exit_code == 2


@pytest.mark.usefixtures("braked")
def test_a_release_has_fields(gatelock: Gatelock) -> None:
    asked = ("policies", "enforce", "daily", "--reason", "a flood", "--json")
    [fields] = lines(gatelock(*asked, "--dry-run").output)
    assert (fields["policy"], fields["shadow_locks"], fields["changed"]) == ("daily", 2, False)
    [fields] = lines(gatelock(*asked).output)
    assert (fields["changed"], fields["locked"]) == (True, 2)


def test_an_edited_policy_needs_no_release(
    gatelock: Gatelock,
    counted: Callable[[str], None],
    tmp_path: Path,
) -> None:
    counted(TWO + ONE)
    file = tmp_path / "gatelock.toml"
    file.write_text(file.read_text().replace("limit = 2", "limit = 6"))
    applied: Any = gatelock("policies", "apply")
    assert applied.exit_code == 0
    [lock] = lines(gatelock("locks", "list", "--json").output)
    assert lock["key"] == "api_key:ann", "the corrected limit is enforced at once"
    assert gatelock("policies", "enforce", "daily", "--reason", "x").exit_code == 1
