"""Notices changes of the feed when they are committed, so that servers need not poll it.

On PostgreSQL by LISTEN and NOTIFY. On SQLite, which has nothing of the kind, by reading the feed's version
from an open connection, which costs a twentieth of a fetch.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import database_errors, error_message
from analyzer.kernel.errors import StoreAway
from gatekeeper.sources.postgres_sessions import is_pooled

log = logging.getLogger(__name__)

CHANNEL = "gatelock_feed"
VERSION = "select version, mark from feed"
ASK_EVERY_S = 1.0  # for notifications that were lost
LOOK_EVERY_S = 0.1  # at a file: a look costs 0.2 ms, most of it for waking up
FILE_EVERY_S = 1.0  # between two checks that an open SQLite file was not replaced by another one
RETRY_S = 2.0  # between two attempts; until then the feed is polled
STOP_S = 1.0  # connecting to a server that hangs takes longer

OnChange = Callable[[bool], None]


def feed_changed(db: sa.Connection) -> None:
    """Notifies the listeners when this transaction commits. SQLite has no listeners."""
    if (notify := dialect_of(db).notify) is not None:
        notify(db, CHANNEL)


@contextmanager
def listening(engine: sa.Engine, on_change: OnChange, demand: threading.Event) -> Iterator[None]:
    """Calls `on_change` from a background thread whenever the feed may have changed: with True if the next
    change will be noticed as well, with False if not, or not for sure.

    Spurious calls are possible. Behind a connection pooler, which passes no notifications, there is no call
    with True: poll until there is one. SQLite is only looked at while `demand` is set.
    """
    listen = _look if dialect_of(engine).notify is None else _listen
    stopping, stopped = socket.socketpair()  # to be waited for together with a connection
    with stopping, stopped:
        watch = ChangeWatch(on_change, demand, stopped)
        thread = threading.Thread(target=listen, args=(engine, watch), daemon=True, name="feed-listener")
        thread.start()
        try:
            yield
        finally:
            stopping.shutdown(socket.SHUT_RDWR)
            demand.set()
            thread.join(STOP_S)


class ChangeWatch:
    """The state of one listener."""

    def __init__(self, on_change: OnChange, demand: threading.Event, stopped: socket.socket) -> None:
        self.on_change = on_change
        self.demand = demand
        self._stopped = stopped  # readable once the listener has to end
        self.seen: Any = None  # version and mark
        self._is_reliable: bool | None = None

    def wait(self, timeout_s: float, *descriptors: int) -> bool:
        """Waits until one of these descriptors is readable or the time is over; False once the watch ends."""
        poll = select.poll()  # not select.select, which fails for descriptors above 1,023
        for descriptor in (self._stopped.fileno(), *descriptors):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
        return self._stopped.fileno() not in ready

    def found(self, version: Any, *, is_reliable: bool) -> None:
        """Calls `on_change` unless neither the version nor the reliability has changed."""
        if version != self.seen or is_reliable != self._is_reliable:
            self.seen, self._is_reliable = version, is_reliable
            self.on_change(is_reliable)

    def lost(self) -> bool:
        """Calls `on_change`, and waits `RETRY_S`; False once the watch ends."""
        self._is_reliable = False
        self.on_change(False)
        return self.wait(RETRY_S)


def _listen(engine: sa.Engine, watch: ChangeWatch) -> None:
    logged = False
    while True:
        try:
            with database_errors():
                _receive(engine, watch)
            return
        except StoreAway as away:
            if not logged:  # the rest of the outage is shown by /readyz
                log.info("the database cannot send notifications, polling the feed instead: %s", away)
            logged = True
        if not watch.lost():
            return


def _receive(engine: sa.Engine, watch: ChangeWatch) -> None:
    """Listens until the watch ends. Raises StoreAway."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        driver: Any = db.connection.driver_connection
        db.detach()  # it keeps listening and must not return to the pool
        notifications: list[Any] = []
        driver.add_notify_handler(notifications.append)  # is called while a statement is executed
        if not is_pooled(db):  # otherwise the session that listens would go to another program
            db.exec_driver_sql(f"listen {CHANNEL}")
            with engine.begin() as notifier:  # shows whether notifications arrive from other connections
                feed_changed(notifier)
        is_reliable = is_notified = False
        try:
            while True:
                notifications.clear()
                version = driver.execute(VERSION).fetchone()
                is_notified = is_notified or bool(notifications)
                # A change without a notification: no later one can be relied on either.
                is_reliable = is_notified or (is_reliable and version == watch.seen)
                watch.found(version, is_reliable=is_reliable)
                # A notification that came during the statement may be of a later version.
                is_notified = bool(notifications) or driver.pgconn.notifies() is not None
                if not is_notified and not watch.wait(ASK_EVERY_S, driver.fileno()):
                    return
        except engine.dialect.loaded_dbapi.Error as error:
            raise StoreAway(error_message(error)) from error


def _look(engine: sa.Engine, watch: ChangeWatch) -> None:
    file = Path(engine.url.database or "").absolute()
    while True:
        with suppress(sqlite3.Error, OSError):
            if not _look_into(file, watch):
                return
        if not watch.lost():
            return


def _look_into(file: Path, watch: ChangeWatch) -> bool:
    """Looks at the version of the feed in this file until it is replaced by another one, or the watch ends;
    returns whether it was replaced. Raises sqlite3.Error and OSError."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        opened = file.stat()
        # An open connection would keep reading a file that a backup has replaced.
        while os.path.samestat(opened, file.stat()):
            for _ in range(round(FILE_EVERY_S / LOOK_EVERY_S)):
                watch.found(connection.execute(VERSION).fetchone(), is_reliable=True)
                watch.demand.wait()
                if not watch.wait(LOOK_EVERY_S):
                    return False
    return True
