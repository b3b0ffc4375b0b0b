"""Connections to the database, as its server counts them."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.engine import reading

GATE_NAME = "gatelock gate"  # as gates name their connections
GATES = sa.text("select count(*) from pg_stat_activity where application_name = :name")
CONNECTIONS_MAX = sa.text("select current_setting('max_connections')::int")


class GateConnections(NamedTuple):
    """Connections that gates hold open, and how many the server allows for all clients."""

    gates: int
    connections_max: int


def gate_connections(engine: sa.Engine) -> GateConnections | None:
    """Returns the connections of gates; None on SQLite, where gates hold none. Raises StoreAway."""
    if engine.dialect.name != "postgresql":
        return None
    with reading(engine) as db:
        gates = db.execute(GATES, {"name": GATE_NAME}).scalar_one()
        return GateConnections(gates, db.execute(CONNECTIONS_MAX).scalar_one())
