"""`mode` and `candidate` of a policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import load
from analyzer.plan.plan import Plan, plan_from
from analyzer.plan.policies import IN_FORCE, LoadShare, Quota, RollingQuota, Surge
from analyzer.plan.proposals import promoted
from analyzer.plan.windows import Calendar, Rolling

SOURCE = """
[[sources]]
topic = "calls"
[sources.fields]
user     = "user"
resource = { path = "path", else = "other" }
"""
DAILY = """
[[policies]]
name   = "daily"
limit  = 500
window = { per = "day" }
"""
FLOOD = """
[[policies]]
name   = "flood"
kind   = "surge"
limit  = 600
window = { rolling = "60s" }
"""
NEIGHBOUR = """
[[policies]]
name   = "neighbour"
kind   = "share"
of     = "resource"
limit  = 0.4
floor  = "30/s"
window = { rolling = "5m" }
"""

ReadPlan = Callable[[str], Plan]


@pytest.fixture
def plan(tmp_path: Path) -> ReadPlan:
    def read(text: str) -> Plan:
        (tmp_path / "gatelock.toml").write_text(SOURCE + text)
        return load(tmp_path / "gatelock.toml").plan()

    return read


def test_without_a_mode_the_stored_plan_is_what_it_was(plan: ReadPlan) -> None:
    assert "mode" not in plan(DAILY).to_json()
    assert plan(DAILY + 'mode = "enforce"\n') == plan(DAILY)


def test_a_mode_is_stored(plan: ReadPlan) -> None:
    found = plan(DAILY + 'mode = "shadow"\n')
    assert found.policies == (Quota("daily", 500, Calendar("day"), mode="shadow"),)
    assert plan_from(found.to_json()) == found


def test_a_candidate_has_the_settings_of_its_policy_but_the_stated_ones(plan: ReadPlan) -> None:
    found = plan(DAILY + 'notify = [0.5]\nstatus = 402\ncandidate = { limit = 300, grace = "10%" }\n')
    policy, candidate = found.policies
    assert isinstance(policy, Quota)
    assert isinstance(candidate, Quota)
    assert (policy.name, policy.limit, policy.thresholds, policy.mode) == ("daily", 500, (500,), IN_FORCE)
    assert (candidate.name, candidate.limit, candidate.status) == ("daily/candidate", 300, 402)
    assert (candidate.thresholds, candidate.mode) == ((), "shadow")
    assert candidate.grace_given.thousandths == 100
    assert plan_from(found.to_json()) == found


def test_a_candidate_may_have_another_window(plan: ReadPlan) -> None:
    found = plan(DAILY + 'notify = [0.5]\ncandidate = { window = { rolling = "6h" } }\n')
    assert found.policies[1] == RollingQuota("daily/candidate", 500, Rolling(21_600), mode="shadow")
    new = promoted(found, "daily")
    assert new is not None
    assert new.policies == (RollingQuota("daily", 500, Rolling(21_600), notify=(500,)),)


def test_candidates_of_surges_and_shares(plan: ReadPlan) -> None:
    found = plan(FLOOD + 'candidate = { limit = 300, lock_for = ["1m", "5m"] }\n')
    candidate = found.policies[1]
    assert isinstance(candidate, Surge)
    assert (candidate.limit, candidate.lock_for_s, candidate.window) == (300, (60, 300), Rolling(60))
    found = plan(NEIGHBOUR + "candidate = { limit = 0.2 }\n")
    candidate = found.policies[1]
    assert isinstance(candidate, LoadShare)
    assert (candidate.limit, candidate.release, candidate.floor) == (200_000, 150_000, 9_000)


def test_a_promotion_keeps_what_is_not_tried(plan: ReadPlan) -> None:
    found = plan(FLOOD + DAILY + "notify = [0.8]\ncandidate = { limit = 300 }\n")
    assert promoted(found, "daily") == plan(FLOOD + DAILY.replace("500", "300") + "notify = [0.8]\n")
    assert promoted(found, "flood") is None
    shadow = plan(FLOOD + 'mode = "shadow"\n')
    assert promoted(shadow, "flood") == plan(FLOOD)
    for name in ("weekly", "daily/candidate"):
        with pytest.raises(LookupError):
            promoted(found, name)


def test_a_candidate_of_one_number_keeps_the_limits_by_plan(plan: ReadPlan) -> None:
    by_plan = DAILY.replace("500", "{ pro = 2_000, free = 100, default = 500 }")
    found = plan(by_plan + "candidate = { limit = 300 }\n")
    assert [(one.limit, dict(one.plan_limits)) for one in found.policies if isinstance(one, Quota)] == [
        (500, {"pro": 2_000, "free": 100}),
        (300, {"pro": 2_000, "free": 100}),
    ]
    assert promoted(found, "daily") == plan(by_plan.replace("500", "300"))
    # A table replaces them.
    found = plan(by_plan + "candidate = { limit = { pro = 900, default = 300 } }\n")
    assert promoted(found, "daily") == plan(DAILY.replace("500", "{ pro = 900, default = 300 }"))


def test_a_candidate_of_one_number_keeps_the_capacities_of_resources(plan: ReadPlan) -> None:
    by_route = NEIGHBOUR.replace("limit  = 0.4", 'capacity = { "/export" = "50/s", default = "500/s" }')
    found = plan(by_route + 'candidate = { capacity = "300/s" }\n')
    assert promoted(found, "neighbour") == plan(by_route.replace("500/s", "300/s"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            DAILY.replace("500", "{ pro = 900, default = 500 }") + "candidate = { limit = 500 }\n",
            "is equal to its policy",
        ),
        (DAILY + 'mode = "dry"\n', "is not one of the known values"),
        (DAILY + 'soft = true\nmode = "shadow"\n', "has no effect: the policy sets no lock"),
        (DAILY + 'action = "notify"\ncandidate = { limit = 3 }\n', "has no effect: the policy sets no lock"),
        (DAILY + "candidate = {}\n", "states nothing in which it differs"),
        (DAILY + "candidate = { meter = 3 }\n", "candidate"),
        (DAILY + "candidate = { limit = 0.5 }\n", "must be a whole number, or text with a unit, not 0.5"),
        (
            NEIGHBOUR + "candidate = { limit = 50 }\n",
            "must be a share of the whole",
        ),
        (NEIGHBOUR + "candidate = { usual = 3 }\n", "a share takes exactly one of"),
        (DAILY + 'candidate = { hold = "5s" }\n', "applies to shares"),
        (FLOOD + 'candidate = { window = { per = "day" } }\n', "a surge needs a rolling window"),
    ],
)
def test_faults_of_modes_are_named_once(plan: ReadPlan, text: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        plan(text)
    assert sum(fault in str(found) for found in raised.value.faults) == 1, str(raised.value)
