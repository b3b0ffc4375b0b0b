"""Locks that operators set, clear and extend.

A lock that is set by hand is another one than those of policies: no policy has its name, so no judgement
changes or ends it. A lock that is cleared by hand is not set again before its hold-off ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.circumstances import Wait
from analyzer.judging.judge import Evidence, lock_keys, used_at
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.lock_feed import MANUAL
from analyzer.judging.sql import hold_offs, plans, postponed
from analyzer.judging.sql.directory import newest
from analyzer.judging.sql.hold_offs import HoldOff
from analyzer.judging.sql.sql_judge import Judge
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.by import By
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms, instant, millis
from analyzer.kernel.database.engine import writing
from analyzer.plan import catalog
from analyzer.plan.plan import Plan
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import SUSPENSION, Clear, Lock, Rate, Set

AT_ONCE = 1_000  # locks of one transaction
SET, CLEARED, EXTENDED = "locks lock", "locks unlock", "locks extend"  # acts in the audit log


class LockTarget(NamedTuple):
    """The requests that a lock is for."""

    scope: str
    key: str
    resource: str = ""

    @property
    def text(self) -> str:
        """The series in a sentence."""
        name = f"{self.scope} {self.key}" if self.key else self.scope
        return f"{name} at {self.resource}" if self.resource else name


class Effect(NamedTuple):
    """The effect of a lock that is set by hand."""

    action: str = "deny"
    status: int = 429
    slow: Rate | None = None


def set_locks(
    engine: sa.Engine,
    targets: Sequence[LockTarget],
    length_ms: int,
    effect: Effect,
    act: By,
    random_mark: Callable[[], str],
) -> list[Lock]:
    """Locks series for `length_ms` from now, in place of locks that were set by hand before; returns them.

    Raises StoreAway.
    """
    affected: list[Lock] = []
    for part in _parts(targets):
        with writing(engine) as db:
            now_ms = clock_ms(db)
            locks = [
                Lock(
                    *target[:2], MANUAL, instant(now_ms), instant(now_ms + length_ms), target.resource,
                    kind="manual", action=effect.action, status=effect.status, slow=effect.slow,
                    reason="abnormal-usage-detected", detail=act.why,
                )
                for target in part
            ]  # fmt: skip
            affected += locks
            if not act.is_shown_only:
                _publish(db, locks, SET, act, random_mark)
    return affected


def extend_locks(
    engine: sa.Engine,
    targets: Sequence[LockTarget],
    policy: str | None,
    length_ms: int,
    act: By,
    random_mark: Callable[[], str],
) -> list[Lock]:
    """Has the locks of series last until `length_ms` from now, or longer; returns the locks that do it.

    A lock of a policy ends as the policy says; the one that lasts is set by hand, with the same effect.
    Raises StoreAway.
    """
    affected: list[Lock] = []
    for part in _parts(targets):
        with writing(engine) as db:
            now_ms = clock_ms(db)
            until = instant(now_ms + length_ms)
            present = _series_locks(db, part, policy, now_ms)
            in_order = sorted(present, key=lambda lock: lock.until)
            longest = {LockTarget(lock.scope, lock.key, lock.resource): lock for lock in in_order}
            locks = [
                replace(lock, policy=MANUAL, kind="manual", until=until, detail=f"{lock.detail}; {act.why}")
                for lock in longest.values()
                if lock.until < until
            ]
            affected += locks
            if locks and not act.is_shown_only:
                _publish(db, locks, EXTENDED, act, random_mark)
    return affected


class ClearedLock(NamedTuple):
    """A lock that an operator has cleared."""

    lock: Lock
    held_off_ms: int  # until when it is not set again; 0: it may be set at once


def clear_locks(
    engine: sa.Engine,
    targets: Sequence[LockTarget],
    policy: str | None,
    hold_off_ms: int | None,
    act: By,
    random_mark: Callable[[], str],
) -> list[ClearedLock]:
    """Clears the locks of series; returns them. Gates follow within a poll.

    Each is held off for `hold_off_ms` from now; None: until it would have ended. Raises StoreAway,
    SchemaBehind.
    """
    affected: list[ClearedLock] = []
    for part in _parts(targets):
        with writing(engine) as db:
            if not act.is_shown_only:
                # A flush that does not know the hold-off yet would set the lock again.
                plans.block_flushes(db)
            now_ms = clock_ms(db)
            cleared = [
                ClearedLock(lock, _held_off_ms(lock, now_ms, hold_off_ms))
                for lock in _series_locks(db, part, policy, now_ms)
            ]
            affected += cleared
            if cleared and not act.is_shown_only:
                _clear(db, cleared, act, now_ms, random_mark)
    return affected


def _held_off_ms(lock: Lock, now_ms: int, hold_off_ms: int | None) -> int:
    if lock.policy == MANUAL or hold_off_ms == 0:
        return 0
    return millis(lock.until) if hold_off_ms is None else now_ms + hold_off_ms


def _clear(
    db: sa.Connection,
    cleared: Sequence[ClearedLock],
    act: By,
    now_ms: int,
    random_mark: Callable[[], str],
) -> None:
    held_off = [entry for entry in cleared if entry.held_off_ms]
    hold_offs.store(
        db, (HoldOff(entry.lock.at, entry.held_off_ms, act.who, act.why, now_ms) for entry in held_off)
    )
    version, plan = plans.active(db) if plans.exists(db) else (0, Plan())
    numbers = catalog.load(db)
    judge = Judge(plan, version, numbers, instant(now_ms), directory=newest(db))
    standings = judge.lock_standings(db, {entry.lock.at: now_ms // 1000 for entry in cleared})
    # Nothing else looks at a total that does not grow.
    postponed.store_earlier(db, _waits(plan, standings, cleared, now_ms), numbers)
    changes = [Clear(entry.lock.at) for entry in cleared]
    for entry in cleared:
        until = f", not set again before {time_text(instant(entry.held_off_ms))}" if entry.held_off_ms else ""
        about = LockTarget(entry.lock.scope, entry.lock.key, entry.lock.resource).text
        record(db, act.who, CLEARED, f"{about} by {entry.lock.policy}{until}", act.why)
    evidence = Evidence(version, used_at(plan, standings, changes))
    lock_feed.publish(db, changes, random_mark(), evidence)


def _waits(
    plan: Plan, standings: Sequence[Standing], cleared: Sequence[ClearedLock], now_ms: int
) -> dict[TotalKey, Wait]:
    """Returns when these totals must be judged: at the end of the first hold-off of their locks, or now."""
    ends_ms = {entry.lock.at: max(entry.held_off_ms, now_ms) for entry in cleared}
    waits: dict[TotalKey, Wait] = {}
    for standing in standings:
        keys = lock_keys(plan, [standing])
        if due_ms := [ends_ms[key] for key in keys if key in ends_ms]:
            waits[standing.total] = Wait(min(due_ms) / 1000)
    return waits


def _publish(
    db: sa.Connection, locks: Sequence[Lock], event: str, act: By, random_mark: Callable[[], str]
) -> None:
    lock_feed.locked(db, [lock.at for lock in locks])  # their rows before the feed's, like every writer
    for lock in locks:
        about = LockTarget(lock.scope, lock.key, lock.resource).text
        record(db, act.who, event, f"{about} until {time_text(lock.until)}", act.why)
    lock_feed.publish(db, [Set(lock) for lock in locks], random_mark())


def _series_locks(
    db: sa.Connection, targets: Collection[LockTarget], policy: str | None, now_ms: int
) -> list[Lock]:
    """Returns the locks of series that gates enforce, and blocks other writers of their rows."""
    by_scope: dict[str, list[str]] = {}
    for target in targets:
        by_scope.setdefault(target.scope, []).append(target.key)
    present = [
        lock
        for scope in sorted(by_scope)
        for lock in lock_feed.of_series(db, scope, sorted(set(by_scope[scope]))).values()
    ]
    return [
        lock
        for lock in present
        if lock.at != SUSPENSION
        and lock_feed.is_enforced(lock)
        and millis(lock.until) > now_ms
        and policy in (None, lock.policy)
        and any(
            (target.scope, target.key) == (lock.scope, lock.key) and target.resource in ("", lock.resource)
            for target in targets
        )
    ]


def _parts(targets: Sequence[LockTarget]) -> Iterable[Sequence[LockTarget]]:
    in_order = sorted(set(targets))
    return (in_order[first : first + AT_ONCE] for first in range(0, len(in_order), AT_ONCE))
