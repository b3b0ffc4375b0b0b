"""Time-outs of connections to the database."""

from __future__ import annotations

from typing import NamedTuple

# An analyzer that was stopped in mid-flush must not block the others for longer than this.
IDLE_IN_TRANSACTION_MS = 5_000
STATEMENT_MS = 2_000


class Timeouts(NamedTuple):
    """The time-outs of an engine, in milliseconds.

    Attributes:
        statement_ms: Of a statement of a server; 0 for none.
        idle_ms: Between two statements of a transaction of a server.
        busy_ms: How long to wait for a file that another process writes to.
        lock_ms: Of a lock of a server.
    """

    statement_ms: int = STATEMENT_MS
    idle_ms: int = IDLE_IN_TRANSACTION_MS
    busy_ms: int = STATEMENT_MS
    lock_ms: int = STATEMENT_MS
