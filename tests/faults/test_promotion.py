"""A standby behind the address of a primary that is gone, then its promotion: no count is lost.

A real pair of servers, with streaming replication.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine, reading
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.tables.job_tables import job_runs
from analyzer.kernel.tables.schema import offsets
from tests.support.proxy import Proxy
from tests.support.running import Analyzer
from tests.support.servers.postgres import NativePostgres
from tests.support.waiting import wait_until

LINES = 200
PATIENCE_S = 90.0  # on a busy machine
AT_ONCE_S = 10.0  # a heartbeat comes every few seconds
CONFIGURATION = """
    [[sources]]
    file = "{log}"
    format = "combined"
    [[policies]]
    name = "daily"
    limit = 100
    window = {{ per = "day" }}
"""


@pytest.fixture
def standby(own_postgres: NativePostgres, tmp_path: Path) -> Iterator[NativePostgres]:
    """A server that follows `own_postgres`."""
    folder = own_postgres.folder.with_name(f"{own_postgres.folder.name}-standby")
    folder.mkdir()
    server = own_postgres.standby(folder)
    server.start()
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.deep("two servers and an analyzer for a minute")
def test_behind_a_standby_nothing_is_ready_until_it_is_promoted(
    own_postgres: NativePostgres, standby: NativePostgres, tmp_path: Path
) -> None:
    url, log = own_postgres.new_database(), tmp_path / "access.log"
    upgrade(url)
    log.touch()
    proxy = Proxy(own_postgres.port)
    through = sa.make_url(url).set(port=proxy.port).render_as_string(hide_password=False)
    engine = open_engine(through)
    analyzer = Analyzer(tmp_path, "one", CONFIGURATION.format(log=log), through)
    try:
        analyzer.wait_until_ready(PATIENCE_S)
        write(log)
        wait_until(lambda: counted(engine) == LINES, PATIENCE_S, lambda: "it is not counted")
        wait_until(lambda: has_followed(own_postgres), PATIENCE_S, lambda: "the standby is behind")
        own_postgres.kill()
        proxy.turn_to(standby.port)
        engine.dispose()
        wait_until(
            lambda: "can only be read" in analyzer.problems().get("database", ""),
            AT_ONCE_S,
            analyzer.problems,
        )
        write(log)
        before = runs(engine)
        with psycopg.connect(standby.dsn, autocommit=True) as db:
            db.execute("select pg_promote()")
        analyzer.wait_until_ready(PATIENCE_S)
        wait_until(lambda: counted(engine) >= 2 * LINES, PATIENCE_S, lambda: "it is not counted")
        wait_until(lambda: runs(engine) > before, 2 * PATIENCE_S, lambda: "no job runs")
        assert counted(engine) == 2 * LINES
    finally:
        analyzer.process.kill()
        analyzer.process.wait()
        engine.dispose()
        proxy.close()


def write(log: Path) -> None:
    at = f"{datetime.now(UTC):%d/%b/%Y:%H:%M:%S +0000}"
    with log.open("a") as file:
        file.writelines(
            f'192.0.2.{n % 200} - - [{at}] "GET /items HTTP/1.1" 200 5 "-" "test"\n' for n in range(LINES)
        )


def counted(engine: sa.Engine) -> int:
    with reading(engine) as db:
        return int(db.execute(sa.select(sa.func.sum(offsets.c.counted))).scalar() or 0)


def runs(engine: sa.Engine) -> int:
    """Returns how often jobs have ended."""
    with reading(engine) as db:
        last = sa.select(sa.func.max(job_runs.c.number).label("number")).group_by(job_runs.c.job).subquery()
        return int(db.execute(sa.select(sa.func.sum(last.c.number))).scalar() or 0)


def has_followed(primary: NativePostgres) -> bool:
    with psycopg.connect(primary.dsn, autocommit=True) as db:
        found = db.execute("select replay_lsn = pg_current_wal_lsn() from pg_stat_replication").fetchall()
    return found == [(True,)]
