"""How the database stands: what health checks, metrics and lists ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.store.engine import NowMs, reading
from analyzer.store.feed import lock_of
from analyzer.store.revisions import revision_of
from analyzer.store.schema import feed, locks
from gatekeeper.model import Lock

ROWS_AT_ONCE = 1_000  # in memory, however many there are


class Glance(NamedTuple):
    revision: str | None  # of the tables; None: there are none
    active_locks: dict[str, int]  # by policy
    feed_version: int


def glance(engine: sa.Engine, head: str) -> Glance:
    """How the database stands now; tables of another version than `head` are not looked into.
    Raises StoreAway."""
    with reading(engine) as db:
        revision = revision_of(db)
        if revision != head:
            return Glance(revision, {}, 0)
        in_force = sa.select(locks.c.policy, sa.func.count()).where(locks.c.until_ms > NowMs())
        counts = db.execute(in_force.group_by(locks.c.policy)).all()
        version = db.execute(sa.select(feed.c.version)).scalar_one_or_none()
        return Glance(revision, dict(counts), version or 0)


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
