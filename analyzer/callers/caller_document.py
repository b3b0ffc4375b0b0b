"""The document about a caller that its application passes on: what is the caller's business.

Pure. It leaves out what `gatelock explain` shows to operators alone: policies in shadow, also by their brake,
candidates, and those that only notify or tag; shares, whose limits are made of the use of other callers; who
set, cleared or held off a lock; and the names of the caller, its tenant and its networks.
"""

from __future__ import annotations

from analyzer.callers.caller_standing import CallerStanding, PolicyUse
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import counted_text
from analyzer.judging.kinds.quota import as_phrase
from analyzer.kernel.database.clock import instant
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import STORED_IN, with_noun
from analyzer.plan.policies import Policy
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import WITHOUT_END, Lock

FORMAT = 1
REFUSING = ("deny", "slow")  # the actions that a caller notices
SUSPENDED = "suspend"  # the action of the off switch


def caller_document(standing: CallerStanding) -> dict[str, object]:
    """Returns the fields of the document; docs/feed.md describes them."""
    is_off = any(lock.action == SUSPENDED for lock in standing.locks)
    locks = [] if is_off else [lock for lock in standing.locks if lock.action in REFUSING]
    return {
        "format": FORMAT,
        "now": time_text(instant(standing.now_ms)),
        "locked": any(lock.action == "deny" for lock in locks),
        "locks": [_lock_fields(lock) for lock in locks],
        "limits": [
            _limit_fields(use)
            for use in standing.uses
            if _is_for_callers(use.policy) and use.policy.name not in standing.in_shadow
        ],
    }


def unlock_sentence(lock: Lock) -> str:
    """Returns how a caller gets rid of a lock."""
    if lock.until >= WITHOUT_END:
        return "The lock ends when the operator of this service changes your plan or your limit."
    return (
        f"The lock ends by itself at {time_text(lock.until)}. "
        "Only the operator of this service can end it earlier."
    )


def _is_for_callers(policy: Policy) -> bool:
    """Whether the policy has an effect that callers notice, and a limit that depends on no other caller."""
    return policy.action in REFUSING and not policy.is_shadow and policy_kind(policy).whole_sum is None


def _lock_fields(lock: Lock) -> dict[str, object]:
    return {
        "policy": lock.policy,
        "scope": lock.scope,
        "resource": lock.resource or None,
        "action": lock.action,
        "slow": None if lock.slow is None else {"limit": lock.slow.limit, "period": lock.slow.period},
        "status": lock.status,
        "reason": lock.reason,
        "detail": lock.detail,
        "began": time_text(lock.began),
        "until": time_text(lock.until),
        "unlock": unlock_sentence(lock),
    }


def _limit_fields(use: PolicyUse) -> dict[str, object]:
    """Returns the fields of one limit; without an amount, if there is none that the caller could reach."""
    policy = use.policy
    limit = None if use.is_exempt or use.is_unlimited else use.limit
    return {
        "policy": policy.name,
        "scope": parse_grouping(policy.per).lock_scope,
        "resource": use.resource or None,
        "meter": policy.meter,
        "unit": None if use.unit is None else STORED_IN[use.unit],
        "used": use.used,
        "limit": limit,
        "remaining": None if limit is None else max(0, limit - use.used),
        "window_s": use.window_s,
        "resets": _time(use.until_s),
        "reached": None if use.is_exempt else _time(use.reached_s),
        "exempt": use.is_exempt,
        "detail": _sentence(use),
    }


def _sentence(use: PolicyUse) -> str:
    """Returns the limit and the use in the words of a refusal."""
    policy, counted = use.policy, counted_text(use.policy, use.used)
    if use.is_exempt or use.is_unlimited:
        return f"no limit, {counted}"
    if not use.limit:
        return f"no {policy.meter} are allowed, {counted}"
    window = policy_kind(policy).judged_sum(policy).window
    return f"{with_noun(use.limit, use.unit, policy.meter)} {as_phrase(window)}, {counted}"


def _time(at_s: int | None) -> str | None:
    return None if at_s is None else time_text(instant(at_s * 1000))
