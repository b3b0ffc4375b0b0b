"""Shares in the configuration: what is stored, and which defaults there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.settings import load
from analyzer.core.judging.plan import Plan, plan_from
from analyzer.core.judging.policies import LoadShare
from analyzer.core.judging.totals import Sum
from analyzer.core.judging.windows import Rolling

TEXT = """
[[sources]]
topic = "calls"
[sources.fields]
user     = "user"
resource = { path = "path", else = "other" }
took     = { path = "took", unit = "s" }
size     = { path = "size", kind = "bytes" }
[[meters]]
name = "busy"
sum  = "took"
[[meters]]
name = "volume"
sum  = "size"
[[policies]]
name   = "neighbour"
kind   = "share"
of     = "resource"
limit  = 0.4
floor  = "30/s"
window = { rolling = "5m" }
"""


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[str], Plan]:
    def read(text: str) -> Plan:
        (tmp_path / "gatelock.toml").write_text(text)
        return load(tmp_path / "gatelock.toml").plan()

    return read


def share_in(plan: Plan) -> LoadShare:
    [policy] = plan.policies
    assert isinstance(policy, LoadShare)
    return policy


def test_a_share_is_judged_by_resource_above_its_floor(plan: Callable[[str], Plan]) -> None:
    found = plan(TEXT)
    assert share_in(found) == LoadShare(
        "neighbour", 400_000, 9_000, Rolling(300), hold_s=60, release=300_000, per="caller+resource"
    )
    assert found.groupings == ("caller", "caller+resource", "resource")
    part = Sum("caller+resource", "requests", Rolling(300), role="share")
    assert found.whole_of == {part: Sum("resource", "requests", Rolling(300), role="whole")}
    assert [(at.grouping, at.width_s, at.meters) for at in found.slot_layouts] == [
        ("caller+resource", 25, ("requests",)), ("resource", 25, ("requests",))
    ]  # fmt: skip
    assert plan_from(found.to_json()) == found


def test_a_share_of_everyone_is_compared_with_everyone(plan: Callable[[str], Plan]) -> None:
    found = plan(TEXT.replace('of     = "resource"', 'of = "everyone"\nhold = 0\nrelease = 0.125'))
    policy = share_in(found)
    assert (policy.per, policy.hold_s, policy.release) == ("caller", 0, 125_000)
    assert [whole.grouping for whole in found.wholes] == ["everyone"]


@pytest.mark.parametrize(
    ("meter", "floor", "stored"),
    [
        ("requests", "100/m", 500),
        ("requests", "1/h", 1),  # rounded up
        ("busy", "500ms/s", 150_000_000),
        ("volume", "2 MiB/m", 5 * 2 << 20),
    ],
)
def test_a_floor_is_an_amount_of_the_meter_per_time(
    plan: Callable[[str], Plan], meter: str, floor: str, stored: int
) -> None:
    text = TEXT.replace('floor  = "30/s"', f'floor = "{floor}"\nmeter = "{meter}"')
    assert share_in(plan(text)).floor == stored
