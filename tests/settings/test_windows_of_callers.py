"""Windows of each caller in the configuration: what is stored, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.settings import load
from analyzer.judging.plan_sums import plan_sums
from analyzer.plan.plan import Plan, make_plan, plan_from
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar

TEXT = """
[[sources]]
topic = "calls"
[sources.fields]
user     = "user"
org      = "org"
tenant   = "org"
resource = { path = "path", else = "other" }
[[meters]]
name     = "routes"
distinct = "resource"
[[policies]]
name   = "monthly"
limit  = 10
per    = "caller"
meter  = "requests"
window = { WINDOW }
"""


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    def read(window: str, **changes: str) -> Plan:
        text = TEXT.replace("WINDOW", window)
        for name, value in changes.items():
            text = text.replace(f'"{name}"', f'"{value}"')
        (tmp_path / "gatelock.toml").write_text(text)
        return load(tmp_path / "gatelock.toml").plan()

    return read


@pytest.mark.parametrize(
    ("window", "stored"),
    [
        ('per = "month", anchor = "caller"', Calendar("month", "UTC", ("anchor",))),
        ('per = "week", anchor = "caller", zone = "Asia/Tokyo"', Calendar("week", "Asia/Tokyo", ("anchor",))),
        ('per = "hour", zone = "caller"', Calendar("hour", "UTC", ("zone",))),
        (
            'per = "month", anchor = "caller", zone = "caller", default_zone = "Asia/Tokyo"',
            Calendar("month", "Asia/Tokyo", ("anchor", "zone")),
        ),
    ],
)
def test_zone_and_anchor_are_part_of_the_stored_window(
    plan: Callable[..., Plan], window: str, stored: Calendar
) -> None:
    found = plan(window)
    [policy] = found.policies
    assert isinstance(policy, Quota)
    assert policy.window == stored
    assert plan_from(found.to_json()) == found
    [sum_] = plan_sums(found).policies_by_sum
    assert Calendar.from_key(*str(sum_.window).split(" ")) == stored


def test_a_plan_without_windows_of_callers_is_stored_as_before() -> None:
    text = make_plan([], [], [Quota("daily", 5, Calendar("day"))]).to_json()
    assert '"window":{"per":"day","zone":"UTC"}' in text
    assert Calendar("day").by_caller is UNSET


@pytest.mark.parametrize(
    ("window", "changes", "message"),
    [
        ('per = "day", anchor = "caller"', {}, "months or weeks begin, and the period is a day"),
        ('per = "month", anchor = "2026-01-31"', {}, 'must be "caller" or "tenant", not "2026'),
        ('rolling = "10m", anchor = "caller"', {}, "a rolling window has no anchor"),
        ('rolling = "10m", zone = "caller"', {}, "a rolling window has no zone"),
        ('per = "day", default_zone = "UTC"', {}, 'default_zone stands beside zone = "caller"'),
        ('per = "day", zone = "caller"', {"caller": "tenant"}, "needs series of callers"),
        ('per = "day", zone = "tenant"', {}, "needs series of tenants"),
        ('per = "month", zone = "tenant", anchor = "caller"', {}, "and anchor of a caller"),
        ('per = "month", anchor = "caller"', {"requests": "routes"}, "counts distinct values"),
    ],
)
def test_keys_without_a_meaning_are_refused(
    plan: Callable[..., Plan], window: str, changes: dict[str, Any], message: str
) -> None:
    # As a literal string, so that no change of the grouping replaces it.
    with pytest.raises(ConfigInvalid) as raised:
        plan(window.replace('"caller"', "'caller'"), **changes)
    assert message in str(raised.value)
