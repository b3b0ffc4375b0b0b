"""Sessions of browsers. A session is a random name that only the browser has; its digest is stored."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, reading, writing
from analyzer.kernel.tables.session_tables import sessions
from analyzer.kernel.tokens import SECRET_BYTES, token_digest

IDLE_MS = 12 * 3_600_000  # without an act of an operator
LASTS_MS = 7 * 86_400_000  # in any case
NOTED_EVERY_MS = 60_000
SESSIONS_MAX = 10_000


class Session(NamedTuple):
    """A session that is not over.

    Attributes:
        token: The digest of the token that signed in.
        is_due: Whether its last act should be stored again.
    """

    token: str
    is_due: bool


def begin(engine: sa.Engine, token: str) -> str:
    """Begins a session of the token with this digest and returns the name for the browser. Raises StoreAway.

    Sessions that are over are deleted, and the oldest one if there are `SESSIONS_MAX`.
    """
    name = secrets.token_urlsafe(SECRET_BYTES)
    columns = sessions.c
    with writing(engine) as db:
        over = sa.or_(columns.seen_ms < NowMs() - IDLE_MS, columns.begun_ms < NowMs() - LASTS_MS)
        db.execute(sa.delete(sessions).where(over))
        if db.execute(sa.select(sa.func.count()).select_from(sessions)).scalar_one() >= SESSIONS_MAX:
            oldest = (
                sa.select(columns.digest).order_by(columns.seen_ms, columns.digest).limit(1).scalar_subquery()
            )
            db.execute(sa.delete(sessions).where(columns.digest == oldest))
        row = {"digest": token_digest(name), "token": token, "begun_ms": NowMs(), "seen_ms": NowMs()}
        db.execute(sa.insert(sessions).values(row))
    return name


def find(engine: sa.Engine, name: str) -> Session | None:
    """Returns the session; None if it is over or never was. Raises StoreAway."""
    with reading(engine) as db:
        row = db.execute(sa.select(sessions).where(sessions.c.digest == token_digest(name))).first()
        now_ms = clock_ms(db)
    if row is None or now_ms - row.seen_ms >= IDLE_MS or now_ms - row.begun_ms >= LASTS_MS:
        return None
    return Session(row.token, now_ms - row.seen_ms >= NOTED_EVERY_MS)


def note_act(engine: sa.Engine, name: str) -> None:
    """Stores that an operator used the session just now. Raises StoreAway."""
    with writing(engine) as db:
        columns = sessions.c
        db.execute(sa.update(sessions).where(columns.digest == token_digest(name)).values(seen_ms=NowMs()))


def end(engine: sa.Engine, name: str) -> None:
    """Ends a session. Raises StoreAway."""
    with writing(engine) as db:
        db.execute(sa.delete(sessions).where(sessions.c.digest == token_digest(name)))
