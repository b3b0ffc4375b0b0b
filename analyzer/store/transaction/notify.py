"""News of the feed, told by PostgreSQL to whoever listens: sooner than by looking, and at no cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from analyzer.errors import StoreAway
from analyzer.store.database.engine import reaching, sentence

log = logging.getLogger(__name__)

CHANNEL = "gatelock_feed"
WAKE_S = 0.25  # how soon it notices that it is to end
AGAIN_S = 2.0  # between two attempts; meanwhile gates that wait are told by looking


def tell(db: sa.Connection) -> None:
    """Tell those who listen that this transaction changes the feed, when it is committed. Nobody listens
    to SQLite."""
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


@contextmanager
def listening(engine: sa.Engine, on_news: Callable[[], None]) -> Iterator[None]:
    """Call `on_news` inside, in a thread of its own, whenever the feed may have changed.

    It may be called for nothing, and where a pooler stands between never: whoever listens looks now and
    then all the same.
    """
    if engine.dialect.name != "postgresql":
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(target=_listen, args=(engine, on_news, stopped), daemon=True, name="news")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(4 * WAKE_S)  # at most: connecting to a server that hangs takes longer


def _listen(engine: sa.Engine, on_news: Callable[[], None], stopped: threading.Event) -> None:
    told = False
    while not stopped.is_set():
        try:
            with reaching():
                _hear(engine, on_news, stopped)
        except StoreAway as away:
            if not told:  # once: health says whether the database is there
                log.info("the database tells no news for now, it is looked at: %s", away)
            told = True
            stopped.wait(AGAIN_S)


def _hear(engine: sa.Engine, on_news: Callable[[], None], stopped: threading.Event) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        driver: Any = db.connection.driver_connection
        db.detach()  # it goes on listening, so nobody must get it from the pool afterwards
        db.exec_driver_sql(f"listen {CHANNEL}")
        on_news()  # of what was told before
        try:
            while not stopped.is_set():
                for _ in driver.notifies(timeout=WAKE_S, stop_after=1):
                    on_news()
        except engine.dialect.loaded_dbapi.Error as error:
            raise StoreAway(sentence(error)) from error
