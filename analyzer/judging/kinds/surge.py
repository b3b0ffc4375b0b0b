"""The policy kind `surge`: too much in a short rolling window, and locks that escalate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil

from analyzer.judging.circumstances import Circumstances, Needs, Wait
from analyzer.judging.kinds import surge_share, surge_windows
from analyzer.judging.kinds.compared import MILLION, percent
from analyzer.judging.kinds.earned_locks import (
    counted_text,
    duration_text,
    earned_lock,
    effect,
    is_of_all_clients,
    limits_text,
    lock_key,
)
from analyzer.judging.kinds.quota import as_phrase
from analyzer.judging.rolling import below_s, largest_sum
from analyzer.judging.totals import Standing
from analyzer.plan.groupings import BY_RESOURCE, parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.meters import JOINS
from analyzer.plan.policies import Surge
from analyzer.plan.sums import Sum
from gatekeeper.model import Lock

BEHIND_PAUSE_S = 1.0  # until a judgement that waits for a backlog is tried again


def judged_sum(policy: Surge) -> Sum:
    """The rolling sum that a surge is judged by."""
    return Sum(policy.per, policy.meter, policy.window, policy.meter_join, surge_share.part_role(policy))


def widest_bucket_s(policy: Surge) -> int:
    """Returns the seconds of the widest stored buckets that its windows can be made of; 0: none.

    A share of a base is judged by both, and the base of a slot may be counted later than the slot.
    """
    return 0 if surge_share.largest_share(policy) else policy.window.widest_bucket_s


def thresholds(policy: Surge) -> tuple[int, ...]:
    """Values of the sum at which the policy must be judged."""
    return (policy.limit,)


def needs(policy: Surge) -> Needs:
    """A duration that escalates depends on earlier locks, a lock on a network on each of its addresses."""
    is_of_network = parse_grouping(policy.per).scope == "range" and not policy.per.endswith(BY_RESOURCE)
    return Needs(
        ended_locks_s=policy.forget_after_s if len(policy.lock_for_s) > 1 else 0,
        addresses=is_of_network and JOINS[policy.meter_join].in_buckets,
    )


def judge_surge(
    policy: Surge, standing: Standing, present: Lock | None, context: Circumstances
) -> Lock | Wait | None:
    """Returns the lock that a rolling sum earns; None below the limit.

    A lock that is in force stays as it is: what comes during it is judged when it ends. It lasts until
    what has earned it has left the window, at least: otherwise the same requests would earn the next one. An
    analyzer that is behind by more than the window raises no lock: it counts what happened then, not what
    happens now. With a share, and for a network, the limit is not enough: see `surge_windows`.
    """
    rolling, now_s = policy.window, context.now_s
    if present is not None and present.until > context.now:
        return present
    if largest_sum(standing.slots, rolling, now_s) < policy.limit:
        return None
    if context.behind_s > rolling.period_s:
        # Growth cannot end it, only the analyzer that is behind: see `Circumstances.behind_s`.
        return Wait(context.now.timestamp() + BEHIND_PAUSE_S, is_behind=True)
    if surge_share.base_sum(policy) is not None and standing.base is None:
        return Wait(context.now.timestamp())  # this transaction has not read it, the warden will at once
    window = surge_windows.earning_window(policy, standing, now_s)
    if window is None:
        look_s = surge_windows.look_again_s(policy, standing, now_s)
        # Growth that may earn the lock before is the total's `next`: see `surge_windows.growth_to`.
        return None if look_s is None else Wait(max(look_s, context.now.timestamp()))
    offence = context.offences.get(lock_key(policy, standing.total), 0) + 1
    earliest = datetime.fromtimestamp(below_s(standing.slots, rolling, policy.limit, now_s), UTC)
    until = max(earliest, context.now + timedelta(seconds=duration_s(policy, offence)))
    return earned_lock(
        policy,
        standing.total,
        kind=policy.kind,
        reason="abnormal-usage-detected",
        detail=explain(
            policy,
            window.used,
            offence,
            ceil((until - context.now).total_seconds()),
            window.addresses and window.addresses.number,
            window.base,
        ),
        began=context.now,
        until=until,
    )


def duration_s(policy: Surge, offence: int) -> int:
    """Returns how long the lock of an offence lasts; the first one is 1."""
    return policy.lock_for_s[min(offence, len(policy.lock_for_s)) - 1]


def explain(
    policy: Surge,
    used: int,
    offence: int = 1,
    lasts_s: int | None = None,
    addresses: int | None = None,
    base: int | None = None,
) -> str:
    """Returns the sentence that a refusal shows.

    `lasts_s` is for a lock that lasts longer than configured, `addresses` how many of a network took part,
    `base` what a policy with a share compares with.

    >>> from analyzer.plan.windows import Rolling
    >>> flood = Surge("flood", 600, Rolling(60), lock_for_s=(600, 3600))
    >>> explain(flood, 655)
    '600 requests in any 1m, 655 counted; locked for 10m'
    >>> explain(flood, 640, 2)
    '600 requests in any 1m, 640 counted; offence 2 within 7d, locked for 1h'
    >>> explain(flood, 640, addresses=14)
    '600 requests in any 1m, 640 counted from 14 addresses; locked for 10m'

    >>> guessing = Surge("guessing", 20, Rolling(60), meter="errors", share=500_000, base="requests")
    >>> explain(guessing, 45, base=50)
    '20 errors in any 1m and more than 50 % of the requests, 45 counted, 90 % of 50; locked for 10m'
    """
    unit = policy.meter_unit
    text = f"{with_noun(policy.limit, unit, policy.meter)} {as_phrase(policy.window)}"
    text += f" and more than {_of_base(policy)}" if surge_share.largest_share(policy) else ""
    if not is_of_all_clients(policy):
        text += f", {counted_text(policy, used)}"
        text += f" from {addresses:,} addresses" if addresses else ""
        text += f", {percent(used * MILLION // base)} of {amount_text(base, unit)}" if base else ""
    if policy.action == "notify":
        again = f"; offence {offence} within {duration_text(policy.forget_after_s)}"
        return text + again if offence > 1 else text
    again = f"offence {offence} within {duration_text(policy.forget_after_s)}, " if offence > 1 else ""
    return f"{text}; {again}locked for {duration_text(lasts_s or duration_s(policy, offence))}"


def describe(policy: Surge) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.plan.windows import Rolling
    >>> describe(Surge("flood", 600, Rolling(60), per="address/24", lock_for_s=(600, 3600)))
    'flood: at most 600 requests for each IPv4 /24 network in any 1m, then 429 for 10m, 1h, ...'
    >>> describe(Surge("guessing", 20, Rolling(60), meter="errors", share=500_000, base="requests"))
    'guessing: at most 20 errors or 50 % of the requests for each caller in any 1m, then 429 for 10m'
    """
    phrase = parse_grouping(policy.per).phrase
    limit = limits_text(policy)
    limit += f" or {_of_base(policy)}" if surge_share.largest_share(policy) else ""
    durations = ", ".join(map(duration_text, policy.lock_for_s))
    ends = f"for {durations}" if len(policy.lock_for_s) == 1 else f"for {durations}, ..."
    return (
        f"{policy.name}: at most {limit} for {phrase} {as_phrase(policy.window)}, then {effect(policy, ends)}"
    )


def _of_base(policy: Surge) -> str:
    return f"{percent(surge_share.largest_share(policy))} of the {policy.base}"
