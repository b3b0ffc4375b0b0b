"""A database in which gates reported their status, and a log knows some callers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from analyzer.gates.gate_reports import store_statuses
from analyzer.kernel.tables.counter_tables import named_callers
from gatekeeper.model import Cursor, GateStatus, LockHits, LockKey

ANN, BOB = "user:ann", "user:bob"
HITS = (LockHits(LockKey("caller", ANN, "", "daily"), 7, 5),)
CURRENT = Cursor(0, "")  # stands for the version that the feed has when the status is stored
SOURCE = """
    [[sources]]
    name   = "web"
    file   = "access.jsonl"
    caller = ["user", "address"]
    [sources.fields]
    time    = { path = "ts", unit = "ms" }
    user    = "user"
    address = "ip"
"""


def gate_status(instance: str = "host:1:ab", **fields: Any) -> GateStatus:
    """The status of a healthy gate of the application shop, with some fields replaced."""
    healthy: dict[str, Any] = {"number": 1, "application": "shop", "library": "0.1.0", "at": CURRENT,
                               "age": 0.4, "locks": (), "more": (0, 0), "callers": ()}  # fmt: skip
    return GateStatus(instance=instance, **healthy | fields)


def report(engine: sa.Engine, *statuses: GateStatus) -> None:
    """Stores what gates reported."""
    with engine.connect() as db:
        at = Cursor(*db.execute(sa.text("select version, mark from feed")).one())
    store_statuses(
        engine, [status._replace(at=at) if status.at == CURRENT else status for status in statuses]
    )


def log_callers(engine: sa.Engine, *callers: str) -> None:
    """Makes the log know these callers."""
    row = {"cluster": "c", "topic_id": "t", "partition": 0, "hour": 1, "how": "new", "next": 1}
    with engine.begin() as db:
        db.execute(sa.insert(named_callers).values(**row, callers="\n".join(callers)))
