"""Connections to the database, as its server counts them."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import reading

GATE_NAME = "gatelock gate"  # as gates name their connections


class GateConnections(NamedTuple):
    """Connections that gates hold open, and how many the server allows for all clients."""

    gates: int
    connections_max: int


def gate_connections(engine: sa.Engine) -> GateConnections | None:
    """Returns the connections of gates; None on SQLite, where gates hold none. Raises StoreAway."""
    counts = dialect_of(engine).connection_counts
    if counts is None:
        return None
    with reading(engine) as db:
        return GateConnections(*counts(db, GATE_NAME))
