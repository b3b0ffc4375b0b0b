"""State of the installation as health checks, metrics and lists show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.activation_steps import decode_steps, unready_policies
from analyzer.judging.locks.lock_feed import are_in_shadow
from analyzer.judging.locks.stored_locks import in_force
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql import brake_rows
from analyzer.judging.sql.plans import active
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.revisions import stored_revision
from analyzer.kernel.errors import SchemaBehind
from analyzer.kernel.tables.billing_tables import DIFFERS, day_audits
from analyzer.kernel.tables.schema import disbelieved, feed, locks, plans, postponed, rejects
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog
from gatekeeper.model import SUSPENSION


class InstallationStatus(NamedTuple):
    """State of the database that health checks and metrics need."""

    revision: str | None  # version of the tables; None: there are none
    active_locks: dict[str, int]  # by policy
    feed_version: int
    suspended_until: datetime | None = None  # while all locks are suspended: gates admit all requests
    waiting_judgements: int = 0  # totals that cannot be judged before a backlog is counted
    braked: Mapping[str, str] = {}  # what the brake of a policy does, by policy: "in shadow since ..."
    shadow_locks: Mapping[str, int] = {}  # by policy, or candidate, in shadow
    differing_days: int = 0  # closed days in which the last audit found a difference


class DatabaseStatus(NamedTuple):
    """State of the database that the doctor needs in addition."""

    now_ms: int  # by the database's clock
    plan: str | None  # digest of the plan in force; None: no analyzer ever ran here
    rejected: dict[str, int]  # recently rejected records, by reason
    unready: list[str]  # policies whose totals or locks do not agree with the plan yet
    disbelieved: dict[str, int]  # recent requests with a verdict that was not believed, by its policy


def installation_status(engine: sa.Engine, head: str) -> InstallationStatus:
    """Returns the present state; tables of another version than `head` are not read. Raises StoreAway."""
    with reading(engine) as db:
        revision = stored_revision(db)
        if revision != head:
            return InstallationStatus(revision, {}, 0)
        by_policy = sa.select(locks.c.policy, sa.func.count(), sa.func.max(locks.c.until_ms))
        rows = db.execute(by_policy.where(*in_force()).group_by(locks.c.policy)).all()
        until_ms = next((until_ms for name, _, until_ms in rows if name == SUSPENSION.policy), None)
        version = db.execute(sa.select(feed.c.version)).scalar_one_or_none()
        counts = {name: count for name, count, _ in rows if name != SUSPENSION.policy}
        # Written out, or no database would use the partial index.
        waiting = sa.select(sa.func.count()).where(postponed.c.is_behind == sa.literal_column("1"))
        suspended = None if until_ms is None else instant(until_ms)
        number = db.execute(waiting).scalar_one()
        in_shadow = sa.select(locks.c.policy, sa.func.count()).where(*are_in_shadow())
        differing = sa.select(sa.func.count()).where(day_audits.c.result == DIFFERS)
        return InstallationStatus(
            *(revision, counts, version or 0, suspended, number, brake_rows.texts(db)),
            shadow_locks=dict(db.execute(in_shadow.group_by(locks.c.policy)).all()),
            differing_days=db.execute(differing).scalar_one(),
        )


def database_status(engine: sa.Engine, rejected_within_ms: int) -> DatabaseStatus:
    """Returns the present state. Raises StoreAway."""
    with reading(engine) as db:
        now_ms = clock_ms(db)
        recent = sa.select(rejects.c.reason, sa.func.count()).where(
            rejects.c.at_ms > now_ms - rejected_within_ms
        )
        catalog_rows = catalog.load(db)
        return DatabaseStatus(
            now_ms,
            db.execute(sa.select(plans.c.digest).where(plans.c.active == 1)).scalar_one_or_none(),
            dict(db.execute(recent.group_by(rejects.c.reason)).all()),
            _unready(db, catalog_rows),
            _disbelieved(db, (now_ms - rejected_within_ms) // 1000),
        )


def _disbelieved(db: sa.Connection, since_s: int) -> dict[str, int]:
    columns = disbelieved.c
    recent = sa.select(columns.policy, sa.func.sum(columns.requests)).where(columns.logged_s >= since_s)
    return {policy: int(requests) for policy, requests in db.execute(recent.group_by(columns.policy))}


def _unready(db: sa.Connection, catalog_rows: Catalog) -> list[str]:
    pending = db.execute(sa.select(plans.c.pending).where(plans.c.active == 1)).scalar()
    if not pending:
        return []
    try:
        _, plan = active(db)
    except SchemaBehind:  # of another version of this program
        return []
    return unready_policies(decode_steps(pending), plan, plan_sums(plan).numbers(catalog_rows.sum_number))
