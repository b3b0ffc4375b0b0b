"""Random values that belong to one database: keys of hashes that must not be predicted from outside.

Created when they are first needed, and never changed. A reader of the database can read them.
"""

from __future__ import annotations

from secrets import token_bytes

import sqlalchemy as sa

from analyzer.kernel.database.engine import insert, reading, writing
from analyzer.kernel.tables.counter_tables import secrets

SECRET_BYTES = 32
EVENT_IDS = "event ids"  # name of the key of the hashes of events' ids
REFERENCES = "references"  # name of the key of the references in closed days


def ensure_secret(engine: sa.Engine, name: str) -> bytes:
    """Returns the secret of this name, 32 random bytes; creates it when there is none yet.

    Two processes that create it at once get the same one. Raises StoreAway.
    """
    with reading(engine) as db:
        secret = known_secret(db, name)
    if secret is not None:
        return secret
    with writing(engine) as db:
        return stored_secret(db, name)


def stored_secret(db: sa.Connection, name: str) -> bytes:
    """Returns the secret as `ensure_secret` does, in a transaction that writes."""
    secret = known_secret(db, name)
    if secret is None:
        row = {"name": name, "value": token_bytes(SECRET_BYTES)}
        db.execute(insert(db, secrets).values(row).on_conflict_do_nothing())
        secret = known_secret(db, name)
    if secret is None:
        raise LookupError(f"the secret {name} was not stored")
    return secret


def known_secret(db: sa.Connection, name: str) -> bytes | None:
    """Returns the secret of this name; None when there is none yet."""
    value = db.execute(sa.select(secrets.c.value).where(secrets.c.name == name)).scalar()
    return None if value is None else bytes(value)
