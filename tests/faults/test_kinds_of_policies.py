"""Bounds on the callers that rolling windows lock, by the requests of each second."""

from __future__ import annotations

from analyzer.plan.plan import make_plan
from analyzer.plan.policies import LoadShare, RollingQuota, Surge
from analyzer.plan.windows import Rolling
from tests.faults.kinds_of_policies import bounds

NOW_S = 1_795_176_000
PLAN = make_plan(
    [],
    [],
    [
        RollingQuota("hours", 400, Rolling(7_200)),
        Surge("flood", 300, Rolling(60)),
        LoadShare("neighbour", 100_000, 300, Rolling(300), release=60_000),
    ],
)


def test_between_those_that_must_be_locked_and_the_others_are_those_that_may_be() -> None:
    seconds = {
        ("noisy", NOW_S - 100): 6_000,
        ("slow", NOW_S - 240): 200,  # with the next one in a minute, and in no 20 s
        ("slow", NOW_S - 200): 200,
        ("earlier", NOW_S - 7_500): 500,  # perhaps in the oldest slot
        ("quiet", NOW_S - 10): 30,
    }
    assert bounds(PLAN, seconds, NOW_S) == {
        "hours": ({"noisy", "slow"}, {"noisy", "slow", "earlier"}),
        "flood": ({"noisy"}, {"noisy", "slow", "earlier"}),
        "neighbour": ({"noisy"}, {"noisy", "slow"}),
    }
