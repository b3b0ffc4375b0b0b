"""How the database stands: what health checks, metrics and lists ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs, reading
from analyzer.store.database.revisions import revision_of
from analyzer.store.database.schema import feed, locks
from analyzer.store.transaction.lock_feed import lock_of
from gatekeeper.model import SUSPENSION, Lock

ROWS_AT_ONCE = 1_000  # in memory, however many there are


class InstallationStatus(NamedTuple):
    revision: str | None  # of the tables; None: there are none
    active_locks: dict[str, int]  # by policy
    feed_version: int
    open_until: datetime | None = None  # while the fleet's off switch is thrown: no gate refuses anybody


def installation_status(engine: sa.Engine, head: str) -> InstallationStatus:
    """How the database stands now; tables of another version than `head` are not looked into.
    Raises StoreAway."""
    with reading(engine) as db:
        revision = revision_of(db)
        if revision != head:
            return InstallationStatus(revision, {}, 0)
        in_force = sa.select(locks.c.policy, sa.func.count(), sa.func.max(locks.c.until_ms))
        rows = db.execute(in_force.where(locks.c.until_ms > NowMs()).group_by(locks.c.policy)).all()
        switch_ms = next((until_ms for name, _, until_ms in rows if name == SUSPENSION.policy), None)
        version = db.execute(sa.select(feed.c.version)).scalar_one_or_none()
        counts = {name: count for name, count, _ in rows if name != SUSPENSION.policy}
        return InstallationStatus(
            revision, counts, version or 0, None if switch_ms is None else instant(switch_ms)
        )


def open_until(engine: sa.Engine) -> datetime | None:
    """Until when every gate is open, by the fleet's off switch; None when gates follow their locks. Raises
    StoreAway."""
    at = sa.and_(*(locks.c[name] == value for name, value in SUSPENSION._asdict().items()))
    with reading(engine) as db:
        until_ms = db.execute(sa.select(locks.c.until_ms).where(at, locks.c.until_ms > NowMs())).scalar()
        return None if until_ms is None else instant(until_ms)


@contextmanager
def unhurried(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A snapshot that may be read slowly: whoever reads may page through it. It holds up no flush."""
    with reading(engine) as db:
        if db.dialect.name == "postgresql":
            for bound in ("statement_timeout", "idle_in_transaction_session_timeout"):
                db.exec_driver_sql(f"set local {bound} = 0")
        yield db


def locks_in_force(engine: sa.Engine, key: str | None = None, policy: str | None = None) -> Iterator[Lock]:
    """The locks whose time is not over by the database's clock, those that end last first, in constant
    memory. Raises StoreAway."""
    wanted = [locks.c.until_ms > NowMs()]
    wanted += [locks.c.key == key] if key is not None else []
    wanted += [locks.c.policy == policy] if policy is not None else []
    order = (locks.c.until_ms.desc(), locks.c.policy, locks.c.scope, locks.c.key, locks.c.resource)
    with unhurried(engine) as db:
        statement = sa.select(locks).where(*wanted).order_by(*order)
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            yield from map(lock_of, rows)
