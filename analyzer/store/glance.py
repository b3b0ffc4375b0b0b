"""What health checks and metrics ask of the database, in one short transaction."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from analyzer.store.engine import NowMs, reading
from analyzer.store.schema import feed, locks


class Glance(NamedTuple):
    revision: str | None  # of the tables; None: there are none
    active_locks: dict[str, int]  # by policy
    feed_version: int


def glance(engine: sa.Engine, head: str) -> Glance:
    """How the database stands now; tables of another version than `head` are not looked into.
    Raises StoreAway."""
    with reading(engine) as db:
        revision = MigrationContext.configure(db).get_current_revision()
        if revision != head:
            return Glance(revision, {}, 0)
        in_force = sa.select(locks.c.policy, sa.func.count()).where(locks.c.until_ms > NowMs())
        counts = db.execute(in_force.group_by(locks.c.policy)).all()
        version = db.execute(sa.select(feed.c.version)).scalar_one_or_none()
        return Glance(revision, dict(counts), version or 0)
