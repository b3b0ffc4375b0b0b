"""A followed file is rotated twice within one outage of the database: `gatelock run` counts all of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine, reading
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tables import schema
from tests.support.running import Analyzer
from tests.support.servers.postgres import NativePostgres
from tests.support.waiting import wait_until

LINES = 40
SOURCE = """
    [[sources]]
    name = "web"
    file = "access.log"
    [sources.fields]
    time = { path = "ts", unit = "s" }
    user = "user"
"""


def counted(url: str) -> int:
    """Requests that are counted so far; -1 while the database is away."""
    engine = open_engine(url)
    try:
        with reading(engine) as db:
            return int(db.scalar(sa.select(sa.func.sum(schema.offsets.c.counted))) or 0)
    except StoreAway:
        return -1
    finally:
        engine.dispose()


def test_two_rotations_while_the_database_is_away_lose_nothing(
    tmp_path: Path, own_postgres: NativePostgres
) -> None:
    path = tmp_path / "access.log"

    def write(prefix: str) -> None:
        requests = [{"ts": int(time.time()), "user": f"{prefix}{n}"} for n in range(LINES)]
        with path.open("a") as file:
            file.writelines(f"{json.dumps(request)}\n" for request in requests)

    write("a")
    url = own_postgres.new_database()
    analyzer = Analyzer(tmp_path, "one", SOURCE.replace("access.log", str(path)), url)
    try:
        analyzer.wait_until_ready()
        wait_until(lambda: counted(url) == LINES, 30)
        own_postgres.kill()
        wait_until(lambda: analyzer.logged_at("reading is paused") is not None)
        write("b")  # to the end of the first file, which was not read
        for rotation in (2, 1):
            path.rename(f"{path}.{rotation}")
            write(f"c{rotation}-")
        own_postgres.start()
        wait_until(lambda: counted(url) == 4 * LINES, 30, lambda: (counted(url), analyzer.log[-5:]))
    finally:
        analyzer.end()
    assert counted(url) == 4 * LINES, "and nothing twice"
