"""Comparing series above their floor, for all policies about noisy neighbours.

A flush does not compare. The floor is the threshold of the series' rolling sum, and a series that reaches it
waits for the warden, which compares it each second until it is below the floor again. So a flush costs what
it costs for any rolling sum, and the warden reads only the few series above their floor.

A lock lasts for a minute, and the warden extends it as long as the cause lasts: gates open by themselves when
no analyzer works any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from analyzer.judging.circumstances import Circumstances, Wait
from analyzer.judging.kinds import victims
from analyzer.judging.kinds.earned_locks import earned_lock, lock_key
from analyzer.judging.rolling import largest_sum, sum_at
from analyzer.judging.totals import Standing
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.policies import ComparedLoad, LoadShare, Policy
from analyzer.plan.sums import Sum
from gatekeeper.model import Lock

MILLION = 1_000_000  # of which shares of a whole are parts
LOOK_EVERY_S = 1.0
LOCK_S = 60  # from the look that sets or extends a lock to its end
EXTEND_S = 30  # before its end a lock is extended: each change is a version of the feed
GAP_S = 30.0  # between two looks, beyond which a series has not been seen to be over its mark
BEHIND_S_MIN = 5.0  # what an analyzer may be behind, for the shortest windows


class LoadFinding(NamedTuple):
    """The result of one comparison, in the window that ends now."""

    is_over: bool  # of the series' mark: it is locked when this has lasted for the hold
    is_released: bool  # the series' lock must end
    is_to_blame: bool = True  # and must be locked; False: locking others is enough


class ComparisonRule(NamedTuple):
    """The comparison of one kind.

    Attributes:
        find: Returns the finding for a series.
        explain: Returns the sentence of its lock.
    """

    find: Callable[[Any, Standing, Circumstances], LoadFinding]
    explain: Callable[[Any, Standing, Circumstances], str]


def judged_sum(policy: ComparedLoad) -> Sum:
    """The rolling sum of the series that are compared."""
    return Sum(policy.per, policy.meter, policy.window, role="share")


def whole_sum(policy: ComparedLoad) -> Sum:
    """The rolling sum of their whole: of the resource, or of everyone."""
    return Sum(policy.whole, policy.meter, policy.window, role="whole")


def thresholds(policy: ComparedLoad) -> tuple[int, ...]:
    """Values of the sum from which on a series is compared."""
    return (policy.floor,)


def behind_max_s(policy: ComparedLoad) -> float:
    """Returns how far the analyzers may be behind: beyond it too much of the others' load is missing."""
    return max(float(policy.window.slot_s), BEHIND_S_MIN)


def series_load(standing: Standing, policy: ComparedLoad, context: Circumstances) -> int:
    """Returns what the window of a series holds that ends now."""
    return sum_at(standing.slots, policy.window, context.now_s)


def whole_load(standing: Standing, policy: ComparedLoad, context: Circumstances) -> int:
    """Returns what the window of the whole holds that ends now."""
    return sum_at(standing.whole, policy.window, context.now_s)


def within_span(amount: int, policy: ComparedLoad, context: Circumstances) -> int:
    """Returns what `amount` in a window is in the time of the slots that a load adds up, rounded down."""
    return amount * span_ms(policy, context) // (policy.window.period_s * 1000)


def span_ms(policy: ComparedLoad, context: Circumstances) -> int:
    """Returns the time of the slots that a load adds up, until now.

    They are up to a slot longer than the window: a steady load would seem larger than it is.
    """
    rolling = policy.window
    begin_s = context.now_s - context.now_s % rolling.slot_s - rolling.period_s
    return int(context.now.timestamp() * 1000) - begin_s * 1000


def judge_compared(
    rule: ComparisonRule,
    policy: ComparedLoad,
    standing: Standing,
    present: Lock | None,
    context: Circumstances,
) -> Wait | None:
    """Returns what a series must have until the warden looks again; None below the floor without a lock.

    Its load is that of the window that ends now. Until the analyzers have caught up with a backlog nothing
    is decided; a lock that is in force then ends by its time.
    """
    locked = None if present is None or present.until <= context.now else present
    if locked is None and largest_sum(standing.slots, policy.window, context.now_s) < policy.floor:
        return None
    # No growth ends these waits: the warden looks each second, and what it compares with is in no flush.
    if not context.is_warden:
        return Wait(context.now.timestamp())
    again_s = context.now.timestamp() + LOOK_EVERY_S
    if context.behind_s > behind_max_s(policy):
        return Wait(again_s, is_behind=True)
    return _look(rule, policy, standing, locked, context)._replace(until_s=again_s)


def _look(
    rule: ComparisonRule,
    policy: ComparedLoad,
    standing: Standing,
    locked: Lock | None,
    context: Circumstances,
) -> Wait:
    """Returns what a series must have by the window that ends now."""
    now_s = context.now.timestamp()
    load, finding = series_load(standing, policy, context), rule.find(policy, standing, context)
    if locked is not None:
        if not load or finding.is_released:
            return Wait(now_s, clears=True)
        return Wait(now_s, lock=_continued(policy, standing, locked, context.now))
    if load < policy.floor or not finding.is_over:
        return Wait(now_s)
    hold = context.holds.get(lock_key(policy, standing.total))
    since_s = now_s if hold is None or now_s - hold.seen_s > GAP_S else hold.since_s
    if now_s - since_s < policy.hold_s or not finding.is_to_blame:
        return Wait(now_s, over_since_s=since_s)
    detail = rule.explain(policy, standing, context)
    if standing.victims is not None:
        detail += f"; {victims.explain(policy, standing.victims)}"
    return Wait(now_s, lock=_lock(policy, standing, detail, context.now, context.now))


def _continued(policy: ComparedLoad, standing: Standing, present: Lock, now: datetime) -> Lock:
    """Returns the lock with the policy's present settings, extended where it would end soon."""
    extended = _lock(policy, standing, present.detail, present.began, now)
    is_by_this_plan = extended == replace(present, until=extended.until)
    return present if is_by_this_plan and present.until > now + timedelta(seconds=EXTEND_S) else extended


def _lock(policy: ComparedLoad, standing: Standing, detail: str, began: datetime, now: datetime) -> Lock:
    return earned_lock(
        policy,
        standing.total,
        kind=LoadShare.kind,
        reason="abnormal-usage-detected",
        detail=detail,
        began=began,
        until=now + timedelta(seconds=LOCK_S),
    )


def series_noun(policy: Policy) -> str:
    """Returns the word for one series of the policy: "caller", "network"."""
    scope = parse_grouping(policy.per).scope
    return "network" if scope == "range" else scope


def series_plural(policy: Policy) -> str:
    """Returns the word for several of its series: "callers", "addresses"."""
    noun = series_noun(policy)
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def percent(millionths: int) -> str:
    """Returns a share as text.

    >>> percent(400_000), percent(125_500), percent(1)
    ('40 %', '12.5 %', '0 %')
    """
    return f"{millionths // 1000 / 10:.1f}".removesuffix(".0") + " %"
