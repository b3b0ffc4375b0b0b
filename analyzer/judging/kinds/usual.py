"""The policy kind `share` with a usual level: a series with several times its load at this hour of the week.

The usual level is the median of the weeks in which the series had something in this hour, two at least. With
fewer no series is locked: a new caller has no usual level.

See `compared` for what it has in common with the other policies about noisy neighbours.
"""

from __future__ import annotations

from functools import partial

from analyzer.judging.circumstances import Circumstances, Needs
from analyzer.judging.kinds.compared import (
    MILLION,
    ComparisonRule,
    LoadFinding,
    judge_compared,
    percent,
    series_load,
    span_ms,
)
from analyzer.judging.kinds.earned_locks import duration_text, effect
from analyzer.judging.kinds.quota import as_phrase
from analyzer.judging.totals import Standing, UsualLevel
from analyzer.plan.groupings import BY_RESOURCE, parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.policies import UsualShare
from analyzer.plan.windows import HOUR_S

THOUSAND = 1_000  # of which multiples are written
HOUR_MS = HOUR_S * 1_000


def find(policy: UsualShare, standing: Standing, context: Circumstances) -> LoadFinding:
    """Returns whether a series has more than its multiple; False without a usual level."""
    if standing.usual is None:
        return LoadFinding(is_over=False, is_released=True)
    # Of integers, each multiplied by what the other is divided by, so that nothing is rounded.
    load = series_load(standing, policy, context) * THOUSAND * HOUR_MS
    most = standing.usual.per_hour * policy.limit * span_ms(policy, context)
    mark = max(most, policy.floor * THOUSAND * HOUR_MS)  # which earns the lock; the floor is one of a window
    return LoadFinding(load > most, load * MILLION < policy.release * mark)


def in_window(policy: UsualShare, usual: UsualLevel) -> int:
    """Returns the usual load of a window, rounded down."""
    return usual.per_hour * policy.window.period_s // HOUR_S


def needs(_policy: UsualShare) -> Needs:
    """A multiple of the usual load needs to know that."""
    return Needs(usual=True)


def amounts(policy: UsualShare, standing: Standing, context: Circumstances) -> tuple[int, int]:
    """Returns what a series has in the window that ends now, and its multiple of the usual."""
    level = standing.usual or UsualLevel(0, 0)
    most = level.per_hour * policy.limit * policy.window.period_s // (HOUR_S * THOUSAND)
    return series_load(standing, policy, context), max(policy.floor, most)


def explain(policy: UsualShare, load: int, usual: UsualLevel) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.judging.totals import UsualLevel
    >>> from analyzer.plan.windows import Rolling
    >>> policy = UsualShare("unusual", 3_000, 9_000, Rolling(300), per="caller+resource")
    >>> explain(policy, 12_600, UsualLevel(24_000, 4)).partition("; ")[0]
    '12,600 requests of the resource in 5m, usually 2,000 at this hour of the week (median of 4 weeks)'
    >>> explain(policy, 12_600, UsualLevel(24_000, 4)).partition("; ")[2]
    'at most 3 times as much, from 9,000 on'
    """
    unit, all_of = policy.meter_unit, "the resource" if policy.whole == "resource" else "everyone"
    return (
        f"{with_noun(load, unit, policy.meter)} of {all_of} in {duration_text(policy.window.period_s)}, "
        f"usually {amount_text(in_window(policy, usual), unit)} at this hour of the week "
        f"(median of {usual.weeks} weeks); at most {policy.limit / THOUSAND:g} times as much, "
        f"from {amount_text(policy.floor, unit)} on"
    )


def _explain(policy: UsualShare, standing: Standing, context: Circumstances) -> str:
    level = standing.usual or UsualLevel(0, 0)
    return explain(policy, series_load(standing, policy, context), level)


judge_usual = partial(judge_compared, ComparisonRule(find, _explain))


def describe(policy: UsualShare) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.plan.windows import Rolling
    >>> policy = UsualShare("unusual", 3_000, 9_000, Rolling(300), release=750_000, per="caller+resource")
    >>> describe(policy).partition(" at this hour of the week ")[0]
    'unusual: at most 3 times the usual requests of a resource'
    >>> describe(policy).partition("; ")[2].partition("; ")[0]
    'from 9,000 on, above it for 1m, then 429 until it is below 75 % of that'
    """
    all_of = "a resource" if policy.whole == "resource" else "everyone"
    phrase = parse_grouping(policy.per.removesuffix(BY_RESOURCE)).phrase
    return (
        f"{policy.name}: at most {policy.limit / THOUSAND:g} times the usual {policy.meter} of {all_of} at "
        f"this hour of the week for {phrase} {as_phrase(policy.window)}; from "
        f"{amount_text(policy.floor, policy.meter_unit)} on, above it for {duration_text(policy.hold_s)}, "
        "then "
        + effect(policy, f"until it is below {percent(policy.release)} of that")
        + "; no lock with fewer than two weeks of counts at this hour"
    )
