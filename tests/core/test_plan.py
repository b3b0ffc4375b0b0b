"""The plan: one order, one text, one digest, whatever the order in the configuration."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.core.counting.meters import REQUESTS, Meter
from analyzer.core.judging.plan import Plan, plan_from, plan_of
from analyzer.core.judging.policies import Calendar, Quota
from gatekeeper.model import Rate

names = st.text(min_size=1, max_size=8)
conditions = st.lists(st.tuples(names, st.lists(names, max_size=3).map(tuple)), max_size=2).map(tuple)
meters = st.builds(
    Meter, names, st.none() | names, st.sampled_from(["sum", "max"]), conditions, st.sampled_from([60, 900])
)
policies = st.builds(
    Quota,
    names,
    st.integers(0, 2**63 - 1),
    st.builds(Calendar, st.sampled_from(["minute", "hour", "day", "week", "month"]), names),
    names,
    st.sampled_from(["caller", "caller+resource"]),
    st.sampled_from(["deny", "slow", "tag"]),
    st.integers(400, 599),
    st.sampled_from(["keep", "allow"]),
    st.none() | st.builds(Rate, st.integers(1), st.floats(0.001, 1e6)),
)
parts = st.tuples(
    st.lists(st.sampled_from(["caller", "caller+resource"])),
    st.lists(meters, unique_by=lambda meter: meter.name, max_size=4),
    st.lists(policies, unique_by=lambda policy: policy.name, max_size=4),
)


@given(parts)
def test_a_plan_comes_back_from_its_text(made_of: tuple[list[str], list[Meter], list[Quota]]) -> None:
    plan = plan_of(*made_of)
    assert plan_from(plan.to_json()) == plan
    assert plan_from(plan.to_json()).digest == plan.digest


@given(parts, st.randoms())
def test_the_order_in_the_configuration_makes_no_difference(
    made_of: tuple[list[str], list[Meter], list[Quota]], random: object
) -> None:
    shuffled = tuple(sorted(part, key=lambda _: random.random()) for part in made_of)
    assert plan_of(*shuffled).to_json() == plan_of(*made_of).to_json()


@given(policies, policies)
def test_different_policies_have_different_digests(one: Quota, other: Quota) -> None:
    assert (plan_of([], [], [one]).digest == plan_of([], [], [other]).digest) == (one == other)


def test_callers_and_requests_are_always_counted() -> None:
    """The audit rests on them."""
    assert plan_of([], [], []) == Plan() == Plan(("caller",), (REQUESTS,), ())
    policy = Quota("export", 5, Calendar("hour"), per="caller+resource")
    assert plan_of([], [], [policy]).groupings == ("caller", "caller+resource")
    assert [meter.name for meter in plan_of([], [Meter("bytes", "bytes")], []).meters] == [
        "bytes",
        "requests",
    ]


def test_a_policy_is_found_by_its_name() -> None:
    policy = Quota("daily", 5, Calendar("day"))
    plan = plan_of([], [], [policy])
    assert (plan.policy("daily"), plan.policy("weekly")) == (policy, None)


def test_the_text_names_every_field() -> None:
    """Another version reads it: a field that only its default tells would change its meaning there."""
    text = plan_of([], [], [Quota("daily", 5, Calendar("day"))]).to_json()
    (stored,) = msgspec.json.decode(text)["policies"]
    assert set(stored) == {field.name for field in dataclasses.fields(Quota)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"groupings":7}',
        '{"policies":[{"name":"daily","limit":5}]}',
        '{"policies":[{"name":"daily","limit":5,"window":{"per":"fortnight"}}]}',
    ],
)
def test_a_plan_that_says_what_this_version_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        plan_from(text)
