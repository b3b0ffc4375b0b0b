"""The plan: its order, text and digest; its stored formats, and the versions that can read them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.counting.records.formats import FORMATS
from analyzer.judging.kinds import KINDS
from analyzer.judging.plan_sums import plan_sums
from analyzer.plan.groupings import SHOWN
from analyzer.plan.mapping import (
    FORMAT_NAMES,
    AddressField,
    Condition,
    Not,
    NumberField,
    Pattern,
    ResourceField,
    SourceMapping,
    TextField,
    TimeField,
)
from analyzer.plan.meters import JOINS, REQUESTS, Meter
from analyzer.plan.plan import FORMAT, Plan, UnknownPlan, make_plan, meaning, plan_from
from analyzer.plan.policies import POLICY_CLASSES, Policy, Quota, RollingQuota, Surge
from analyzer.plan.windows import DAY_S, Calendar, Rolling
from gatekeeper.identity import PREFIX6
from gatekeeper.model import Rate

names = st.text(min_size=1, max_size=8)
values = st.lists(names, max_size=3).map(tuple)
wanted = values | st.just((Pattern("glob", "/v1/*"), "x", Pattern("match", "^a")))
conditions = st.lists(st.builds(Condition, names, wanted | wanted.map(Not)), max_size=2).map(tuple)
meters = st.builds(Meter, names, st.none() | names, st.sampled_from(sorted(JOINS)), conditions)
calendars = st.builds(Calendar, st.sampled_from(["minute", "hour", "day", "week", "month"]), names)
rolling = st.builds(Rolling, st.integers(5, 31 * DAY_S))
common = {
    "meter": names,
    "per": st.sampled_from(SHOWN),
    "action": st.sampled_from(["deny", "slow", "tag"]),
    "status": st.integers(400, 599),
    "on_stale": st.sampled_from(["keep", "allow"]),
    "slow": st.none() | st.builds(Rate, st.integers(1), st.floats(0.001, 1e6)),
}
limits = st.integers(0, 2**63 - 1)
policies = (
    st.builds(Quota, names, limits, calendars, **common)
    | st.builds(RollingQuota, names, limits, rolling, **common)
    | st.builds(
        Surge,
        names,
        limits,
        rolling,
        st.lists(st.integers(1), min_size=1, max_size=3).map(tuple),
        st.integers(60),
        **common,
    )
)
Parts = tuple[list[str], list[Meter], list[Policy]]
parts = st.tuples(
    st.lists(st.sampled_from(SHOWN)),
    st.lists(meters, unique_by=lambda meter: meter.name, max_size=4),
    st.lists(policies, unique_by=lambda policy: policy.name, max_size=4),
)


@given(parts)
def test_a_plan_is_read_from_its_text(parts_: Parts) -> None:
    plan = make_plan(*parts_)
    assert plan_from(plan.to_json()) == plan
    assert plan_from(plan.to_json()).digest == plan.digest


@given(parts, st.randoms())
def test_the_order_in_the_configuration_makes_no_difference(parts_: Parts, random: object) -> None:
    shuffled = tuple(sorted(part, key=lambda _: random.random()) for part in parts_)
    assert make_plan(*shuffled).to_json() == make_plan(*parts_).to_json()


def test_defaults_do_not_belong_to_the_meaning() -> None:
    """A release that adds a setting leaves the digest of each configuration as it is."""
    daily = Quota("daily", 5, Calendar("day"))
    assert meaning(daily) == {"name": "daily", "limit": 5, "window": {"per": "day"}}
    assert meaning(SourceMapping(fields={"user": TextField(("u",))})) == {
        "fields": {"user": {"": "text", "path": ["u"]}}
    }


def test_a_plan_has_its_rules_and_each_source_as_parts() -> None:
    web = {"web": SourceMapping(format="combined")}
    daily = Quota("daily", 5, Calendar("day"))
    assert list(make_plan([], [], [daily], web).parts) == ["rules", "source web"]
    assert list(make_plan([], [], [], web).parts) == ["source web"], "rules that say nothing are not a part"
    assert make_plan([], [], [daily], web).parts["rules"] == make_plan([], [], [daily]).parts["rules"]


def test_the_order_of_conditions_does_not_belong_to_the_meaning() -> None:
    one = Meter("x", where=(Condition("a", ("1", "2")), Condition("b", ("3",))))
    other = Meter("x", where=(Condition("b", ("3",)), Condition("a", ("2", "1"))))
    assert make_plan([], [one], []).digest == make_plan([], [other], []).digest
    sources = [{"web": SourceMapping(deny_if=meter.where)} for meter in (one, other)]
    assert len({make_plan([], [], [], source).digest for source in sources}) == 1


def test_conditions_are_stored_as_before_and_patterns_as_pairs() -> None:
    """An analyzer that knows values alone reads plans without patterns, and refuses those with one."""
    plain = Meter("x", where=(Condition("a", ("2", "1")), Condition("b", Not(("3",)))))
    assert '"where":[["a",["1","2"]],["b",{"not":["3"]}]]' in make_plan([], [plain], []).to_json()
    assert make_plan([], [plain], []).digest.startswith("dfa64006e5de071e")
    patterns = (Pattern("prefix", "/b"), "x", Pattern("glob", "/a/*"))
    with_patterns = make_plan([], [Meter("x", where=(Condition("a", Not(patterns)),))], [])
    assert '["a",{"not":["x",["glob","/a/*"],["prefix","/b"]]}]' in with_patterns.to_json()
    assert plan_from(with_patterns.to_json()) == with_patterns


def test_a_plan_with_sources_is_read_from_its_text() -> None:
    fields = {
        "user": TextField(("a", "b.c")),
        "address": AddressField(("ip",), 64),
        "resource": ResourceField(("path",), ("/v1/{id}",), "none"),
        "bytes": NumberField(("n",), "duration", "ms", None),
    }
    mapping = SourceMapping(
        time=TimeField(("ts",), "ms"), fields=fields, deny_if=(Condition("user", ("x",)),)
    )
    plan = make_plan([], [], [], {"web": mapping})
    assert plan_from(plan.to_json()) == plan
    assert plan_from(plan.to_json()).sources["web"].fields == fields


@given(policies, policies)
def test_different_policies_have_different_digests(one: Policy, other: Policy) -> None:
    assert (make_plan([], [], [one]).digest == make_plan([], [], [other]).digest) == (one == other)


def test_callers_and_requests_are_always_counted() -> None:
    """The audit rests on them."""
    assert make_plan([], [], []) == Plan() == Plan(("caller",), (REQUESTS,), ())
    policy = Quota("export", 5, Calendar("hour"), per="caller+resource")
    assert make_plan([], [], [policy]).groupings == ("caller", "caller+resource")
    names = [meter.name for meter in make_plan([], [Meter("bytes", "bytes")], []).meters]
    assert names == ["bytes", "requests"]


def test_a_policy_is_found_by_its_name() -> None:
    policy = Quota("daily", 5, Calendar("day"))
    plan = make_plan([], [], [policy])
    assert (plan.policy("daily"), plan.policy("weekly")) == (policy, None)


def test_the_text_has_every_field_with_the_kind_of_each_policy() -> None:
    """Another version reads it: a field left at its default would change its meaning there."""
    format_, body = json.loads(make_plan([], [], [Quota("daily", 5, Calendar("day"))]).to_json())
    assert format_ == FORMAT
    ((kind, stored),) = body["policies"]
    assert kind == "quota"
    # Absent where they are not used: a release that adds one changes no plan without it.
    assert set(stored) == set(Quota.__struct_fields__) - {
        "unit",
        "plan_limits",
        "route_limits",
        "join",
        "mode",
        "brake",
        "notify",
        "grace",
    }


def test_a_policy_on_a_maximum_is_refused_by_a_version_that_can_only_add_up() -> None:
    largest = Meter("largest", "bytes", "max")
    plan = make_plan([], [largest], [Quota("size", 5, Calendar("day"), meter="largest")])
    ((_, stored),) = json.loads(plan.to_json())[1]["policies"]
    assert stored["join"] == "max"  # an unknown field to it
    assert plan_from(plan.to_json()) == plan
    assert [sum_.join for sum_ in plan_sums(plan).policies_by_sum] == ["max"]


def test_each_kind_is_stored_under_its_name() -> None:
    assert {kind.policy.kind: kind for kind in KINDS.values()} == dict(KINDS)
    assert {name: kind.policy for name, kind in KINDS.items()} == dict(POLICY_CLASSES)


def test_each_format_that_a_plan_may_name_is_one_that_is_read() -> None:
    assert tuple(FORMATS) == FORMAT_NAMES


BODY = '{"groupings":["caller"],"meters":[],"policies":[],"sources":{}}'
DAILY = '{"name":"daily","limit":5,"window":{"per":"day","zone":"UTC"}}'


def with_policy(kind: str, policy: str) -> str:
    return BODY.join(["[1,", "]"]).replace('"policies":[]', f'"policies":[["{kind}",{policy}]]')


def with_where(pattern: str) -> str:
    return f"[1,{BODY}]".replace("[]", f'[{{"name":"x","where":[["path",[{pattern}]]]}}]', 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Input data was truncated"),
        ("[]", "of length 2"),
        (f"[2,{BODY}]", "format 2, this version reads format 1"),
        (f"[1,{BODY},1]", "of length 2"),
        (f'[1,{BODY[:-1]},"tenants":1}}]', "unknown field `tenants`"),
        (with_policy("unknown", DAILY), "kind 'unknown', this version knows quota"),
        (
            f"[1,{BODY}]".replace("[]", '[{"name":"size","join":"least"}]', 1),
            "join 'least', this version knows sum, max",
        ),
        (f"[1,{BODY}]".replace('"caller"', '"browser"'), "'browser' is not a grouping"),
        (
            f"[1,{BODY}]".replace('"sources":{}', '"sources":{"web":{"format":"w3c"}}'),
            "format 'w3c', this version reads json",
        ),
        (with_where('["suffix",".php"]'), "Invalid enum value 'suffix'"),
        (with_where('["match","a(?=b)"]'), "a pattern that this version does not know: a\\(\\?=b\\) "),
        (with_policy("quota", DAILY[:-1] + ',"weight":2}'), "unknown field `weight`"),
        (with_policy("quota", '{"name":"daily"}'), "missing required field `limit`"),
        (with_policy("quota", DAILY.replace('"day"', '"age"')), "Invalid enum value"),
        (BODY, "Expected `array`, got `object`"),
        ('[1,{"policies":[]}]', "missing required field `groupings`"),
    ],
)
def test_a_plan_that_this_version_does_not_know_is_refused(text: str, why: str) -> None:
    with pytest.raises(UnknownPlan, match=why):
        plan_from(text)


def test_the_cut_of_addresses_that_files_have_by_default_is_in_the_digest() -> None:
    """Earlier versions had another default, which is not: their plans differ from the files of this one."""
    assert meaning(AddressField(("ip",), 128)) == {"": "address", "path": ["ip"]}
    assert meaning(AddressField(("ip",), PREFIX6)) == {"": "address", "path": ["ip"], "prefix6": 64}
