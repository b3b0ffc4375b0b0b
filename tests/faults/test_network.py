"""The network to PostgreSQL: lost commits and replies, silence, delays, fragments."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.errors import StoreAway
from tests.store.flushing import now_s
from tests.store.simulated_analyzers import PARTS, Analyzer, empty_tables, log_of, state
from tests.support.proxy import Proxy


class Network:
    """A database that the test reaches directly and analyzers through a proxy, and a log for them."""

    def __init__(self, url: str) -> None:
        address = make_url(url)
        self.proxy = Proxy(int(address.port or 5432), str(address.host))
        self.engine = open_engine(address)
        self.far_engine = open_engine(address.set(host="127.0.0.1", port=self.proxy.port))
        self.log = log_of(now_s(self.engine))

    def run(self) -> dict[str, object]:
        """Runs an analyzer to the end of the log and returns what is stored then."""
        Analyzer(self.far_engine, self.log).run()
        return state(self.engine)

    def close(self) -> None:
        self.far_engine.dispose()
        self.engine.dispose()
        self.proxy.close()


@pytest.fixture
def network(postgres: Any, postgres_template: str) -> Iterator[Network]:
    url = postgres.new_database(template=postgres_template)
    network = Network(url)
    yield network
    network.close()
    postgres.drop(url)


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_commit_that_is_lost_or_whose_reply_is_lost_takes_effect_once(
    network: Network, loss: Literal["request", "reply"]
) -> None:
    """For the analyzer both look alike: it reads the stored positions."""
    undisturbed = network.run()
    lost = 0
    while True:
        empty_tables(network.engine)
        triggered = network.proxy.lose(b"COMMIT", loss, after=lost)
        assert network.run() == undisturbed, f"commit {lost}"
        if not triggered.is_set():
            break
        lost += 1
    assert lost >= 5  # commits of the plan, of the positions and of several flushes


def test_a_fragmented_or_slow_network_changes_nothing(network: Network) -> None:
    undisturbed = network.run()
    for disturb in (lambda: network.proxy.shred(7), lambda: network.proxy.slow(0.005)):
        empty_tables(network.engine)
        network.far_engine.dispose()
        disturb()
        assert network.run() == undisturbed


def test_a_silent_network_is_an_error_once_it_is_cut(network: Network) -> None:
    store = SqlStore(network.far_engine, "here")
    store.begin(PARTS[0], 3)
    network.proxy.stall()
    threading.Timer(0.5, network.proxy.cut).start()
    began_s = time.monotonic()
    with pytest.raises(StoreAway):
        store.positions([PARTS[0]])
    assert 0.4 < time.monotonic() - began_s < 5
    network.proxy.flow()
    assert store.positions([PARTS[0]])[PARTS[0]].next == 3


def test_the_kernel_ends_connections_to_a_machine_that_is_gone(network: Network) -> None:
    """Without keep-alive probes a client that waits for an answer waits forever: it sends nothing itself."""
    with network.far_engine.connect() as db:
        assert db.execute(sa.select(1)).scalar_one() == 1
        connection = socket.socket(fileno=db.connection.dbapi_connection.fileno())
        try:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle_s, every_s, times, user_ms = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
        finally:
            connection.detach()
    assert idle_s + every_s * times <= 10
    assert user_ms == 5_000
