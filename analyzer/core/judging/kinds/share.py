"""The policy kind `share`: a series that takes more of a resource than its part, the noisy neighbour.

A flush does not compare. The floor is the threshold of the series' rolling sum, and a series that reaches it
waits for the warden, which compares it with the whole each second until it is below the floor again. So a
flush costs what it costs for any rolling sum, and the warden reads only the few series above their floor.

A lock lasts for a minute, and the warden extends it as long as the share lasts: gates open by themselves when
no analyzer works any more.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from analyzer.core.counting.groupings import BY_RESOURCE, grouping_of
from analyzer.core.counting.meter_units import amount_text, with_noun
from analyzer.core.judging.circumstances import Circumstances, Wait
from analyzer.core.judging.kinds.earned_locks import effect, lock_key, lock_of
from analyzer.core.judging.kinds.quota import phrase_of
from analyzer.core.judging.policies import LoadShare
from analyzer.core.judging.rolling import largest_sum, sum_at
from analyzer.core.judging.totals import Standing, Sum
from gatekeeper.model import Lock

WHOLE = 1_000_000  # of which limit and release are parts
LOOK_EVERY_S = 1.0
LOCK_S = 60  # from the look that sets or extends a lock to its end
EXTEND_S = 30  # before its end a lock is extended: each change is a version of the feed
GAP_S = 30.0  # between two looks, beyond which a share has not been seen to last
BEHIND_S_MIN = 5.0  # what an analyzer may be behind, for the shortest windows


def sum_of(policy: LoadShare) -> Sum:
    """The rolling sum of the series that are compared."""
    return Sum(policy.per, policy.meter, policy.window, role="share")


def whole_of(policy: LoadShare) -> Sum:
    """The rolling sum that they are compared with: of the resource, or of everyone."""
    return Sum(of(policy), policy.meter, policy.window, role="whole")


def of(policy: LoadShare) -> str:
    """Returns the grouping of the whole."""
    return "resource" if policy.per.endswith(BY_RESOURCE) else "everyone"


def thresholds(policy: LoadShare) -> tuple[int, ...]:
    """Values of the sum from which on a series is compared."""
    return (policy.floor,)


def behind_max_s(policy: LoadShare) -> float:
    """Returns how far the analyzers may be behind: beyond it too much of the others' load is missing."""
    return max(float(policy.window.slot_s), BEHIND_S_MIN)


def amounts(policy: LoadShare, standing: Standing, now_s: int) -> tuple[int, int]:
    """Returns what a series has in the window that ends now, and how much of the whole it may have."""
    whole = sum_at(standing.whole, policy.window, now_s)
    return sum_at(standing.slots, policy.window, now_s), max(policy.floor, whole * policy.limit // WHOLE)


def judge_share(
    policy: LoadShare, standing: Standing, present: Lock | None, at: Circumstances
) -> Wait | None:
    """Returns what a series must have until the warden looks again; None below the floor without a lock.

    Its share is that of the window that ends now. Until the analyzers have caught up with a backlog nothing
    is decided; a lock that is in force then ends by its time.
    """
    locked = None if present is None or present.until <= at.now else present
    if locked is None and largest_sum(standing.slots, policy.window, at.now_s) < policy.floor:
        return None
    if not at.is_warden:
        return Wait(at.now.timestamp())
    again_s = at.now.timestamp() + LOOK_EVERY_S
    if at.behind_s > behind_max_s(policy):
        return Wait(again_s, is_behind=True)
    return _look(policy, standing, locked, at)._replace(until_s=again_s)


def _look(policy: LoadShare, standing: Standing, locked: Lock | None, at: Circumstances) -> Wait:
    """Returns what a series must have by its share in the window that ends now."""
    load = sum_at(standing.slots, policy.window, at.now_s)
    whole = sum_at(standing.whole, policy.window, at.now_s)
    now_s = at.now.timestamp()
    if locked is not None:
        if not load or load * WHOLE < policy.release * whole:
            return Wait(now_s, clears=True)
        return Wait(now_s, lock=_continued(policy, standing, locked, at.now))
    if load < policy.floor or load * WHOLE <= policy.limit * whole:
        return Wait(now_s)
    hold = at.holds.get(lock_key(policy, standing.total))
    since_s = now_s if hold is None or now_s - hold.seen_s > GAP_S else hold.since_s
    if now_s - since_s < policy.hold_s:
        return Wait(now_s, over_since_s=since_s)
    return Wait(now_s, lock=_lock(policy, standing, explain(policy, load, whole), at.now, at.now))


def _continued(policy: LoadShare, standing: Standing, present: Lock, now: datetime) -> Lock:
    """Returns the lock with the policy's present settings, extended where it would end soon."""
    extended = _lock(policy, standing, present.detail, present.began, now)
    is_by_this_plan = extended == replace(present, until=extended.until)
    return present if is_by_this_plan and present.until > now + timedelta(seconds=EXTEND_S) else extended


def _lock(policy: LoadShare, standing: Standing, detail: str, began: datetime, now: datetime) -> Lock:
    return lock_of(
        policy,
        standing.total,
        kind=policy.kind,
        reason="abnormal-usage-detected",
        detail=detail,
        began=began,
        until=now + timedelta(seconds=LOCK_S),
    )


def explain(policy: LoadShare, load: int, whole: int) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.core.judging.windows import Rolling
    >>> policy = LoadShare("neighbour", 400_000, 9_000, Rolling(300), release=250_000, per="caller+resource")
    >>> explain(policy, 12_600, 28_000)
    '45 % of all requests of the resource in 5m, 12,600 of 28,000; at most 40 %, from 9,000 on'
    """
    unit, all_of = policy.meter_unit, "the resource" if of(policy) == "resource" else "everyone"
    counted = f"{amount_text(load, unit)} of {amount_text(whole, unit)}"
    return (
        f"{percent(load * WHOLE // max(whole, 1))} of all {policy.meter} of {all_of} in "
        f"{_duration(policy.window.period_s)}, {counted}; at most {percent(policy.limit)}, from "
        f"{amount_text(policy.floor, unit)} on"
    )


def describe(policy: LoadShare) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.core.judging.windows import Rolling
    >>> policy = LoadShare("busy", 400_000, 9_000, Rolling(300), release=250_000, per="caller+resource")
    >>> describe(policy).partition("; ")[0]
    'busy: at most 40 % of the requests of a resource for each caller in any 5m, from 9,000 requests on'
    >>> describe(policy).partition("; ")[2]
    'above it for 1m, then 429 until it is below 25 %'
    """
    phrase = grouping_of(policy.per.removesuffix(BY_RESOURCE)).phrase
    all_of = "a resource" if of(policy) == "resource" else "everyone"
    ends = effect(policy, f"until it is below {percent(policy.release)}")
    return (
        f"{policy.name}: at most {percent(policy.limit)} of the {policy.meter} of {all_of} for {phrase} "
        f"{phrase_of(policy.window)}, from {with_noun(policy.floor, policy.meter_unit, policy.meter)} on; "
        f"above it for {_duration(policy.hold_s)}, then {ends}"
    )


def percent(millionths: int) -> str:
    """Returns a share as text.

    >>> percent(400_000), percent(125_500), percent(1)
    ('40 %', '12.5 %', '0 %')
    """
    return f"{millionths // 1000 / 10:.1f}".removesuffix(".0") + " %"


def _duration(seconds: int) -> str:
    return amount_text(seconds * 10**6, "duration")
