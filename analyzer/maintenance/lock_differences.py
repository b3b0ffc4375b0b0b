"""Compares the locks with what the totals of the open windows judge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.activation_steps import ClearStep, decode_steps, unready_policies
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import lock_key
from analyzer.judging.locks.lock_feed import MANUAL
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.directory import NO_DIRECTORY, DirectoryVersion, newest, read_limits
from analyzer.judging.totals import TotalKey
from analyzer.kernel.database.engine import ROWS_AT_ONCE
from analyzer.kernel.tables.schema import hold_offs, locks, totals
from analyzer.maintenance.total_differences import OpenSum
from analyzer.plan.catalog import Catalog
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, limits_by_route
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
    catalog: Catalog,
    plan: Plan,
    pending: str,
    sums: Iterable[OpenSum],
    now_ms: int,
    most: int,
) -> list[LockDifference]:
    """Returns up to `most` differences for each policy. Must run in a snapshot.

    Policies that are not in effect yet are left out (see `pending`), and so is a total that is still to be
    judged: one that grew before its window began is judged when it grows again. A lock that is missing may be
    one that a grace of time delays, so of these policies none is missed.
    """
    unready, version = _unready(plan, pending, catalog), newest(db)
    differences: list[LockDifference] = []
    for open_sum in sums:
        for policy in plan_sums(plan).policies_by_sum[open_sum.sum]:
            if policy.name not in unready:
                # By the limit that is stated for all, as long as no series has another one.
                is_of_all = version == NO_DIRECTORY and not limits_by_route(policy)
                least = _least(policy) if is_of_all else None
                differences += _right(
                    db, plan, version, policy, _not_earned(open_sum, policy, now_ms, least), most
                )
                if not policy_kind(policy).needs(policy).notices:
                    differences += _right(
                        db, plan, version, policy, _missing(open_sum, policy, least, now_ms), most
                    )
    in_force = sa.select(locks.c.policy, locks.c.key, locks.c.resource).where(
        locks.c.until_ms > now_ms,
        locks.c.policy.not_in(
            [*(policy.name for policy in plan.policies), SUSPENSION.policy, MANUAL, *unready]
        ),
    )
    differences += [LockDifference(*row, None, is_locked=True) for row in db.execute(in_force.limit(most))]
    return differences


def _unready(plan: Plan, pending: str, catalog: Catalog) -> set[str]:
    steps = decode_steps(pending)
    cleared = {name for step in steps if isinstance(step, ClearStep) for name in step.policies}
    return cleared | set(unready_policies(steps, plan, plan_sums(plan).numbers(catalog.sum_number)))


def _right(
    db: sa.Connection,
    plan: Plan,
    version: DirectoryVersion,
    policy: Policy,
    rows: sa.Select[Any],
    most: int,
) -> list[LockDifference]:
    """Returns up to `most` of the rows that are differences by the limits of their callers."""
    differences: list[LockDifference] = []
    with db.execute(rows, execution_options={"yield_per": ROWS_AT_ONCE}) as read:
        for chunk in read.partitions():
            limits = read_limits(db, plan, version, {row.key for row in chunk})
            for row in chunk:
                own = limits.policy_for(policy, row.key, row.resource)
                is_above = own is not None and row.used >= _least(own)
                if is_above != bool(row.is_locked):
                    differences.append(
                        LockDifference(
                            policy.name, row.key, row.resource, row.used, is_locked=bool(row.is_locked)
                        )
                    )
            if len(differences) >= most:
                break
    return differences[:most]


def _least(policy: Policy) -> int:
    """Returns the least value of a total that earns a lock."""
    return policy_kind(policy).locks_at(policy)


def _not_earned(open_sum: OpenSum, policy: Policy, now_ms: int, least: int | None) -> sa.Select[Any]:
    """Returns the query for the locks of a policy, with their totals."""
    its_total = sa.and_(
        totals.c.sum == open_sum.number,
        totals.c.window_s == open_sum.window.start_s,
        totals.c.key == locks.c.key,
        totals.c.resource == locks.c.resource,
    )
    used = sa.func.coalesce(totals.c.used, 0)
    return (
        sa.select(locks.c.key, locks.c.resource, used.label("used"), sa.literal(1).label("is_locked"))
        .select_from(locks.outerjoin(totals, its_total))
        .where(
            locks.c.policy == policy.name,
            locks.c.until_ms > now_ms,
            sa.true() if least is None else used < least,
        )
    )


def _missing(open_sum: OpenSum, policy: Policy, least: int | None, now_ms: int) -> sa.Select[Any]:
    """Returns the query for the totals that were judged, without a lock of a policy or a hold-off of it."""
    scope = lock_key(policy, TotalKey(open_sum.sum, "", "", open_sum.window)).scope
    its_lock = sa.and_(
        locks.c.scope == scope,
        locks.c.key == totals.c.key,
        locks.c.resource == totals.c.resource,
        locks.c.policy == policy.name,
        locks.c.until_ms >= open_sum.window.until_s * 1000,
    )
    its_hold_off = sa.and_(
        hold_offs.c.scope == scope,
        hold_offs.c.key == totals.c.key,
        hold_offs.c.resource == totals.c.resource,
        hold_offs.c.policy == policy.name,
        hold_offs.c.until_ms > now_ms,
    )
    return (
        sa.select(totals.c.key, totals.c.resource, totals.c.used, sa.literal(0).label("is_locked"))
        .select_from(totals.outerjoin(locks, its_lock).outerjoin(hold_offs, its_hold_off))
        .where(
            totals.c.sum == open_sum.number,
            totals.c.window_s == open_sum.window.start_s,
            totals.c.used < totals.c.next,
            sa.true() if least is None else totals.c.used >= least,
            locks.c.key.is_(None),
            hold_offs.c.key.is_(None),
        )
    )
