"""Compares the locks with what the totals of the open windows judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.judging.activation_steps import ClearStep, steps_of, unready_policies
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.plan import Plan
from analyzer.core.judging.policies import Policy
from analyzer.core.judging.totals import TotalKey
from analyzer.store.database.schema import locks, totals
from analyzer.store.reports.total_differences import OpenSum
from analyzer.store.transaction.catalog import Catalog
from gatekeeper.model import SUSPENSION


class LockDifference(NamedTuple):
    """A lock that no total has earned, or one that a total has earned and that is not there."""

    policy: str
    key: str
    resource: str
    used: int | None  # None: there is no total
    is_locked: bool


def differing_locks(
    db: sa.Connection,
    known: Catalog,
    plan: Plan,
    pending: str,
    sums: Iterable[OpenSum],
    now_ms: int,
    most: int,
) -> list[LockDifference]:
    """Returns up to `most` differences for each policy. Must run in a snapshot.

    Policies that are not in effect yet are left out (see `pending`), and so is a total that is still to be
    judged: one that grew before its window began is judged when it grows again.
    """
    unready = _unready(plan, pending, known)
    found: list[LockDifference] = []
    for of in sums:
        for policy in plan.policies_of[of.sum]:
            if policy.name not in unready:
                found += _not_earned(db, of, policy, now_ms, most)
                found += _missing(db, of, policy, most)
    in_force = sa.select(locks.c.policy, locks.c.key, locks.c.resource).where(
        locks.c.until_ms > now_ms,
        locks.c.policy.not_in([policy.name for policy in plan.policies] + [SUSPENSION.policy, *unready]),
    )
    found += [LockDifference(*row, None, is_locked=True) for row in db.execute(in_force.limit(most))]
    return found


def _unready(plan: Plan, pending: str, known: Catalog) -> set[str]:
    steps = steps_of(pending)
    cleared = {name for step in steps if isinstance(step, ClearStep) for name in step.policies}
    return cleared | set(unready_policies(steps, plan, known.sum_numbers(plan)))


def _least(policy: Policy) -> int:
    return min(kind_of(policy).thresholds(policy))


def _not_earned(
    db: sa.Connection, of: OpenSum, policy: Policy, now_ms: int, most: int
) -> Iterator[LockDifference]:
    its_total = sa.and_(
        totals.c.sum == of.number,
        totals.c.window_s == of.window.start_s,
        totals.c.key == locks.c.key,
        totals.c.resource == locks.c.resource,
    )
    statement = (
        sa.select(locks.c.policy, locks.c.key, locks.c.resource, totals.c.used)
        .select_from(locks.outerjoin(totals, its_total))
        .where(
            locks.c.policy == policy.name,
            locks.c.until_ms > now_ms,
            sa.func.coalesce(totals.c.used, 0) < _least(policy),
        )
    )
    for row in db.execute(statement.limit(most)):
        yield LockDifference(*row, is_locked=True)


def _missing(db: sa.Connection, of: OpenSum, policy: Policy, most: int) -> Iterator[LockDifference]:
    scope = kind_of(policy).lock_key(policy, TotalKey(of.sum, "", "", of.window)).scope
    its_lock = sa.and_(
        locks.c.scope == scope,
        locks.c.key == totals.c.key,
        locks.c.resource == totals.c.resource,
        locks.c.policy == policy.name,
        locks.c.until_ms >= of.window.until_s * 1000,
    )
    statement = (
        sa.select(totals.c.key, totals.c.resource, totals.c.used)
        .select_from(totals.outerjoin(locks, its_lock))
        .where(
            totals.c.sum == of.number,
            totals.c.window_s == of.window.start_s,
            totals.c.used >= _least(policy),
            totals.c.used < totals.c.next,
            locks.c.key.is_(None),
        )
    )
    for row in db.execute(statement.limit(most)):
        yield LockDifference(policy.name, *row, is_locked=False)
