"""PostgreSQL's LISTEN and NOTIFY for the feed: servers learn of a new version without polling for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from analyzer.errors import StoreAway
from analyzer.store.database.engine import database_errors, message_of

log = logging.getLogger(__name__)

CHANNEL = "gatelock_feed"
STOP_CHECK_S = 0.25  # how often the listener checks whether to stop
RETRY_S = 2.0  # between two attempts; until then the feed is polled


def feed_changed(db: sa.Connection) -> None:
    """Notifies the listeners when this transaction commits. SQLite has no listeners."""
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


@contextmanager
def listening(engine: sa.Engine, on_change: Callable[[], None]) -> Iterator[None]:
    """Calls `on_change` from a background thread whenever the feed may have changed.

    Spurious calls are possible, and behind a connection pooler there may be none: poll in addition.
    """
    if engine.dialect.name != "postgresql":
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(
        target=_listen, args=(engine, on_change, stopped), daemon=True, name="feed-listener"
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(4 * STOP_CHECK_S)  # bounded: connecting to a server that hangs takes longer


def _listen(engine: sa.Engine, on_change: Callable[[], None], stopped: threading.Event) -> None:
    logged = False
    while not stopped.is_set():
        try:
            with database_errors():
                _receive(engine, on_change, stopped)
        except StoreAway as away:
            if not logged:  # the rest of the outage is shown by /readyz
                log.info("the database cannot send notifications, polling the feed instead: %s", away)
            logged = True
            stopped.wait(RETRY_S)


def _receive(engine: sa.Engine, on_change: Callable[[], None], stopped: threading.Event) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        driver: Any = db.connection.driver_connection
        db.detach()  # it keeps listening and must not return to the pool
        db.exec_driver_sql(f"listen {CHANNEL}")
        on_change()  # for changes before the LISTEN
        try:
            while not stopped.is_set():
                for _ in driver.notifies(timeout=STOP_CHECK_S, stop_after=1):
                    on_change()
        except engine.dialect.loaded_dbapi.Error as error:
            raise StoreAway(message_of(error)) from error
