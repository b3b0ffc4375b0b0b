"""A database in which the transactions of one process's tests meet, its actors, and its world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.interleavings.actors import SimulatedClock, Transactions
from tests.interleavings.worlds import World
from tests.support.servers.postgres import dsn_of

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


class Stage:
    """Hands out the actors and a world, and makes both again where a test has left something behind.

    A test that times out leaves its actors paused in open transactions, whose locks would block each later
    test for as long as that may take.

    Args:
        postgres: Has the database.
        template: The URL of a migrated database, which is copied.
        clock: In the place of the database's.
    """

    def __init__(self, postgres: Postgres, template: str, clock: SimulatedClock) -> None:
        self._postgres, self._template, self._clock = postgres, template, clock
        self._url = ""
        self._transactions: Transactions | None = None
        self._world: World | None = None

    @property
    def url(self) -> str:
        """The URL of the database, which is made when it is first asked for."""
        if not self._url:
            self._url = self._postgres.new_database(template=self._template)
        return self._url

    @property
    def transactions(self) -> Transactions:
        """The actors."""
        if self._transactions is None:
            self._transactions = Transactions(self.url, self._clock)
        return self._transactions

    def world(self, name: str) -> World:
        """Returns a world; the one before it is closed, because they share the database.

        Raises LockNotAvailable when a new database is blocked as well.
        """
        if self._world is not None and self._world.name == name:
            return self._world
        try:
            return self._make(name)
        except psycopg.errors.LockNotAvailable:
            self.discard()
            return self._make(name)

    def _make(self, name: str) -> World:
        world, self._world = self._world, None
        if world is not None:
            world.close()
        self._world = World(self.url, self._clock, name)
        return self._world

    def tidy(self) -> None:
        """Discards everything if a transaction has not ended."""
        if self._transactions is not None and not self._transactions.is_idle:
            self.discard()

    def discard(self) -> None:
        """Ends the actors, waiting or not, with all connections, and drops the database."""
        transactions, self._transactions = self._transactions, None
        world, self._world = self._world, None
        url, self._url = self._url, ""
        if transactions is not None:
            transactions.release()
        if url:
            with psycopg.connect(dsn_of(url), autocommit=True) as db:
                db.execute(OTHERS)
        if transactions is not None:
            transactions.close()
        if world is not None:
            world.disconnect()
        if url:
            self._postgres.drop(url)
