"""The audit log: acts of operators, changes of the plan and renamed sources; who, what, when, and why."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, reading, slow_reading
from analyzer.kernel.tables.schema import events

RECORDS_RETRIED = "rejects counted"  # the act of an entry about a retry
PLAN_IN_FORCE = "plan put in force"  # the act of an entry about a plan


class AuditEntry(NamedTuple):
    """One act."""

    at: datetime  # by the database's clock
    who: str
    act: str
    about: str
    why: str
    id: str


def record(db: sa.Connection, who: str, act: str, about: str, reason: str) -> dict[str, Any]:
    """Writes an entry in the transaction of the act itself, so that both commit or neither.

    Returns its row.
    """
    values = {"id": secrets.token_hex(8), "at_ms": NowMs(), "who": who, "act": act, "about": about}
    added = sa.insert(events).values(values | {"why": reason}).returning(*events.c)
    return dict(db.execute(added).mappings().one())


COUNTED_MAX = 100_000  # entries, for how many there are


def entries(
    engine: sa.Engine,
    since_ms: int = 0,
    until_ms: int | None = None,
    text: str = "",
    behind: tuple[int, str] | None = None,
) -> Iterator[AuditEntry]:
    """Yields the entries since then, the newest first, in constant memory. Raises StoreAway.

    With `until_ms` those up to that millisecond, included; with `text` those that are about it or name it as
    the act or the actor; with `behind` those behind a place: the time, negative, and the id.
    """
    conditions = _conditions(since_ms, until_ms, text)
    if behind is not None:
        at_ms = -behind[0]
        follows = sa.or_(events.c.at_ms < at_ms, events.c.id > behind[1])
        conditions += [events.c.at_ms <= at_ms, follows]
    columns = (events.c.at_ms, events.c.who, events.c.act, events.c.about, events.c.why, events.c.id)
    statement = sa.select(*columns).where(*conditions).order_by(events.c.at_ms.desc(), events.c.id)
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        for at_ms, *fields in rows:
            yield AuditEntry(instant(at_ms), *fields)


def count_entries(engine: sa.Engine, since_ms: int, until_ms: int | None = None, text: str = "") -> int:
    """Returns how many entries there are, at most `COUNTED_MAX`. Raises StoreAway."""
    found = sa.select(sa.literal(1)).where(*_conditions(since_ms, until_ms, text)).limit(COUNTED_MAX)
    with slow_reading(engine) as db:
        return int(db.execute(sa.select(sa.func.count()).select_from(found.subquery())).scalar_one())


def _conditions(since_ms: int, until_ms: int | None, text: str) -> list[sa.ColumnElement[bool]]:
    conditions = [events.c.at_ms >= since_ms]
    conditions += [events.c.at_ms <= until_ms] if until_ms is not None else []
    if text:
        texts = sa.func.lower(events.c.about + " " + events.c.act + " " + events.c.who)
        conditions.append(texts.contains(text.lower(), autoescape=True))
    return conditions


def newest_entry(engine: sa.Engine) -> str | None:
    """Returns the id of the newest entry; None without any. Raises StoreAway."""
    newest = sa.select(events.c.id).order_by(events.c.at_ms.desc(), events.c.id).limit(1)
    with reading(engine) as db:
        return db.execute(newest).scalar()
