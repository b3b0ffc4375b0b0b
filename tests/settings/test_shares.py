"""Shares in the configuration: what is stored, and which defaults there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.config.settings import load
from analyzer.judging.kinds.capacity import resource_capacity
from analyzer.judging.plan_sums import plan_sums
from analyzer.plan.plan import Plan, UnknownPlan, plan_from
from analyzer.plan.policies import POLICY_CLASSES, CapacityShare, LoadShare, UsualShare
from analyzer.plan.sums import Sum
from analyzer.plan.windows import Rolling

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
    assert plan_sums(found).wholes_by_sum == {part: Sum("resource", "requests", Rolling(300), role="whole")}
    assert [(at.grouping, at.width_s, at.meters) for at in plan_sums(found).slot_layouts] == [
        ("caller+resource", 25, ("requests",)), ("resource", 25, ("requests",))
    ]  # fmt: skip
    assert plan_from(found.to_json()) == found


def test_a_share_of_everyone_is_compared_with_everyone(plan: Callable[[str], Plan]) -> None:
    found = plan(TEXT.replace('of     = "resource"', 'of = "everyone"\nhold = 0\nrelease = 0.125'))
    policy = share_in(found)
    assert (policy.per, policy.hold_s, policy.release) == ("caller", 0, 125_000)
    assert [whole.grouping for whole in plan_sums(found).wholes] == ["everyone"]


def test_a_capacity_takes_the_place_of_the_limit(plan: Callable[[str], Plan]) -> None:
    found = plan(TEXT.replace("limit  = 0.4", 'capacity = "500/s"'))
    [policy] = found.policies
    assert policy == CapacityShare(
        "neighbour", 150_000, 9_000, Rolling(300), hold_s=60, release=750_000, per="caller+resource"
    )
    [part] = plan_sums(found).policies_by_sum
    assert plan_sums(found).together == {part}
    assert plan_from(found.to_json()) == found


def test_capacities_of_resources_are_a_table(plan: Callable[[str], Plan]) -> None:
    table = '{ "/v1/export" = "50/s", "/v1/search" = "600/m", default = "500/s" }'
    [policy] = plan(TEXT.replace("limit  = 0.4", f"release = 0.5\ncapacity = {table}")).policies
    assert isinstance(policy, CapacityShare)
    assert (policy.limit, policy.release) == (150_000, 500_000)
    assert policy.capacities == (("/v1/export", 15_000), ("/v1/search", 3_000))
    [policy] = plan(TEXT.replace("limit  = 0.4", 'capacity = { "/v1/export" = "50/s" }')).policies
    assert (resource_capacity(policy, "/v1/export"), resource_capacity(policy, "other")) == (15_000, 0)


@pytest.mark.parametrize(
    ("mark", "kind"), [('capacity = "500/s"', "capacity-share"), ("usual = 3", "usual-share")]
)
def test_an_earlier_version_refuses_a_plan_with_another_mark(
    plan: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch, mark: str, kind: str
) -> None:
    text = plan(TEXT.replace("limit  = 0.4", mark)).to_json()
    monkeypatch.delitem(POLICY_CLASSES, kind)  # type: ignore[arg-type] # a Mapping to all others
    with pytest.raises(UnknownPlan, match=f"a policy of the kind '{kind}'"):
        plan_from(text)


def test_a_multiple_of_the_usual_load_takes_the_place_of_the_limit(plan: Callable[[str], Plan]) -> None:
    found = plan(TEXT.replace("limit  = 0.4", "usual = 2.5"))
    [policy] = found.policies
    assert policy == UsualShare(
        "neighbour", 2_500, 9_000, Rolling(300), hold_s=60, release=750_000, per="caller+resource"
    )
    assert plan_sums(found).with_usual == {*plan_sums(found).policies_by_sum}
    assert plan_from(found.to_json()) == found


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
