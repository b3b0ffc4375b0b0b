"""The way to PostgreSQL loses a commit, or its reply, goes silent, or brings everything in shreds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from analyzer.errors import StoreAway
from analyzer.store.database.engine import open_engine
from analyzer.store.transaction.sql_store import SqlStore
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import PARTS, Analyzer, begin_again, log_of, state
from tests.support.proxy import Proxy


class Way:
    """A database, reached directly by the test and through a proxy by analyzers; and a log for them."""

    def __init__(self, url: str) -> None:
        address = make_url(url)
        self.proxy = Proxy(int(address.port or 5432), str(address.host))
        self.engine = open_engine(address)
        self.far = open_engine(address.set(host="127.0.0.1", port=self.proxy.port))
        self.log = log_of(now_s(self.engine))

    def run(self) -> dict[str, object]:
        """What is stored when an analyzer came to the end of the log, through everything."""
        Analyzer(self.far, self.log).run()
        return state(self.engine)

    def close(self) -> None:
        self.far.dispose()
        self.engine.dispose()
        self.proxy.close()


@pytest.fixture
def way(postgres: Any, postgres_template: str) -> Iterator[Way]:
    url = postgres.new_database(template=postgres_template)
    way = Way(url)
    yield way
    way.close()
    postgres.drop(url)


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_any_commit_that_is_lost_or_whose_reply_is_lost_is_made_once(
    way: Way, loss: Literal["request", "reply"]
) -> None:
    """The analyzer hears the same of both, and cannot know; the stored positions tell it."""
    calm = way.run()
    lost = 0
    while True:
        begin_again(way.engine)
        sprung = way.proxy.lose(b"COMMIT", loss, after=lost)
        assert way.run() == calm, f"commit {lost}"
        if not sprung.is_set():
            break
        lost += 1
    assert lost >= 5  # the plan's, the positions', and several flushes'


def test_a_network_in_shreds_or_a_slow_one_changes_nothing(way: Way) -> None:
    calm = way.run()
    for disturb in (lambda: way.proxy.shred(7), lambda: way.proxy.slow(0.005)):
        begin_again(way.engine)
        way.far.dispose()
        disturb()
        assert way.run() == calm


def test_a_silent_network_is_waited_for_until_it_is_cut(way: Way) -> None:
    store = SqlStore(way.far, "here")
    store.begin(PARTS[0], 3)
    way.proxy.stall()
    threading.Timer(0.5, way.proxy.cut).start()
    began_s = time.monotonic()
    with pytest.raises(StoreAway):
        store.positions([PARTS[0]])
    assert 0.4 < time.monotonic() - began_s < 5
    way.proxy.flow()
    assert store.positions([PARTS[0]])[PARTS[0]].next == 3


def test_the_kernel_gives_up_a_server_whose_machine_is_gone(way: Way) -> None:
    """Without keep-alives who waits for an answer waits for ever: nothing of ours is under way."""
    with way.far.connect() as db:
        assert db.execute(sa.select(1)).scalar_one() == 1
        line = socket.socket(fileno=db.connection.dbapi_connection.fileno())
        try:
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle_s, every_s, times, user_ms = (
                line.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
        finally:
            line.detach()
    assert idle_s + every_s * times <= 10
    assert user_ms == 5_000
