"""Random values that belong to one database: keys of hashes that must not be predicted from outside.

Created when they are first needed, and never changed. A reader of the database can read them.
"""

from __future__ import annotations

from secrets import token_bytes

import sqlalchemy as sa

from analyzer.store.database.counter_tables import secrets
from analyzer.store.database.engine import insert, reading, writing

SECRET_BYTES = 32
EVENT_IDS = "event ids"  # name of the key of the hashes of events' ids


def secret_of(engine: sa.Engine, name: str) -> bytes:
    """Returns the secret of this name, 32 random bytes; creates it when there is none yet.

    Two processes that create it at once get the same one. Raises StoreAway.
    """
    wanted = sa.select(secrets.c.value).where(secrets.c.name == name)
    with reading(engine) as db:
        found = db.execute(wanted).scalar()
    if found is None:
        with writing(engine) as db:
            row = {"name": name, "value": token_bytes(SECRET_BYTES)}
            db.execute(insert(db, secrets).values(row).on_conflict_do_nothing())
            found = db.execute(wanted).scalar_one()
    return bytes(found)
