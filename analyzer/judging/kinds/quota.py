"""The policy kind `quota`: a lock from the limit on, until the window ends or less is in it."""

from __future__ import annotations

from calendar import day_name, month_name
from datetime import UTC, datetime

import msgspec

from analyzer.judging.circumstances import Circumstances, Needs, Wait
from analyzer.judging.earned_notices import LASTS_S, WHOLE, LastNotice, Notice, amount_at, notice_key, percent
from analyzer.judging.kinds.earned_locks import (
    counted_text,
    earned_lock,
    effect,
    is_of_all_clients,
    limits_text,
)
from analyzer.judging.rolling import begins_s, below_s, largest_sum, present_sum
from analyzer.judging.totals import Standing
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import amount_text, with_noun
from analyzer.plan.policies import NO_GRACE, Quota, RollingQuota, Surge
from analyzer.plan.sums import NEVER, Sum
from analyzer.plan.windows import Calendar, Rolling, Windows
from gatekeeper.model import WITHOUT_END, Lock

AnyQuota = Quota | RollingQuota
LIFETIME = Calendar("lifetime")


def judged_sum(policy: AnyQuota | Surge) -> Sum:
    """The running total, or the rolling sum, that a quota or a surge is judged by."""
    return Sum(policy.per, policy.meter, policy.window, policy.meter_join)


def thresholds(policy: AnyQuota) -> tuple[int, ...]:
    """Values of the total at which the policy must be judged."""
    noticed = {amount_at(policy.limit, threshold) for threshold in policy.thresholds}
    return tuple(sorted({*noticed, policy.locks_at} - {NEVER})) or (NEVER,)


def locks_at(policy: AnyQuota) -> int:
    """Returns the least total that earns a lock, at once or after the time of grace."""
    return policy.locks_at


def widest_bucket_s(policy: AnyQuota | Surge) -> int:
    """Returns the seconds of the widest stored buckets that its windows can be made of; 0: none."""
    return policy.window.widest_bucket_s


def calendar_needs(policy: Quota) -> Needs:
    """A grace of time begins with the notice that the limit is reached."""
    return Needs(notices=(WHOLE,) if policy.grace_given.time_s else ())


def rolling_needs(policy: RollingQuota) -> Needs:
    """Whether a notice is raised depends on the last one of its threshold."""
    return Needs(notices=policy.thresholds)


def judge_calendar(
    policy: Quota, standing: Standing, _present: Lock | None, context: Circumstances
) -> Lock | Wait | None:
    """Returns the lock that a total earns, beginning now; None below the limit and its grace.

    A window that is over earns none: late records are counted where they belong and lock nothing. One that
    has not begun waits for its beginning, because a clock runs ahead. A grace of time begins with the notice
    that the limit is reached. A limit of 0 locks without an end and without a count, in every window.
    """
    window, now_s = standing.total.window, context.now.timestamp()
    if locks_without_count(policy):
        return _lock(policy, standing, standing.used, context.now, WITHOUT_END)
    if now_s >= window.until_s or not policy.window.limits(window):
        return None
    if now_s < window.start_s:
        # No growth ends it: nothing is locked for a window that has not begun.
        return Wait(window.start_s) if standing.used >= thresholds(policy)[0] else None
    if standing.used < policy.locks_at:
        return None
    grace_s = policy.grace_given.time_s
    if grace_s:
        last = context.notices.get(notice_key(policy.name, standing.total, WHOLE))
        ends_s = (now_s if last is None else last.raised_s) + grace_s
        if now_s < ends_s:  # growth does not shorten a grace of time
            return Wait(ends_s) if ends_s < window.until_s else None
    return _lock(policy, standing, standing.used, context.now, datetime.fromtimestamp(window.until_s, UTC))


def calendar_notices(policy: Quota, standing: Standing, context: Circumstances) -> list[Notice]:
    """Returns the notices of the thresholds that a total has reached, in a window that is open.

    Those raised before are among them.
    """
    total, now_s = standing.total, context.now.timestamp()
    if not policy.thresholds:
        return []
    if not total.window.start_s <= now_s < total.window.until_s or not policy.window.limits(total.window):
        return []
    return [
        Notice(
            notice_key(policy.name, total, threshold),
            parse_grouping(policy.per).scope,
            standing.used,
            policy.limit,
            total.window.until_s,
            explain_notice(policy, threshold, standing.used),
        )
        for threshold in policy.thresholds
        if standing.used >= amount_at(policy.limit, threshold)
    ]


def calendar_amounts(policy: Quota, standing: Standing, _at: Circumstances) -> tuple[int, int]:
    """Returns what a series has used in the window of its total, and its limit."""
    return standing.used, policy.limit


def rolling_amounts(
    policy: RollingQuota | Surge, standing: Standing, context: Circumstances
) -> tuple[int, int]:
    """Returns the largest sum of the windows that hold the present, and the limit."""
    return present_sum(standing.slots, policy.window, context.now_s), policy.limit


def judge_rolling(
    policy: RollingQuota, standing: Standing, _present: Lock | None, context: Circumstances
) -> Lock | Wait | None:
    """Returns the lock that a rolling sum earns, until less is in the window; None below limit and grace.

    A sum with thresholds is judged again when it may fall below one that it has reached, and when a window
    begins that a clock ahead has filled.
    """
    if locks_without_count(policy):
        return _lock(policy, standing, standing.used, context.now, WITHOUT_END)
    rolling, slots, now_s = policy.window, standing.slots, context.now_s
    answer = _rolling_lock(policy, standing, context)
    looks_s = [float(answer.until_s)] if isinstance(answer, Wait) else []
    for amount in {amount_at(policy.limit, threshold) for threshold in policy.thresholds}:
        if present_sum(slots, rolling, now_s) >= amount:
            looks_s.append(below_s(slots, rolling, amount, now_s))
        elif largest_sum(slots, rolling, now_s) >= amount:
            looks_s.append(begins_s(slots, rolling, amount, now_s))
    if isinstance(answer, Lock) and not policy.is_shadow and _is_latest(rolling, answer.until, now_s):
        looks_s.append(answer.until.timestamp() - rolling.period_s)  # the slot after its newest one begins
    if not looks_s:
        return answer
    # By time it falls below what it has reached. Growth that reaches more is the total's `next`.
    return Wait(min(looks_s), lock=answer if isinstance(answer, Lock) else None)


def _rolling_lock(policy: RollingQuota, standing: Standing, context: Circumstances) -> Lock | Wait | None:
    """Returns the lock, or when the sum must be judged again to get one."""
    rolling, slots, now_s = policy.window, standing.slots, context.now_s
    used = present_sum(slots, rolling, now_s)
    if used >= policy.locks_at:
        grace_s = policy.grace_given.time_s
        if grace_s:
            last = context.notices.get(notice_key(policy.name, standing.total, WHOLE))
            ends_s = (last.raised_s if last is not None and last.lasts else context.now.timestamp()) + grace_s
            if context.now.timestamp() < ends_s:
                return Wait(ends_s)  # growth does not shorten a grace of time
        until_s = below_s(slots, rolling, policy.locks_at, now_s)
        return _lock(policy, standing, used, context.now, datetime.fromtimestamp(until_s, UTC))
    if largest_sum(slots, rolling, now_s) >= policy.locks_at:
        # Growth of a window that holds the present is the total's `next`: see `rolling.growth_to`.
        return Wait(begins_s(slots, rolling, policy.locks_at, now_s))
    return None


def growth_to_extend(policy: RollingQuota, standing: Standing, now_s: int) -> int | None:
    """Returns how much more must be counted, at the least, before a lock lasts longer by more than a slot.

    None below the limit, and of locks that no gate gets: their end reaches no client. None where nothing is
    allowed, because such a lock has no end. A client whose
    requests continue to count would see an end that has long been moved, and would come back too early.

    None also while the present slot has the limit alone: until the next slot begins, nothing that is counted
    moves the end, for any amount, and then the warden looks. So a flood is judged a few times in a slot, and
    not by each flush that brings a whole limit. Only a clock that is ahead could move it, and is seen with
    that look.
    """
    rolling, slots = policy.window, standing.slots
    if policy.is_shadow or not policy.limit or present_sum(slots, rolling, now_s) < policy.locks_at:
        return None
    until_s = below_s(slots, rolling, policy.locks_at, now_s)
    if _is_latest(rolling, datetime.fromtimestamp(until_s, UTC), now_s):
        return None
    return policy.locks_at - largest_sum(slots, rolling, until_s + rolling.slot_s)


def _is_latest(rolling: Rolling, until: datetime, now_s: int) -> bool:
    """Whether no later end can be counted before the next slot begins."""
    return until.timestamp() >= now_s - now_s % rolling.slot_s + rolling.period_s + rolling.slot_s


def rolling_notices(policy: RollingQuota, standing: Standing, context: Circumstances) -> list[Notice]:
    """Returns the notices that a rolling sum raises, and those whose end has changed.

    A notice lasts until a judgement finds the sum below its threshold. If that is reached again before a
    window has passed since the notice, the notice continues; later it is raised again. The notice from which
    a grace of time is measured is raised again in any case: each grace begins when the limit is reached.
    """
    used, now_s, notices = present_sum(standing.slots, policy.window, context.now_s), context.now_s, []
    for threshold in policy.thresholds:
        key = notice_key(policy.name, standing.total, threshold)
        last = context.notices.get(key)
        is_reached = used >= amount_at(policy.limit, threshold)
        if last is None and not is_reached:
            continue
        if last is not None and last.lasts == is_reached:
            continue
        is_new = is_reached and (last is None or _may_be_raised_again(policy, threshold, last, now_s))
        began_s = now_s if last is None or is_new else last.window_s
        notices.append(
            Notice(
                key._replace(window_s=began_s),
                parse_grouping(policy.per).scope,
                used,
                policy.limit,
                LASTS_S if is_reached else now_s,
                explain_notice(policy, threshold, used),
                was_raised=not is_new,
            )
        )
    return notices


def _may_be_raised_again(policy: RollingQuota, threshold: int, last: LastNotice, now_s: int) -> bool:
    """Whether a threshold that was not reached since its last notice may be raised again."""
    begins_grace = threshold == WHOLE and policy.grace_given.time_s > 0
    rest_s = 1 if begins_grace else policy.window.period_s  # the key of a notice has its second
    return now_s >= last.window_s + rest_s


def locks_without_count(policy: AnyQuota) -> bool:
    """Whether a policy, with the limit of a series, refuses its first request: nothing is allowed."""
    return policy.locks_at == 0


def _lock(policy: AnyQuota, standing: Standing, used: int, now: datetime, until: datetime) -> Lock:
    return earned_lock(
        policy,
        standing.total,
        kind=Quota.kind,
        reason="quota-exceeded",
        detail=explain(policy, used),
        began=now,
        until=until,
    )


def explain(policy: AnyQuota, used: int) -> str:
    """Returns the sentence that a refusal shows.

    >>> from analyzer.plan.policies import Grace
    >>> from analyzer.plan.windows import Calendar, Rolling
    >>> explain(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")), 100_214)
    '100,000 requests per day (Europe/Berlin), 100,214 counted'
    >>> explain(Quota("busy", 3_600_000_000, Calendar("day"), meter="busy", unit="duration"), 3_601_250_000)
    '1h of busy per day (UTC), 1h1.25s counted'
    >>> explain(RollingQuota("hourly", 1_000, Rolling(3600)), 1_003)
    '1,000 requests in any 1h, 1,003 counted'

    The count of a resource or of everyone is that of all clients together, which no client learns.

    >>> explain(Quota("all", 100_000, Calendar("day", "UTC"), per="everyone"), 100_214)
    '100,000 requests per day (UTC)'

    >>> explain(Quota("shared", 5, Calendar("day"), meter="addresses", join="distinct"), 6)
    '5 addresses per day (UTC), at least 6 counted'

    A grace is named, because the count of the lock is beyond the limit.

    >>> explain(Quota("soft", 1_000, Calendar("day"), grace=Grace(thousandths=100)), 1_104)
    '1,000 requests per day (UTC) and a grace of 10%, 1,104 counted'

    A limit of 0 is not about a window.

    >>> explain(Quota("exports", 0, Calendar("day", "UTC")), 0)
    'no requests are allowed'
    """
    if not policy.limit:
        return f"no {policy.meter} are allowed"
    unit = policy.meter_unit
    limit = f"{with_noun(policy.limit, unit, policy.meter)} {as_phrase(policy.window)}"
    if policy.grace_given != NO_GRACE:
        limit += f" and a grace of {grace_text(policy)}"
    return limit if is_of_all_clients(policy) else f"{limit}, {counted_text(policy, used)}"


def explain_notice(policy: AnyQuota, threshold: int, used: int) -> str:
    """Returns the sentence of a notice.

    >>> from analyzer.plan.windows import Calendar, Rolling
    >>> explain_notice(Quota("daily", 1_000, Calendar("day")), 800, 804)
    '80% of 1,000 requests per day (UTC), 804 counted'
    >>> explain_notice(RollingQuota("hourly", 1_000, Rolling(3600)), 800, 804)
    '80% of 1,000 requests in any 1h, 804 counted'
    """
    unit = policy.meter_unit
    limit = f"{with_noun(policy.limit, unit, policy.meter)} {as_phrase(policy.window)}"
    return f"{percent(threshold)} of {limit}, {counted_text(policy, used)}"


def grace_text(policy: AnyQuota) -> str:
    """Returns the grace of a policy in words: "10%", "500", "15m"."""
    grace = policy.grace_given
    if grace.time_s:
        return amount_text(grace.time_s * 10**6, "duration")
    return percent(grace.thousandths) if grace.thousandths else amount_text(grace.amount, policy.meter_unit)


def describe(policy: AnyQuota) -> str:
    """Returns the sentence that `gatelock check` shows.

    >>> from analyzer.plan.windows import Calendar
    >>> describe(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")))
    'daily: at most 100,000 requests for each caller per day (Europe/Berlin), then 429 until it ends'
    >>> describe(Quota("soft", 9, Calendar("day"), action="notify", notify=(500, 1_000)))
    'soft: at most 9 requests for each caller per day (UTC), then a notice, and no lock; notices at 50%, 100%'
    """
    phrase = parse_grouping(policy.per).phrase
    limit = limits_text(policy)
    ends = "until it ends" if isinstance(policy, Quota) else "until less is in the window"
    if policy.window == LIFETIME:
        ends = "without an end"
    text = f"{policy.name}: at most {limit} for {phrase} {as_phrase(policy.window)}"
    if policy.grace_given != NO_GRACE:
        text += f" and a grace of {grace_text(policy)}"
    text += f", then {effect(policy, ends)}"
    if policy.thresholds:
        text += f"; notices at {', '.join(map(percent, policy.thresholds))}"
    return text


def as_phrase(window: Windows) -> str:
    """Returns a window in words, behind an amount.

    >>> from analyzer.plan.windows import Calendar, Rolling
    >>> as_phrase(Calendar("day")), as_phrase(Rolling(90))
    ('per day (UTC)', 'in any 1m30s')

    Of one caller, and of all callers by their own windows:

    >>> as_phrase(Calendar("month", "Asia/Tokyo", first_day=31)), as_phrase(Calendar("week", first_day=3))
    ('per month from day 31 (Asia/Tokyo)', 'per week from Thursday (UTC)')
    >>> as_phrase(Calendar("year")), as_phrase(Calendar("year", first_day=229))
    ('per year (UTC)', 'per year from 29 February (UTC)')
    >>> as_phrase(Calendar("month", "UTC", ("anchor", "zone")))
    'per month from the day of its anchor (its zone, or UTC)'

    Of windows that do not repeat:

    >>> as_phrase(Calendar("lifetime"))
    'in all'
    >>> as_phrase(Calendar("contract", "UTC", days=("2026-01-01", "2027-01-01")))
    'from 2026-01-01 to 2027-01-01 (UTC)'
    """
    if isinstance(window, Calendar) and window.per == "lifetime":
        return "in all"
    if isinstance(window, Calendar) and not isinstance(window.days, msgspec.UnsetType):
        return f"from {window.days[0]} to {window.days[1]} ({window.zone})"
    if isinstance(window, Calendar):
        return f"per {window.per}{_beginning(window)} ({_zone(window)})"
    return f"in any {amount_text(window.period_s * 10**6, 'duration')}"


def _beginning(calendar: Calendar) -> str:
    if "anchor" in calendar.facts:
        return " from the day of its anchor"
    if isinstance(calendar.first_day, msgspec.UnsetType):
        return ""
    if calendar.per == "year":
        month, day = divmod(calendar.first_day, 100)
        return f" from {day} {month_name[month]}"
    is_week = calendar.per == "week"
    return f" from {day_name[calendar.first_day]}" if is_week else f" from day {calendar.first_day}"


def _zone(calendar: Calendar) -> str:
    return f"its zone, or {calendar.zone}" if "zone" in calendar.facts else calendar.zone
