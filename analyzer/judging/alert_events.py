"""Events of judgements for alerts: locks that begin and end at gates, thresholds that are reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from analyzer.judging.earned_notices import WHOLE, Notice, percent
from analyzer.judging.judge import BY_HAND, BY_PLAN, Evidence
from analyzer.judging.kinds import KINDS
from analyzer.kernel.outbox import OutboxEvent
from gatekeeper.feed.feed_json import change_fields
from gatekeeper.model import Change, LockKey, Set


def of_changes(
    published: Sequence[Change], was_enforced: Collection[LockKey], evidence: Evidence = BY_HAND
) -> list[OutboxEvent]:
    """Returns the events of changes that gates get.

    A lock that gates had before, and that only lasts longer now, is not an event; neither is the end of one
    that they had not.

    Args:
        published: The changes.
        was_enforced: Keys of locks that gates had when the transaction began.
        evidence: Why locks have ended.
    """
    return [
        _set_event(change) if isinstance(change, Set) else _clear_event(change, evidence)
        for change in published
        if isinstance(change, Set) != (change.at in was_enforced)
    ]


def of_notices(notices: Iterable[Notice]) -> list[OutboxEvent]:
    """Returns the events of thresholds that were not reached before."""
    return [
        OutboxEvent(
            "threshold.reached",
            notice.at.key,
            f"{_name(notice.at.key, notice.at.resource)} has reached {percent(notice.at.threshold)} of "
            f"{notice.at.policy}: {notice.detail}",
            "warning" if notice.at.threshold >= WHOLE else "info",
            notice.at.policy,
            notice.at.key if notice.scope == "tenant" else "",
            command="gatelock locks list --notices",
            details={
                "id": notice.at.id,
                "scope": notice.scope,
                "key": notice.at.key,
                "resource": notice.at.resource or None,
                "threshold": notice.at.threshold / WHOLE,
                "used": notice.used,
                "limit": notice.limit,
                "detail": notice.detail,
            },
        )
        for notice in notices
    ]


def _set_event(change: Set) -> OutboxEvent:
    key, lock = change.at, change.lock
    is_locked = f"{_name(key.key, key.resource)} is locked by {key.policy}"
    return OutboxEvent(
        "lock.set",
        key.key,
        f"{is_locked}: {lock.detail}" if lock.detail else is_locked,
        policy=key.policy,
        tenant=_tenant(key),
        command="gatelock locks list",
        details=change_fields(change),
        customer_what=is_locked if _compares_callers(lock.kind) else "",
    )


def _clear_event(change: Change, evidence: Evidence) -> OutboxEvent:
    key = change.at
    by_plan = f": plan {evidence.plan} ends it" if evidence.cause_of_end == BY_PLAN else ""
    return OutboxEvent(
        "lock.cleared",
        key.key,
        f"The lock of {_name(key.key, key.resource)} by {key.policy} has ended{by_plan}",
        policy=key.policy,
        tenant=_tenant(key),
        details=change_fields(change),
    )


def _compares_callers(kind: str) -> bool:
    """Whether the grounds of a lock may name others: its kind is compared with a whole, or set by hand."""
    return kind not in KINDS or KINDS[kind].whole_sum is not None


def _tenant(key: LockKey) -> str:
    return key.key if key.scope == "tenant" else ""


def _name(key: str, resource: str) -> str:
    return " ".join(part for part in (key, resource) if part) or "everyone"
