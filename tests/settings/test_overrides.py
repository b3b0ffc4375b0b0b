"""Limits by plan, `[[overrides]]` and `[[exempt]]`: what the plan gets, and which faults are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import load
from analyzer.plan.plan import Plan, UnknownPlan, plan_from
from analyzer.plan.policies import StatedOverride

POLICY = """
[[policies]]
name = "daily"
limit = { free = 10, default = 100 }
window = { per = "day" }
"""
OVERRIDE = """
[[overrides]]
caller = "api_key:acme"
policy = "daily"
limit = 50_000
until = 2026-12-01T00:00:00Z
reason = "migration"
"""
EXEMPT = """
[[exempt]]
address = "10.0.0.0/8"
reason = "our own probes"
"""
ROUTES = POLICY.replace("free = 10", '"/v1/*" = 5') + 'per = "caller+resource"'


def plan_of(path: Path, text: str) -> Plan:
    file = path / "gatelock.toml"
    file.write_text(text)
    return load(file).plan()


def test_the_plan_has_the_limits_and_overrides_of_the_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, POLICY + OVERRIDE + EXEMPT)
    [policy] = plan.policies
    assert (policy.limit, policy.plan_limits) == (100, (("free", 10),))
    assert set(plan.overrides) == {
        StatedOverride("limit", "caller", "api_key:acme", "daily", 50_000, None, 1_796_083_200, "migration"),
        StatedOverride("exempt", "address", "10.0.0.0/8", reason="our own probes"),
    }
    assert plan_from(plan.to_json()) == plan
    assert plan.digest != plan_of(tmp_path, POLICY + OVERRIDE).digest


def test_a_plan_without_them_has_no_word_of_them(tmp_path: Path) -> None:
    """Earlier versions read it, and its digest is that of before."""
    text = plan_of(tmp_path, POLICY.replace("{ free = 10, default = 100 }", "100")).to_json()
    assert "plan_limits" not in text
    assert "overrides" not in text


def test_a_word_of_a_later_version_in_an_override_is_refused(tmp_path: Path) -> None:
    text = plan_of(tmp_path, POLICY + EXEMPT).to_json()
    with pytest.raises(UnknownPlan):
        plan_from(text.replace('"kind":"exempt"', '"kind":"excused"'))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (POLICY.replace("free = 10", '"/v1/*" = 5, free = 10'), '"free" is not a route'),
        (POLICY.replace("free = 10", '"/v1/*" = 5'), "has limits by route, and"),
        (
            POLICY.replace("free = 10", '"/v1/***" = 5') + 'per = "caller+resource"',
            "*** is",
        ),
        (
            POLICY.replace("free = 10", '"/v1/*" = 0') + 'per = "caller+resource"',
            "allows nothing, which only",
        ),
        (POLICY.replace("free = 10", '"/v1/*" = "1h"') + 'per = "caller+resource"', '"requests" has no unit'),
        (POLICY.replace("default = 100", "defalt = 100"), "has no limit for callers without a plan"),
        (POLICY.replace("free = 10, ", ""), "has no limit of a plan"),
        (POLICY.replace("free = 10", "free = -1"), "-1 is too small"),
        (POLICY.replace("free = 10", "free = false"), "must be a whole number"),
        (POLICY.replace("free = 10", 'free = "none"'), "must be a whole number"),
        (POLICY.replace("{ free = 10, default = 100 }", "0"), "0 is too small"),
        (POLICY.replace("{ free = 10, default = 100 }", '"unlimited"'), "must be a whole number"),
        (POLICY.replace("free = 10", "free = 0") + 'per = "caller+resource"', "allows nothing, which only"),
        (POLICY.replace("free = 10", "free = 0") + 'per = "everyone"', "has limits by plan"),
        (
            POLICY.replace("free = 10", "free = 0").replace('per = "day"', 'rolling = "1m"')
            + 'kind = "surge"',
            "allows nothing, which only a quota",
        ),
        (POLICY.replace("free = 10", '"a b" = 5'), '"a b" is not the name of a plan'),
        (POLICY.replace("free = 10", 'free = "1h"'), '"requests" has no unit'),
        (POLICY + OVERRIDE.replace("daily", "dayly"), '"dayly" is not the name of a policy'),
        (POLICY + OVERRIDE.replace("50_000", '"2 GiB"'), '"requests" has no unit'),
        (POLICY + OVERRIDE.replace("api_key:acme", "acme"), "has no kind of name in front"),
        (POLICY + OVERRIDE.replace("caller =", "# caller ="), "needs either caller or tenant"),
        (POLICY + OVERRIDE.replace("00Z", "00"), "has no time zone"),
        (POLICY + OVERRIDE + "from = 2027-01-01\n", "until is not later than from"),
        (POLICY + OVERRIDE.replace("reason", "# reason"), "reason"),
        (POLICY + EXEMPT.replace("10.0.0.0/8", "10.0.0.1/8"), "is not an address or range"),
        (POLICY + EXEMPT + 'tenant = "shop"\n', "needs one of caller, tenant and address"),
    ],
)
def test_faults_are_found(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid) as found:
        plan_of(tmp_path, text)
    assert fault in str(found.value)


def test_the_tenant_cannot_be_the_caller(tmp_path: Path) -> None:
    """Facts, overrides and `explain` take tenant:acme for the tenant."""
    with pytest.raises(ConfigInvalid, match="is the kind of names of tenants"):
        plan_of(tmp_path, '[[sources]]\ntopic = "log"\ncaller = ["tenant"]\nfields = { tenant = "org" }\n')
