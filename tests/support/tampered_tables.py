"""Changes of closed days by a user who may switch triggers off, as a superuser of the database may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from analyzer.kernel.database.engine import writing


@contextmanager
def without_triggers(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction in which no trigger refuses a change."""
    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("set local session_replication_role = replica")
            yield db
            return
        triggers = db.exec_driver_sql("select name, sql from sqlite_master where type = 'trigger'").all()
        for name, _ in triggers:
            db.exec_driver_sql(f"drop trigger {name}")
        yield db
        for _, created_by in triggers:
            db.exec_driver_sql(created_by)


def tamper(engine: sa.Engine, *statements: str) -> int:
    """Executes statements without triggers; returns how many rows the last one has changed."""
    changed = 0
    with without_triggers(engine) as db:
        for statement in statements:
            changed = db.exec_driver_sql(statement).rowcount
    return changed
