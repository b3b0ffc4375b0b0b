"""Locks and the feed that tells of them: versioned changes, each version with a random mark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from analyzer.store.engine import NowMs, insert, values_of
from analyzer.store.schema import feed, feed_versions, lock_changes, locks
from analyzer.store.times import instant, millis
from gatekeeper.model import Change, Clear, Lock, LockKey, Set

ENDED_MAX = 10_000  # locks ended in one transaction
CHANGES_KEPT_MS = 3_600_000  # a gate that was away for longer gets a snapshot

KEY = (locks.c.scope, locks.c.key, locks.c.resource, locks.c.policy)


def held(db: sa.Connection, keys: Collection[LockKey]) -> dict[LockKey, Lock]:
    """The locks at `keys`, their rows locked until the transaction ends."""
    if not keys:
        return {}
    wanted = values_of(db, KEY, sorted(keys))
    match = sa.and_(*(column == wanted.c[column.name] for column in KEY))
    return _by_key(db.execute(sa.select(locks).join(wanted, match).with_for_update(of=locks)))


def of_policies(db: sa.Connection, policies: Collection[str]) -> dict[LockKey, Lock]:
    """Every lock of these policies, their rows locked until the transaction ends."""
    statement = sa.select(locks).where(locks.c.policy.in_(policies)).order_by(*KEY).with_for_update()
    return _by_key(db.execute(statement))


def due(db: sa.Connection) -> list[Lock]:
    """Locks whose time is over by the database's clock, up to a bound, their rows locked. Those that a
    flush is just judging are left for the next second."""
    statement = sa.select(locks).where(locks.c.until_ms <= NowMs()).order_by(*KEY).limit(ENDED_MAX)
    return list(_by_key(db.execute(statement.with_for_update(skip_locked=True))).values())


def publish(db: sa.Connection, changes: Sequence[Change], mark: str) -> int:
    """The new version of the feed, with `changes` (at least one) in it and in the locks' table.

    Must be the last thing in its transaction.
    """
    _apply(db, changes)
    # The row stays locked until commit, so versions become visible in the order of their numbers. Out of a
    # sequence, 8 could be committed before 7: a gate that has seen 8 asks for `version > 8`, and would
    # never learn of 7. Last, because others wait for it.
    version = db.execute(
        sa.update(feed).values(version=feed.c.version + 1, mark=mark).returning(feed.c.version)
    ).scalar_one()
    db.execute(sa.insert(feed_versions).values(version=version, mark=mark, at_ms=NowMs()))
    db.execute(
        sa.insert(lock_changes),
        [{"version": version, "number": number} | _columns(change) for number, change in enumerate(changes)],
    )
    return int(version)


def _apply(db: sa.Connection, changes: Sequence[Change]) -> None:
    closed = [_lock_columns(change.lock) for change in changes if isinstance(change, Set)]
    opened = [change.at for change in changes if isinstance(change, Clear)]
    if closed:
        added = insert(db, locks)
        rest = {c.name: added.excluded[c.name] for c in locks.c if not c.primary_key}
        db.execute(added.on_conflict_do_update(index_elements=list(KEY), set_=rest), closed)
    if opened:
        gone = values_of(db, KEY, sorted(opened))
        match = sa.and_(*(column == gone.c[column.name] for column in KEY))
        db.execute(sa.delete(locks).where(sa.exists().where(match)))


def prune(db: sa.Connection) -> None:
    """Forget changes that no gate will ask for any more; whoever still does gets a snapshot."""
    oldest = sa.select(sa.func.max(feed_versions.c.version)).where(
        feed_versions.c.at_ms < NowMs() - CHANGES_KEPT_MS, feed_versions.c.version < feed.c.version
    )
    pruned_to = db.execute(
        sa.update(feed)
        .values(pruned_to=sa.func.coalesce(oldest.scalar_subquery(), feed.c.pruned_to))
        .returning(feed.c.pruned_to)
    ).scalar_one()
    for table in (lock_changes, feed_versions):
        db.execute(sa.delete(table).where(table.c.version <= pruned_to))


def _columns(change: Change) -> dict[str, Any]:
    if isinstance(change, Set):
        return {"op": "set"} | _lock_columns(change.lock)
    empty = {column.name: "" for column in locks.c if isinstance(column.type, sa.Text)}
    numbers = {"status": 0, "began_ms": 0, "until_ms": 0}
    return {"op": "clear", **empty, **numbers, **change.at._asdict()}


def _lock_columns(lock: Lock) -> dict[str, str | int]:
    return {
        "scope": lock.scope,
        "key": lock.key,
        "resource": lock.resource,
        "policy": lock.policy,
        "kind": lock.kind,
        "action": lock.action,
        "status": lock.status,
        "reason": lock.reason,
        "detail": lock.detail,
        "began_ms": millis(lock.began),
        "until_ms": millis(lock.until),
        "on_stale": lock.on_stale,
    }


def lock_of(row: sa.Row[tuple[object, ...]]) -> Lock:
    columns = dict(row._mapping)
    return Lock(began=instant(columns.pop("began_ms")), until=instant(columns.pop("until_ms")), **columns)


def _by_key(rows: Iterable[sa.Row[tuple[object, ...]]]) -> dict[LockKey, Lock]:
    return {lock.at: lock for lock in map(lock_of, rows)}
