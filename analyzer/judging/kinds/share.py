"""The policy kind `share` with a limit: a series that takes more of a resource than its part.

See `compared` for what it has in common with the other policies about noisy neighbours.
"""

from __future__ import annotations

from functools import partial

from analyzer.judging.circumstances import Circumstances
from analyzer.judging.kinds.compared import (
    MILLION,
    ComparisonRule,
    LoadFinding,
    judge_compared,
    percent,
    series_load,
    whole_load,
)
from analyzer.judging.kinds.earned_locks import duration_text, effect
from analyzer.judging.kinds.quota import as_phrase
from analyzer.judging.totals import Standing
from analyzer.plan.groupings import BY_RESOURCE, parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.policies import LoadShare


def find(policy: LoadShare, standing: Standing, context: Circumstances) -> LoadFinding:
    """Returns whether a series has more of the whole than the limit, and less than the mark of release."""
    load, whole = series_load(standing, policy, context), whole_load(standing, policy, context)
    return LoadFinding(load * MILLION > policy.limit * whole, load * MILLION < policy.release * whole)


def amounts(policy: LoadShare, standing: Standing, context: Circumstances) -> tuple[int, int]:
    """Returns what a series has in the window that ends now, and how much of the whole it may have."""
    most = whole_load(standing, policy, context) * policy.limit // MILLION
    return series_load(standing, policy, context), max(policy.floor, most)


def explain(policy: LoadShare, load: int, whole: int) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.plan.windows import Rolling
    >>> policy = LoadShare("neighbour", 400_000, 9_000, Rolling(300), release=250_000, per="caller+resource")
    >>> explain(policy, 12_600, 28_000)
    '45 % of all requests of the resource in 5m, 12,600 of 28,000; at most 40 %, from 9,000 on'
    """
    unit, all_of = policy.meter_unit, "the resource" if policy.whole == "resource" else "everyone"
    counted = f"{amount_text(load, unit)} of {amount_text(whole, unit)}"
    return (
        f"{percent(load * MILLION // max(whole, 1))} of all {policy.meter} of {all_of} in "
        f"{duration_text(policy.window.period_s)}, {counted}; at most {percent(policy.limit)}, from "
        f"{amount_text(policy.floor, unit)} on"
    )


def _explain(policy: LoadShare, standing: Standing, context: Circumstances) -> str:
    return explain(policy, series_load(standing, policy, context), whole_load(standing, policy, context))


judge_share = partial(judge_compared, ComparisonRule(find, _explain))


def describe(policy: LoadShare) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.plan.windows import Rolling
    >>> policy = LoadShare("busy", 400_000, 9_000, Rolling(300), release=250_000, per="caller+resource")
    >>> describe(policy).partition("; ")[0]
    'busy: at most 40 % of the requests of a resource for each caller in any 5m, from 9,000 requests on'
    >>> describe(policy).partition("; ")[2]
    'above it for 1m, then 429 until it is below 25 %'
    """
    phrase = parse_grouping(policy.per.removesuffix(BY_RESOURCE)).phrase
    all_of = "a resource" if policy.whole == "resource" else "everyone"
    ends = effect(policy, f"until it is below {percent(policy.release)}")
    return (
        f"{policy.name}: at most {percent(policy.limit)} of the {policy.meter} of {all_of} for {phrase} "
        f"{as_phrase(policy.window)}, from {with_noun(policy.floor, policy.meter_unit, policy.meter)} on; "
        f"above it for {duration_text(policy.hold_s)}, then {ends}"
    )
