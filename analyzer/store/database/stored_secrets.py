"""Random keys of this installation, created when they are first needed and never changed."""

from __future__ import annotations

from secrets import token_bytes

import sqlalchemy as sa

from analyzer.store.database.billing_tables import secrets
from analyzer.store.database.engine import insert

SECRET_BYTES = 32


def stored_secret(db: sa.Connection, name: str) -> bytes:
    """Returns the secret of this name; creates it in a transaction that writes if there is none."""
    wanted = sa.select(secrets.c.value).where(secrets.c.name == name)
    found = db.execute(wanted).scalar()
    if found is None:
        created = insert(db, secrets).values(name=name, value=token_bytes(SECRET_BYTES))
        db.execute(created.on_conflict_do_nothing())
        found = db.execute(wanted).scalar_one()
    return bytes(found)
