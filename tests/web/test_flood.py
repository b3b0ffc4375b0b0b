"""`gatelock run` under a flood of connections that send nothing: it counts, recovers and answers."""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine, reading
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tables import schema
from tests.support import plain_http
from tests.support.running import Analyzer
from tests.support.servers.postgres import NativePostgres
from tests.support.waiting import wait_until

SOCKETS = 2_500
FILES_MAX = 1_024  # descriptors of the analyzer, as many as a process usually has
RENEW_EVERY_S = 0.05
LINES_PER_FILE = 40
SOURCE = """
    [[sources]]
    name   = "web"
    file   = "access.log"
    format = "combined"
    caller = "address"
"""
# With the usual limit of files, which it cannot raise.
RUN = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_MAX}, {FILES_MAX}))
sys.argv = ["gatelock", "run"]
runpy.run_module("analyzer.faces.cli", run_name="__main__")
"""


class Flood:
    """Connections that send nothing. Each one that the server ends is made again."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.made = 0
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._open: set[socket.socket] = set()
        for _ in range(count):
            self._connect()

    def _connect(self) -> None:
        line = socket.socket()
        line.setblocking(False)
        if line.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            line.close()
            return
        self.made += 1
        self._open.add(line)
        self._selector.register(line, selectors.EVENT_READ)

    def renew(self) -> None:
        """Replaces the connections that the server has ended."""
        for key, _ in self._selector.select(0):
            line = key.fileobj
            assert isinstance(line, socket.socket)
            self._selector.unregister(line)
            self._open.discard(line)
            line.close()
            self._connect()

    def close(self) -> None:
        self._selector.close()
        for line in self._open:
            line.close()


@contextmanager
def flooding(address: tuple[str, int]) -> Iterator[Flood]:
    """Keeps a flood up, from another thread."""
    flood, stopped = Flood(address, SOCKETS), threading.Event()

    def renew() -> None:
        while not stopped.wait(RENEW_EVERY_S):
            flood.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield flood
    finally:
        stopped.set()
        thread.join()
        flood.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets this process open enough sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], SOCKETS + 1_000), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def counted(url: str) -> int:
    """Requests that are counted so far; -1 while the database is away."""
    engine = open_engine(url)
    try:
        with reading(engine) as db:
            return int(db.execute(sa.select(sa.func.sum(schema.offsets.c.counted))).scalar() or 0)
    except StoreAway:
        return -1
    finally:
        engine.dispose()


def test_nothing_is_lost_under_a_flood_while_a_file_rotates_and_the_database_restarts(
    tmp_path: Path, own_postgres: NativePostgres, many_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "access.log"

    def write(lines: int) -> None:
        now = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        with path.open("a") as file:
            file.writelines(f'192.0.2.{n} - - [{now}] "GET / HTTP/1.1" 200 5\n' for n in range(lines))

    write(LINES_PER_FILE)
    url = own_postgres.new_database()
    analyzer = Analyzer(tmp_path, "one", SOURCE, url, RUN)
    try:
        analyzer.wait_until_ready()
        wait_until(lambda: counted(url) == LINES_PER_FILE, 30)
        host, _, port = analyzer.http.partition(":")
        with flooding((host, int(port))) as flood:
            wait_until(lambda: flood.made > SOCKETS + 100, 30, lambda: flood.made)
            for rotation in (1, 2):
                path.rename(tmp_path / f"access.log.{rotation}")
                write(LINES_PER_FILE)
                if rotation == 1:
                    own_postgres.restart()
                seen = (rotation + 1) * LINES_PER_FILE
                wait_until(lambda seen=seen: counted(url) == seen, 30, lambda: analyzer.log[-5:])
            assert plain_http.get(f"http://{analyzer.http}/livez", timeout=30).status_code == 200
            assert psutil.Process(analyzer.process.pid).num_fds() < FILES_MAX - 200
        assert analyzer.process.poll() is None
        assert not any("open files" in message for message in analyzer.errors)
        assert len(analyzer.log) < 50
    finally:
        analyzer.end()
