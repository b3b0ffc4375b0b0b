"""`brake` of a policy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import load
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Brake
from analyzer.plan.proposals import promoted
from tests.settings.test_modes import DAILY, SOURCE


def plan_of_file(tmp_path: Path, policy: str) -> Plan:
    (tmp_path / "gatelock.toml").write_text(SOURCE + DAILY + policy)
    return load(tmp_path / "gatelock.toml").plan()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", msgspec.UNSET),
        ('brake = "off"', Brake()),
        ("brake = { callers = 100 }", Brake(100, 0, 300)),
        ('brake = { callers = 100, traffic = 0.05, per = "5m" }', Brake(100, 50_000, 300)),
        ('brake = { traffic = 0.5, per = "1h" }', Brake(0, 500_000, 3_600)),
    ],
)
def test_the_brake_is_part_of_the_plan(tmp_path: Path, written: str, expected: object) -> None:
    [policy] = plan_of_file(tmp_path, written).policies
    assert policy.brake == expected


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("brake = 100", 'must be a table or "off", not 100'),
        ('brake = "on"', 'must be a table or "off", not "on"'),
        ("brake = { caller = 100 }", '"caller" is not a bound'),
        ("brake = {}", "has no bound"),
        ('brake = { per = "5m" }', "has no bound"),
        ("brake = { callers = 0 }", "0"),
        ("brake = { callers = 1_000_001 }", "1000001"),
        ("brake = { traffic = 5 }", "must be a share of the whole, more than 0 and less than 1, not 5"),
        ('brake = { callers = 1, per = "30s" }', "30s"),
        ('brake = { callers = 1, per = "2h" }', "2h"),
        ("brake = { callers = 1 }\nsoft = true", "has no effect: the policy sets no lock"),
    ],
)
def test_faults_of_a_brake(tmp_path: Path, written: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid) as found:
        plan_of_file(tmp_path, written)
    assert fault in str(found.value)
    assert "brake" in str(found.value)


def test_a_candidate_has_no_brake_and_its_promotion_keeps_that_of_the_policy(tmp_path: Path) -> None:
    plan = plan_of_file(tmp_path, "brake = { callers = 7 }\ncandidate = { limit = 300 }")
    candidate = plan.policy("daily/candidate")
    assert candidate is not None
    assert candidate.brake is msgspec.UNSET
    after = promoted(plan, "daily")
    assert after is not None
    [policy] = after.policies
    assert (policy.limit, policy.brake) == (300, Brake(callers=7))
