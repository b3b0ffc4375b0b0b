"""The plan in force: which one it is, and what changes when another one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import sqlalchemy as sa

from analyzer.core.decisions import Series, Standing, decide, lock_key, outlived
from analyzer.core.plan import Plan, plan_from
from analyzer.core.policies import Quota
from analyzer.core.windows import Window, window_at
from analyzer.store import feed
from analyzer.store.engine import NowMs, insert
from analyzer.store.schema import buckets, plans, totals
from analyzer.store.times import instant
from gatekeeper.model import Change, Clear, Lock, LockKey, Set

BIGINT_MAX = 2**63 - 1


def agreed(db: sa.Connection) -> tuple[int | None, int]:
    """The version in force, which stays so until the transaction ends, and the database's time in ms."""
    statement = sa.select(plans.c.version, NowMs()).where(plans.c.active == 1)
    row = db.execute(statement.with_for_update(read=True)).first()
    # Nothing: somebody replaced it while we waited for the row. The new one cannot be seen by this statement.
    return (row[0], row[1]) if row else (None, 0)


def active(db: sa.Connection) -> tuple[int, Plan]:
    """The version in force and its plan. Raises LookupError when there never was one."""
    row = db.execute(sa.select(plans.c.version, plans.c.body).where(plans.c.active == 1)).first()
    if row is None:
        raise LookupError("no plan is in force yet")
    return row.version, plan_from(row.body)


def activate(db: sa.Connection, plan: Plan, random_mark: Callable[[], str]) -> int:
    """Put `plan` in force and make totals and locks agree with it; its version. The same plan again changes
    nothing."""
    _first_row(db)
    # From here on no flush gets past its own look at this row until we commit, and all those that did are
    # committed: what the buckets say now is complete.
    old = db.execute(sa.select(plans).where(plans.c.active == 1).with_for_update()).one()
    if old.digest == plan.digest:
        return int(old.version)
    before = plan_from(old.body) if old.body else Plan()
    db.execute(sa.update(plans).where(plans.c.version == old.version).values(active=0))
    version = old.version + 1
    now = instant(
        db.execute(
            sa.insert(plans)
            .values(version=version, digest=plan.digest, body=plan.to_json(), active=1, at_ms=NowMs())
            .returning(plans.c.at_ms)
        ).scalar_one()
    )
    judged_anew = [policy for policy in plan.policies if policy != before.policy(policy.name)]
    gone = [policy.name for policy in before.policies if plan.policy(policy.name) is None]
    changes = [change for policy in judged_anew for change in _judge(db, policy, now)]
    changes += outlived(feed.of_policies(db, gone).values(), plan)
    db.execute(sa.delete(totals).where(totals.c.policy.in_(gone)))
    if changes:
        feed.publish(db, changes, random_mark())
    return int(version)


def _first_row(db: sa.Connection) -> None:
    """Something to lock, so that of analyzers that start on a fresh database one activates first."""
    nothing = {"version": 0, "digest": "", "body": "", "active": 1, "at_ms": 0}
    if db.execute(sa.select(sa.func.count()).select_from(plans)).scalar_one() == 0:
        db.execute(insert(db, plans).on_conflict_do_nothing(), nothing)


def _judge(db: sa.Connection, policy: Quota, now: datetime) -> list[Change]:
    """What must change for a policy that is new or says something else than before."""
    db.execute(sa.delete(totals).where(totals.c.policy == policy.name))
    current = window_at(policy.window, int(now.timestamp()))
    for window in (current, window_at(policy.window, current.until_s)):  # clocks that run ahead write there
        _fill(db, policy, window)
    crossed = sa.select(totals).where(
        totals.c.policy == policy.name, totals.c.window_s == current.start_s, totals.c.used >= policy.limit
    )
    standings = [
        Standing(Series(policy.name, row.key, row.resource, current), row.used) for row in db.execute(crossed)
    ]
    before = feed.of_policies(db, [policy.name])
    closed = [change for s in standings if (change := decide(policy, s, None, now)) is not None]
    keep = {lock_key(standing.series) for standing in standings}
    cleared: list[Change] = [Clear(at) for at in before if at not in keep]
    return cleared + [change for change in closed if _is_news(change, before)]


def _is_news(change: Change, before: Mapping[LockKey, Lock]) -> bool:
    return not isinstance(change, Set) or before.get(change.lock.at) != change.lock


def _fill(db: sa.Connection, policy: Quota, window: Window) -> None:
    used = sa.func.sum(buckets.c.value)
    grown = (
        sa.select(
            sa.literal(policy.name),
            buckets.c.key,
            buckets.c.resource,
            sa.literal(window.start_s, sa.BigInteger),
            sa.literal(window.until_s, sa.BigInteger),
            sa.cast(sa.case((used > BIGINT_MAX, BIGINT_MAX), else_=used), sa.BigInteger),
        )
        .where(
            buckets.c.grouping == policy.per,
            buckets.c.meter == policy.meter,
            buckets.c.bucket_s >= window.start_s,
            buckets.c.bucket_s < window.until_s,
        )
        .group_by(buckets.c.key, buckets.c.resource)
        .having(used > 0)
    )
    db.execute(sa.insert(totals).from_select([c.name for c in totals.c], grown))
