"""What an examination asks of the database beside what lists show."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.store.database.clock import clock_ms
from analyzer.store.database.engine import reading
from analyzer.store.database.schema import plans, rejects


class DatabaseStatus(NamedTuple):
    now_ms: int  # by the database's clock
    plan: str | None  # the digest of the plan in force; None: no analyzer ever worked here
    rejected: dict[str, int]  # records that could not be read of late, by reason


def database_status(engine: sa.Engine, rejected_within_ms: int) -> DatabaseStatus:
    """How the database stands now. Raises StoreAway."""
    with reading(engine) as db:
        now_ms = clock_ms(db)
        of_late = sa.select(rejects.c.reason, sa.func.count()).where(
            rejects.c.at_ms > now_ms - rejected_within_ms
        )
        return DatabaseStatus(
            now_ms,
            db.execute(sa.select(plans.c.digest).where(plans.c.active == 1)).scalar_one_or_none(),
            dict(db.execute(of_late.group_by(rejects.c.reason)).all()),
        )
