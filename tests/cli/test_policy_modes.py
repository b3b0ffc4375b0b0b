"""`gatelock policies list | diff | promote | history`: policies in shadow and candidates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_policies import LOG

Gatelock = Callable[..., Any]

DAILY = """
[[policies]]
name = "daily"
limit = 5
window = { per = "day" }
"""


@pytest.fixture
def counted(gatelock: Gatelock, tmp_path: Path) -> Callable[[str], None]:
    """Counts 8 requests of ann and 2 of bob by these policies, of this day."""

    def count(policies: str) -> None:
        (tmp_path / "gatelock.toml").write_text(LOG + policies)
        now_s = int(time.time())
        names = ["ann"] * 8 + ["bob"] * 2
        records = [json.dumps({"ts": now_s - 1, "key": name}) for name in names]
        (tmp_path / "access.jsonl").write_text("".join(f"{line}\n" for line in records))
        assert gatelock("upkeep", "db", "upgrade").exit_code == 0
        assert gatelock("policies", "apply").exit_code == 0
        done = gatelock("upkeep", "import", "access.jsonl", "--source", "web")
        assert done.exit_code == 0, done.stderr

    return count


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_policy_in_shadow_is_shown_with_what_it_would_have_locked(
    gatelock: Gatelock, counted: Callable[[str], None]
) -> None:
    counted(DAILY + 'mode = "shadow"\n')
    shown = gatelock("policies", "list", "daily")
    assert shown.exit_code == 0
    assert "in shadow: 429 until it ends, if it were enforced" in shown.output
    assert "would have locked" in shown.output
    [fields] = lines(gatelock("policies", "list", "daily", "--json").output)
    assert fields["mode"] == "shadow"
    [outcome] = fields["outcomes"]
    assert (outcome["action"], outcome["locks"], outcome["in_force"]) == ("shadow", 1, 1)
    assert gatelock("locks", "list").output == "no lock is in force\n"
    [lock] = lines(gatelock("locks", "list", "--shadow", "--json").output)
    assert (lock["key"], lock["action"]) == ("api_key:ann", "shadow")
    assert [row["mode"] for row in lines(gatelock("policies", "list", "--json").output)] == ["shadow"]


def test_a_policy_in_shadow_is_promoted(gatelock: Gatelock, counted: Callable[[str], None]) -> None:
    counted(DAILY + 'mode = "shadow"\n')
    tried = gatelock("policies", "enforce", "daily", "--reason", "x", "--dry-run")
    assert "policy daily: mode shadow to enforce" in tried.output
    assert "in shadow it has 1 lock at this time" in tried.output
    assert gatelock("locks", "list", "--json").output == ""
    done = gatelock("policies", "enforce", "daily", "--reason", "a week in shadow")
    assert done.exit_code == 0
    assert "in force as plan 2; 1 locked, 0 freed" in done.output
    assert "[[policies]] daily with no mode" in done.output
    [lock] = lines(gatelock("locks", "list", "--json").output)
    assert (lock["key"], lock["policy"], lock["action"]) == ("api_key:ann", "daily", "deny")
    again = gatelock("policies", "enforce", "daily", "--reason", "x")
    assert (again.exit_code, again.output) == (1, "daily is enforced, and has no candidate\n")
    assert gatelock("policies", "enforce", "dayly", "--reason", "x").exit_code == 2


def test_a_candidate_is_shown_and_promoted(gatelock: Gatelock, counted: Callable[[str], None]) -> None:
    counted(DAILY.replace("5", "100") + "candidate = { limit = 2 }\n")
    of_policy, of_candidate = lines(gatelock("policies", "list", "daily", "--json").output)
    assert of_policy["outcomes"] == []
    assert of_candidate["name"] == "daily/candidate"
    assert [one["series"] for one in of_candidate["outcomes"]] == [2]
    done = gatelock("policies", "enforce", "daily", "--reason", "x", "--json")
    [fields] = lines(done.stdout)
    assert fields["differences"] == ["policy daily: limit 100 to 2", "policy daily/candidate removed"]
    assert (fields["plan"], fields["shadow_locks"], fields["changed"]) == (2, 2, True)
    assert (fields["locked"], fields["freed"]) == (2, 0)
    assert len(lines(gatelock("locks", "list", "--json").output)) == 2


def test_a_promotion_says_before_whom_it_locks_and_that_is_whom_a_simulation_locks(
    gatelock: Gatelock, counted: Callable[[str], None]
) -> None:
    by_plan = DAILY.replace("5", "{ pro = 7, default = 50 }")
    counted(by_plan + "candidate = { limit = 4 }\n")
    assert gatelock("callers", "set", "api_key:bob", "--plan", "pro", "--reason", "sold").exit_code == 0
    tried = gatelock("policies", "enforce", "daily", "--reason", "x", "--dry-run")
    assert "limit 50 to 4" in tried.output
    assert "pro" not in tried.output, "customers with a plan keep what they have"
    assert "in shadow it has 1 lock at this time" in tried.output
    assert "\n1 locked, 0 freed" in tried.output
    assert "api_key:ann" in tried.output
    [fields] = lines(gatelock("policies", "enforce", "daily", "--reason", "x", "--dry-run", "--json").stdout)
    assert (fields["plan"], fields["changed"], fields["locked"], fields["freed"]) == (1, False, 1, 0)
    assert gatelock("locks", "list", "--json").output == ""
    simulated = gatelock("policies", "simulate", "--policy", "daily", "--limit", "4", "--since", "1d")
    assert "would have locked 1 of 2 callers" in simulated.output
    done = gatelock("policies", "enforce", "daily", "--reason", "a week")
    assert "in force as plan 2; 1 locked, 0 freed" in done.output
    assert [lock["key"] for lock in lines(gatelock("locks", "list", "--json").output)] == ["api_key:ann"]


def test_no_override_is_for_a_candidate(gatelock: Gatelock, counted: Callable[[str], None]) -> None:
    counted(DAILY + "candidate = { limit = 2 }\n")
    added = ("callers", "limit", "api_key:ann", "--amount", "50", "--reason", "sold")
    refused = gatelock(*added, "--policy", "daily/candidate")
    assert refused.exit_code == 2
    assert "--policy: daily/candidate: no such name; use one of daily" in refused.output
    assert gatelock(*added, "--policy", "daily").exit_code == 0
    found = lines(gatelock("policies", "list", "daily", "--json").output)
    assert [one["in_force"] for of in found for one in of["outcomes"]] == [0, 1], "bob is above the candidate"


def test_the_difference_to_the_plan_in_force_is_shown(
    gatelock: Gatelock, counted: Callable[[str], None], tmp_path: Path
) -> None:
    counted(DAILY)
    same = gatelock("policies", "apply", "--dry-run")
    assert (same.exit_code, same.output) == (
        0,
        "nothing to change: this configuration is in force (plan 1)\n",
    )
    (tmp_path / "gatelock.toml").write_text(LOG + DAILY.replace("5", "7"))
    other = gatelock("policies", "apply", "--dry-run")
    assert other.exit_code == 1
    assert other.output.startswith("policy daily: limit 5 to 7\nnothing was changed; ")
    [fields] = lines(gatelock("policies", "apply", "--dry-run", "--json").output)
    assert (fields["differences"], fields["changed"]) == (["policy daily: limit 5 to 7"], False)


def test_the_plans_that_came_in_force_are_listed(
    gatelock: Gatelock, counted: Callable[[str], None], tmp_path: Path
) -> None:
    counted(DAILY)
    (tmp_path / "gatelock.toml").write_text(LOG + DAILY.replace("5", "7"))
    gatelock("policies", "apply", "--reason", "more is sold")
    latest, first = lines(gatelock("upkeep", "events", "list", "--json").output)
    assert (latest["about"], latest["why"]) == ("plan 2", "more is sold: policy daily: limit 5 to 7")
    assert (first["act"], first["about"]) == ("plan put in force", "plan 1")


def test_a_policy_of_several_periods_has_one_name_in_lists_and_is_enforced_in_all(
    gatelock: Gatelock, counted: Callable[[str], None]
) -> None:
    api = '[[policies]]\nname = "api"\nlimits = { day = 8, month = 7 }\nmode = "shadow"\n'
    counted(api)
    assert gatelock("locks", "list", "--policy", "api").output == "nothing matches\n"
    tried = gatelock("policies", "enforce", "api", "--reason", "x", "--dry-run")
    assert "in shadow it has 2 locks at this time" in tried.output
    assert gatelock("policies", "enforce", "api", "--reason", "a week").exit_code == 0
    held = lines(gatelock("locks", "list", "--policy", "api", "--json").output)
    assert sorted((lock["policy"], lock["key"]) for lock in held) == [
        ("api/day", "api_key:ann"), ("api/month", "api_key:ann"),
    ]  # fmt: skip
    shown = lines(gatelock("policies", "list", "api", "--json").output)
    assert [(fields["name"], fields["mode"]) for fields in shown] == [
        ("api/day", "enforce"), ("api/month", "enforce"),
    ]  # fmt: skip
    assert gatelock("policies", "enforce", "api", "--reason", "x").exit_code == 1
    raised = ("callers", "limit", "api_key:ann", "--amount", "50", "--reason", "sold")
    assert "use one of api/day, api/month" in gatelock(*raised, "--policy", "api").output
    assert gatelock(*raised, "--policy", "api/day").exit_code == 0
    held = lines(gatelock("locks", "list", "--policy", "api", "--json").output)
    assert [lock["policy"] for lock in held] == ["api/month"]
