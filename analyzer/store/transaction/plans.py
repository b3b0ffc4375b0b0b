"""The plan in force, and what changes in totals and locks when another one takes its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from analyzer.core.judging.judge import judge_policies
from analyzer.core.judging.kinds import kind_of
from analyzer.core.judging.plan import Plan, UnknownPlan, plan_from
from analyzer.errors import SchemaBehind
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs
from analyzer.store.database.schema import plans
from analyzer.store.transaction import lock_feed, totals
from gatekeeper.model import Change

ACTIVATION_MS = (
    60_000  # time-out of its statements: the totals of a new monthly policy sum up a month of minutes
)


def lock_active(db: sa.Connection) -> tuple[int | None, int]:
    """Returns the version in force, which no activation can replace until commit, and the database's time."""
    statement = sa.select(plans.c.version, NowMs()).where(plans.c.active == 1)
    row = db.execute(statement.with_for_update(read=True)).first()
    # No row: another plan was activated while this statement waited for the row, and it cannot see the new
    # one.
    return (row[0], row[1]) if row else (None, 0)


def active(db: sa.Connection) -> tuple[int, Plan]:
    """Returns the version in force and its plan. Raises LookupError when there is none; SchemaBehind."""
    row = db.execute(sa.select(plans.c.version, plans.c.body).where(plans.c.active == 1)).first()
    if row is None:
        raise LookupError("no plan is in force yet")
    return row.version, _decoded(row.body)


def activate(db: sa.Connection, plan: Plan, random_mark: Callable[[], str]) -> int:
    """Puts `plan` in force and makes totals and locks agree with it; returns its version.

    The plan that is in force already changes nothing. Raises SchemaBehind.
    """
    _block_flushes(db)
    old = db.execute(sa.select(plans).where(plans.c.active == 1)).first()
    before = None if old is None else _decoded(old.body)
    if old is not None and before == plan:
        if old.digest != plan.digest:  # written by an earlier version of the format
            stored = {"digest": plan.digest, "body": plan.to_json()}
            db.execute(sa.update(plans).where(plans.c.version == old.version).values(stored))
        return int(old.version)
    version, now = _put_in_force(db, plan, 1 if old is None else old.version + 1)
    changes = _adapt(db, before or Plan(), plan, version, now)
    if changes:
        lock_feed.publish(db, changes, random_mark())
    return version


def _block_flushes(db: sa.Connection) -> None:
    """Waits for the flushes that have checked the plan to commit, and blocks all others until commit.

    From here on the buckets are complete. SQLite has one writer anyway.
    """
    if db.dialect.name == "postgresql":
        # The table and not the row: new flushes can take their shared lock on the row while a writer waits
        # for it, so among busy analyzers the writer would never get it. For a table they queue behind the
        # writer.
        db.exec_driver_sql("lock table plans in exclusive mode")
        db.exec_driver_sql(f"set local statement_timeout = {ACTIVATION_MS}")


def _put_in_force(db: sa.Connection, plan: Plan, version: int) -> tuple[int, datetime]:
    db.execute(sa.update(plans).where(plans.c.active == 1).values(active=0))
    row = {"version": version, "digest": plan.digest, "body": plan.to_json(), "active": 1, "at_ms": NowMs()}
    return version, instant(db.execute(sa.insert(plans).values(row).returning(plans.c.at_ms)).scalar_one())


def _adapt(db: sa.Connection, before: Plan, plan: Plan, version: int, now: datetime) -> list[Change]:
    """Fills the totals of new sums, and judges the policies that are new, changed or gone.

    Other totals stay as they are: their rows have another plan's version, and are judged when a flush adds to
    them.
    """
    now_s = int(now.timestamp())
    for sum_ in plan.policies_of.keys() - before.policies_of.keys():
        totals.fill(db, plan, version, sum_, now_s)
    changed = [policy for policy in plan.policies if policy != before.policy(policy.name)]
    gone = [policy.name for policy in before.policies if plan.policy(policy.name) is None]
    names = {*gone, *(policy.name for policy in changed)}
    sums = {kind_of(policy).sum_of(policy) for policy in changed}
    standings = [standing for sum_ in sums for standing in totals.reached(db, plan, sum_, now_s)]
    return judge_policies(plan, names, standings, lock_feed.of_policies(db, names), now)


def _decoded(body: str) -> Plan:
    try:
        return plan_from(body)
    except UnknownPlan as error:
        raise SchemaBehind(
            f"the plan in force was written by another version of Gatelock: {error}; upgrade this one"
        ) from error
