"""What gates told of themselves, as it was heard last. No count and no verdict depends on it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.core.fleet.gate_health import GateHealth
from analyzer.errors import SchemaBehind
from analyzer.store.database.audit_log import record
from analyzer.store.database.engine import NowMs, insert, reading, writing
from analyzer.store.database.schema import feed, feed_versions, gates, named_callers, totals
from analyzer.store.reports.status import unhurried
from analyzer.store.transaction import plans
from gatekeeper.identity import NAME_BYTES_MAX, is_name
from gatekeeper.model import Cursor, GateStatus, SourceError
from gatekeeper.telemetry import status_json

GATES_KEPT_MS = 86_400_000  # since one was heard of; a gate that goes on tells every few seconds
GATES_KEPT = 10_000  # the newest: who can tell may tell under any number of names
GATES_LISTED_MAX = 2_000
CALLER_BYTES_MAX = 2 * NAME_BYTES_MAX  # with the kind of name in front
AT_ONCE = 500  # rows in one statement
ROWS_AT_ONCE = 4  # of `named`, each up to some megabytes of names


def keep(engine: sa.Engine, told: Iterable[GateStatus]) -> None:
    """Keep of each gate what it told last; what is older than what is there changes nothing.
    Raises StoreAway."""
    # In one order, whoever writes: of two servers that heard the same gates none waits in a circle.
    rows = [
        {
            "instance": each.instance, "number": each.number, "at_ms": NowMs(), "first_ms": NowMs(),
            "told": status_json.dump(each),
        }
        for each in sorted(told, key=lambda each: each.instance)
    ]  # fmt: skip
    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("set local synchronous_commit = off")  # it is told again in some seconds
        for begin in range(0, len(rows), AT_ONCE):
            added = insert(db, gates).values(rows[begin : begin + AT_ONCE])
            newer = {name: added.excluded[name] for name in ("number", "at_ms", "told")}
            older = gates.c.number < added.excluded.number
            db.execute(added.on_conflict_do_update(index_elements=["instance"], set_=newer, where=older))


def heard(engine: sa.Engine) -> list[GateHealth]:
    """The gates that told of themselves within a day, those heard last first. Raises StoreAway."""
    of = gates.c
    ago = [(NowMs() - column).label(column.name) for column in (of.at_ms, of.first_ms)]
    with reading(engine) as db:
        history = _history(db)
        rows = db.execute(
            sa.select(of.told, of.at_ms.label("then_ms"), *ago)
            .where(of.at_ms > NowMs() - GATES_KEPT_MS)
            .order_by(of.at_ms.desc(), of.instance)
            .limit(GATES_LISTED_MAX)
        ).all()
    return [gate for row in rows if (gate := _gate(row, history)) is not None]


class History(NamedTuple):
    """The versions that the feed had, as far as it still knows."""

    at: Cursor  # the latest
    marks: dict[int, str]
    published: list[tuple[int, int]]  # each version, and when that was

    def missed_ms(self, held: Cursor, then_ms: int) -> int | None:
        """How long, at a time, the version after `held` had been there; 0 when it was not. None when `held`
        was never of this feed."""
        mark = self.marks.get(held.version, held.mark)  # of a version that was forgotten, what the gate says
        if held.version > self.at.version or mark != held.mark:
            return None
        later = bisect_right(self.published, held.version, key=itemgetter(0))
        return max(0, then_ms - self.published[later][1]) if later < len(self.published) else 0


def _history(db: sa.Connection) -> History:
    of = feed_versions.c
    rows = db.execute(sa.select(of.version, of.mark, of.at_ms).order_by(of.version)).all()
    row = db.execute(sa.select(feed.c.version, feed.c.mark)).first()
    at = Cursor(0, "") if row is None else Cursor(row.version, row.mark)
    marks = {version: mark for version, mark, _ in rows} | {at.version: at.mark}
    return History(at, marks, [(version, at_ms) for version, _, at_ms in rows])


def _gate(row: sa.Row[Any], history: History) -> GateHealth | None:
    text, then_ms, at_ms, first_ms = tuple(row)
    try:
        told = status_json.load(text)
    except SourceError:  # written by something else than a gate
        return None
    missed_ms = 0 if told.at is None else history.missed_ms(told.at, then_ms)
    return GateHealth(
        told,
        heard_s=max(0, at_ms) / 1000,
        first_s=max(0, first_ms) / 1000,
        missed_s=(missed_ms or 0) / 1000,
        strange=missed_ms is None,
    )


def gone(now_ms: int) -> sa.ColumnElement[bool]:
    """Which rows nobody will ask for: not heard of for a day, or too many were heard of since."""
    newest = sa.select(gates.c.at_ms).order_by(gates.c.at_ms.desc()).offset(GATES_KEPT).limit(1)
    return sa.or_(gates.c.at_ms < now_ms - GATES_KEPT_MS, gates.c.at_ms <= newest.scalar_subquery())


def forget(engine: sa.Engine, name: str, who: str, why: str) -> int:
    """Forget the gates of the application `name`, or the one instance of this name; how many there were.
    Those that go on are there again within a minute. Raises StoreAway."""
    which = [name, *(gate.told.instance for gate in heard(engine) if gate.told.application == name)]
    with writing(engine) as db:
        rows = db.execute(sa.delete(gates).where(gates.c.instance.in_(which)).returning(gates.c.instance))
        number = len(rows.all())
        if number:
            record(db, who, "gates forgotten", name, why)
        return number


class Logged(NamedTuple):
    """What the log knows of some callers."""

    known: frozenset[str]
    overflow: bool  # it had too many callers in the last hours to count each by name


def logged(engine: sa.Engine, callers: Collection[str]) -> Logged:
    """Which of `callers` the log knows: who was counted in the hour that a partition has come to, or in the
    one before, and whom a policy has counted in a window that is not long over. Raises StoreAway."""
    # Anything may be asked for; what can be no name is in no log, and no database looks for all of it.
    wanted = {caller for caller in callers if is_name(caller, CALLER_BYTES_MAX)}
    found, overflow = set[str](), False
    with unhurried(engine) as db:
        rows = db.execute(
            sa.select(named_callers.c.how, named_callers.c.callers),
            execution_options={"yield_per": ROWS_AT_ONCE},
        )
        for row in rows:
            found |= wanted.intersection(row.callers.split("\n"))
            overflow = overflow or row.how == "drawn"  # there was no room left when somebody was drawn
        for policy in _policies_by_caller(db):
            found |= _judged(db, policy, sorted(wanted - found))
    return Logged(frozenset(found), overflow)


def _policies_by_caller(db: sa.Connection) -> list[str]:
    try:
        _, plan = plans.active(db)
    except (LookupError, SchemaBehind):  # nothing was counted yet; or by a later version
        return []
    return [policy.name for policy in plan.policies if policy.per.startswith("caller")]


def _judged(db: sa.Connection, policy: str, callers: list[str]) -> set[str]:
    of, found = totals.c, set[str]()
    for begin in range(0, len(callers), AT_ONCE):
        some = callers[begin : begin + AT_ONCE]
        found.update(
            db.execute(sa.select(of.key).where(of.policy == policy, of.key.in_(some)).distinct()).scalars()
        )
    return found
