"""Refused requests for locks, stored so that every process can name the clients.

A client that is refused can report nothing itself. No count and no lock depends on these rows, and any client
that reaches the port makes some: they are few, and a server writes them at most once in some seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.gates.refused_requests import RefusedRequests
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import NowMs, commit_soon, insert, reading, writing
from analyzer.kernel.tables.schema import refused_requests

REFUSED_KEPT_MS = 600_000  # since the last refusal; a gate polls at least every ten seconds
REFUSED_KEPT = 500  # rows, those that were refused last


class RefusalCount(NamedTuple):
    """Refusals of one client for one reason, and how long ago the first and the last of them were."""

    address: str
    instance: str
    reason: str
    requests: int
    first_age_ms: int
    last_age_ms: int


def store_refusals(engine: sa.Engine, counts: Iterable[RefusalCount]) -> None:
    """Adds refusals to those of their clients, and deletes what is beyond the bounds. Raises StoreAway."""
    columns = refused_requests.c
    # Sorted: two servers that refuse the same clients cannot wait for each other in a circle.
    rows = [
        {
            "address": count.address, "instance": count.instance, "reason": count.reason,
            "requests": count.requests, "first_ms": NowMs() - count.first_age_ms,
            "last_ms": NowMs() - count.last_age_ms,
        }
        for count in sorted(counts)
    ]  # fmt: skip
    with writing(engine) as db:
        commit_soon(db)  # the next refusals come in some seconds
        # First, so that a client that returns after a while is refused "since" its return.
        _delete(db, columns.last_ms < NowMs() - REFUSED_KEPT_MS)
        if rows:
            added = insert(db, refused_requests).values(rows)
            newer = {
                "requests": columns.requests + added.excluded.requests,
                "last_ms": added.excluded.last_ms,
            }
            db.execute(added.on_conflict_do_update(index_elements=refused_requests.primary_key, set_=newer))
        newest = sa.select(columns.last_ms).order_by(columns.last_ms.desc())
        _delete(db, columns.last_ms <= newest.offset(REFUSED_KEPT).limit(1).scalar_subquery())


def _delete(db: sa.Connection, condition: sa.ColumnElement[bool]) -> None:
    db.execute(delete_at(refused_requests, first_keys(refused_requests, condition, REFUSED_KEPT)))


def recent_refusals(db: sa.Connection) -> list[RefusedRequests]:
    """Returns the clients that were refused in the last ten minutes, the last one first."""
    columns = refused_requests.c
    rows = db.execute(
        sa.select(refused_requests, NowMs().label("now_ms"))
        .where(columns.last_ms > NowMs() - REFUSED_KEPT_MS)
        .order_by(columns.last_ms.desc(), *refused_requests.primary_key)
    )
    return [
        RefusedRequests(
            row.address,
            row.instance,
            row.reason,
            row.requests,
            instant(row.first_ms),
            max(0, row.now_ms - row.first_ms) / 1000,
            max(0, row.now_ms - row.last_ms) / 1000,
        )
        for row in rows
    ]


def refused_clients(engine: sa.Engine) -> list[RefusedRequests]:
    """Returns the clients that were refused in the last ten minutes, the last one first. Raises StoreAway."""
    with reading(engine) as db:
        return recent_refusals(db)
