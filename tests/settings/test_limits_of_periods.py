"""`limits` by period, lifetimes and contracts: which policies they state, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import Settings
from analyzer.plan.meter_units import UNLIMITED
from analyzer.plan.plan import plan_from
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from tests.settings.test_settings import SOURCE

Read = Callable[[str], Settings]
API = """
[[policies]]
name   = "api"
limits = { minute = 3, month = { free = 7, pro = "unlimited" }, lifetime = 50 }
window = { zone = "Asia/Tokyo", anchor = "caller" }
status = 402
"""
LIFETIME = '[[policies]]\nname = "trial"\nlimit = 9\nwindow = { per = "lifetime" }\n'
CONTRACT = '[[policies]]\nname = "sold"\nlimit = 9\nwindow = { from = 2026-01-01, until = "2027-01-01" }\n'


def test_each_period_states_a_policy_by_the_name_of_all(read: Read) -> None:
    plan = read(SOURCE + API).plan()
    minute, month, lifetime = (plan.policy(f"api/{period}") for period in ("minute", "month", "lifetime"))
    assert isinstance(month, Quota)
    assert (month.limit, month.plan_limits) == (UNLIMITED, (("free", 7), ("pro", UNLIMITED)))
    assert month.window == Calendar("month", "Asia/Tokyo", ("anchor",))
    assert isinstance(minute, Quota)
    assert (minute.limit, minute.window, minute.status) == (3, Calendar("minute", "Asia/Tokyo"), 402)
    assert isinstance(lifetime, Quota)
    assert lifetime.window.per == "lifetime"
    assert {policy.name for policy in plan.family("api")} == {"api/lifetime", "api/minute", "api/month"}
    assert plan_from(plan.to_json()) == plan


def test_a_contract_is_part_of_the_stored_window(read: Read) -> None:
    plan = read(SOURCE + CONTRACT + LIFETIME).plan()
    sold = plan.policy("sold")
    assert isinstance(sold, Quota)
    assert sold.window == Calendar("contract", days=("2026-01-01", "2027-01-01"))
    assert plan_from(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (API.replace("minute", "minut"), '"minut" is not a period'),
        (API.replace("limits = {", "limit = 3\nlimits = {"), "has limit and limits"),
        (API.replace("zone =", 'per = "day", zone ='), "limits have the periods"),
        (API + "candidate = { limit = 2 }", "limits have no candidate"),
        (API.replace("minute = 3", "minute = 0"), "0 is too small"),
        (API.replace("{ minute", "{ rolling = 1, minute"), '"rolling" is not a period'),
        ('[[policies]]\nname = "api"\nlimits = 5', "must be a table of limits by period"),
        (API + 'per = "tenant"', '"tenant" needs the field tenant'),
        (API + 'kind = "surge"', "limits: applies to quotas"),
        (LIFETIME.replace("{ per", '{ zone = "UTC", per'), "a lifetime has no zone"),
        (LIFETIME.replace("}", ', anchor = "caller" }'), "the period is a lifetime"),
        (LIFETIME + 'meter = "keys"\n[[meters]]\nname = "keys"\ndistinct = "api_key"', "a year at most"),
        (CONTRACT.replace("2027", "2025"), "until is not later than from"),
        (CONTRACT.replace(', until = "2027-01-01"', ""), "needs either per or rolling, or from and until"),
        (CONTRACT.replace("2026-01-01", "2026-01-01T00:00:00Z"), "must be a day"),
        (CONTRACT.replace("2027-01-01", "2027-13-01"), "is not a day"),
        (CONTRACT.replace("{ from", '{ zone = "caller", from'), "are the same for each caller"),
        (CONTRACT.replace("{ from", '{ per = "day", from'), "needs either per or rolling"),
    ],
)
def test_faults_are_found(read: Read, text: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid) as invalid:
        read(SOURCE + text).plan()
    assert fault in str(invalid.value)


def test_an_override_names_one_period(read: Read) -> None:
    override = '[[overrides]]\ncaller = "api_key:a"\npolicy = "api/month"\nlimit = 70\nreason = "sold"\n'
    [stated] = read(SOURCE + API + override).plan().overrides
    assert (stated.policy, stated.amount) == ("api/month", 70)
    with pytest.raises(ConfigInvalid, match="has a limit for each of several periods") as invalid:
        read(SOURCE + API + override.replace("api/month", "api"))
    assert 'name one: "api/minute" or "api/month" or "api/lifetime"' in str(invalid.value)
