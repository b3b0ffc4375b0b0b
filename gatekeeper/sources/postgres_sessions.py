"""Settings of sessions on PostgreSQL that also hold behind a connection pooler.

A pooler such as PgBouncer gives each transaction (or each client) one of few sessions, which other programs
use before and after it. There a setting of the session is lost or reaches another program, a statement that
was prepared by name is not found or is another program's, and start-up `options` are refused. So nothing is
asked for at start: a direct session is set up once, and one of a pooler in each transaction, for that only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import sqlalchemy as sa
except ImportError as missing:
    raise ImportError("gatekeeper.sources.sql needs SQLAlchemy: pip install 'gatelock[sql]'") from missing

__all__ = ["is_pooled", "set_up_sessions"]

POOLED = "gatelock_pooled"  # in the `info` of a connection
READ_ONLY = "25006"  # SQLSTATE: the server is a standby, or this session is read-only


def set_up_sessions(engine: sa.Engine, settings: Mapping[str, str | int]) -> None:
    """Gives each transaction of an engine of psycopg these settings of PostgreSQL, by name.

    A transaction in AUTOCOMMIT mode has them on a direct connection alone.
    """

    def set_up(connection: Any, record: Any) -> None:
        # The process that a pooler names at the start is none of the server's, in every pool mode.
        condition = f" where pg_backend_pid() = {int(connection.info.backend_pid)}"
        is_direct = (
            connection.execute(_statement(settings, is_local=False) + condition).fetchone() is not None
        )
        connection.commit()
        record.info[POOLED] = not is_direct
        if not is_direct:
            connection.prepare_threshold = None

    def set_in_transaction(connection: sa.Connection) -> None:
        if connection.info.get(POOLED):
            connection.exec_driver_sql(statement_of_transaction)

    def renew(context: sa.engine.ExceptionContext) -> None:
        # A session keeps the defaults with which it began, and a standby that was promoted has others: the
        # connections of the pool are opened again.
        if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
            context.is_disconnect = True

    def forget_mode(connection: Any, _record: Any) -> None:
        # After a read-only transaction SQLAlchemy asks for READ WRITE in each later one, for which a standby
        # has another error, and which overrides the server's own default.
        if connection is not None and connection.read_only is False:
            connection.read_only = None

    statement_of_transaction = _statement(settings, is_local=True)
    sa.event.listen(engine, "connect", set_up)
    sa.event.listen(engine, "checkin", forget_mode)
    sa.event.listen(engine, "begin", set_in_transaction)
    sa.event.listen(engine, "handle_error", renew)


def is_pooled(connection: sa.Connection) -> bool:
    """Whether a pooler is between this connection and the server."""
    return bool(connection.info.get(POOLED))


def _statement(settings: Mapping[str, str | int], *, is_local: bool) -> str:
    local = "true" if is_local else "false"
    return "select " + ", ".join(f"set_config('{name}', '{to}', {local})" for name, to in settings.items())
