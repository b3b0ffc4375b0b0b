"""The plan in force: which one it is, and what changes when another one takes its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
import sqlalchemy as sa

from analyzer.core.counting.caller_budget import OVERFLOW, of_callers
from analyzer.core.counting.meters import DAY_S, MINUTE_S, QUARTER_S
from analyzer.core.judging.judge import JudgedSeries, Standing, decide, lock_key, outlived
from analyzer.core.judging.plan import Plan, plan_from
from analyzer.core.judging.policies import Quota
from analyzer.core.judging.windows import Window, window_at
from analyzer.errors import SchemaBehind
from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs
from analyzer.store.database.schema import TOTAL_MAX, buckets, plans, totals
from analyzer.store.transaction import lock_feed
from gatekeeper.model import Change, Clear

ACTIVATION_MS = 60_000  # one statement of it: a new policy by the month sums up a month of minutes
HALF = 2**32


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
    return row.version, _known(row.body)


def activate(db: sa.Connection, plan: Plan, random_mark: Callable[[], str]) -> int:
    """Put `plan` in force and make totals and locks agree with it; its version. The same plan again changes
    nothing."""
    _let_nobody_flush(db)
    old = db.execute(sa.select(plans).where(plans.c.active == 1)).first()
    if old is not None and old.digest == plan.digest:
        return int(old.version)
    before = Plan() if old is None else _known(old.body)
    version, now = _put_in_force(db, plan, 1 if old is None else old.version + 1)
    judged_anew = [policy for policy in plan.policies if policy != before.policy(policy.name)]
    gone = [policy.name for policy in before.policies if plan.policy(policy.name) is None]
    changes = [change for policy in judged_anew for change in _judge(db, plan, policy, now)]
    changes += outlived(lock_feed.of_policies(db, gone).values(), plan)
    db.execute(sa.delete(totals).where(totals.c.policy.in_(gone)))
    if changes:
        lock_feed.publish(db, changes, random_mark())
    return version


def _let_nobody_flush(db: sa.Connection) -> None:
    """From here on no flush gets past its own look at the plan until we commit, and all those that did are
    committed: what the buckets say now is complete. SQLite has one writer anyway."""
    if db.dialect.name == "postgresql":
        # The table and not the row: for a row, flushes that come later overtake a writer that waits, and of
        # busy analyzers there is always one that holds it; for a table they queue behind.
        db.exec_driver_sql("lock table plans in exclusive mode")
        db.exec_driver_sql(f"set local statement_timeout = {ACTIVATION_MS}")


def _put_in_force(db: sa.Connection, plan: Plan, version: int) -> tuple[int, datetime]:
    db.execute(sa.update(plans).where(plans.c.active == 1).values(active=0))
    row = {"version": version, "digest": plan.digest, "body": plan.to_json(), "active": 1, "at_ms": NowMs()}
    return version, instant(db.execute(sa.insert(plans).values(row).returning(plans.c.at_ms)).scalar_one())


def _judge(db: sa.Connection, plan: Plan, policy: Quota, now: datetime) -> list[Change]:
    """What must change for a policy that is new or says something else than before."""
    db.execute(sa.delete(totals).where(totals.c.policy == policy.name))
    current = window_at(policy.window, int(now.timestamp()))
    counted = _counted(plan, policy)
    for window in (current, *_windows_ahead(db, policy, counted, current.until_s)):
        _fill(db, policy, counted, window)
    crossed = sa.select(totals).where(
        totals.c.policy == policy.name, totals.c.window_s == current.start_s, totals.c.used >= policy.limit
    )
    standings = [
        Standing(JudgedSeries(policy.name, row.key, row.resource, current), row.used)
        for row in db.execute(crossed)
    ]
    before = lock_feed.of_policies(db, [policy.name])
    closed = [change for s in standings if (change := decide(policy, s, None, now)) is not None]
    keep = {lock_key(standing.series) for standing in standings}
    cleared: list[Change] = [Clear(at) for at in before if at not in keep]
    return cleared + closed


def _windows_ahead(
    db: sa.Connection, policy: Quota, counted: sa.ColumnElement[bool], from_s: int
) -> list[Window]:
    """The windows that clocks which run ahead have written to; of minutes there may be several."""
    ahead = sa.select(buckets.c.bucket_s).distinct().where(counted, buckets.c.bucket_s >= from_s)
    return sorted({window_at(policy.window, bucket_s) for bucket_s in db.scalars(ahead)})


def _fill(db: sa.Connection, policy: Quota, counted: sa.ColumnElement[bool], window: Window) -> None:
    grown = (
        sa.select(
            sa.literal(policy.name),
            buckets.c.key,
            buckets.c.resource,
            sa.literal(window.start_s, sa.BigInteger),
            sa.literal(window.until_s, sa.BigInteger),
            _sum(buckets.c.value),
        )
        .where(counted, buckets.c.bucket_s >= window.start_s, buckets.c.bucket_s < window.until_s)
        .group_by(buckets.c.key, buckets.c.resource)
    )
    db.execute(sa.insert(totals).from_select([c.name for c in totals.c], grown))


def _counted(plan: Plan, policy: Quota) -> sa.ColumnElement[bool]:
    """Which buckets the policy looks at."""
    widths_s = {MINUTE_S, QUARTER_S, DAY_S} | {meter.width_s for meter in plan.meters}
    return sa.and_(
        buckets.c.grouping == policy.per,
        buckets.c.meter == policy.meter,
        buckets.c.width_s.in_(sorted(widths_s)),  # all there are: named, the index finds a stretch of time
        buckets.c.value > 0,
        *([buckets.c.key != OVERFLOW] if of_callers(policy.per) else []),
    )


def _sum(column: sa.Column[int]) -> sa.ColumnElement[int]:
    """The sum, held at the largest number a column takes. By halves: SQLite gives up on a sum beyond it."""
    high, low = sa.func.sum(column // HALF), sa.func.sum(column % HALF)
    return sa.case(
        (high + low // HALF >= HALF // 2, sa.literal(TOTAL_MAX, sa.BigInteger)),
        else_=sa.cast(high * HALF + low, sa.BigInteger),
    )


def _known(body: str) -> Plan:
    try:
        return plan_from(body)
    except msgspec.ValidationError as error:
        raise SchemaBehind(
            f"the plan in force was written by another version of Gatelock ({error}); upgrade this one"
        ) from error
