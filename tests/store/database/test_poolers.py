"""A connection pooler between us and PostgreSQL: no setting, prepared statement or listener of a session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.notify import listening
from analyzer.kernel.database.engine import open_engine, reading, writing
from analyzer.kernel.errors import StoreRefused
from analyzer.kernel.tables.schema import offsets
from gatekeeper.model import Lock, Set
from gatekeeper.sources.postgres_sessions import is_pooled
from gatekeeper.sources.sql import SqlSource
from tests.support.command_line import run_command
from tests.support.depth import IS_DEEP
from tests.support.running import Analyzer
from tests.support.servers.postgres import dsn_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.servers.pgbouncer import PgBouncer, PoolMode

SETTINGS = {
    "idle_in_transaction_session_timeout": "5s",
    "jit": "off",
    "lock_timeout": "2s",
    "statement_timeout": "2s",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "transaction_isolation": "read committed",
}
LONG_S = 20.0
A_LOCK = Lock("caller", "api_key:acme", "daily", datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1))
WRITERS, WRITES = 6, 8  # more than sessions, and more than psycopg executes before it prepares by name
CONFIGURATION = """
    [[sources]]
    file = "access.log"
    format = "combined"
    [[policies]]
    name = "daily"
    limit = 100
    window = { per = "day" }
"""

NewPooler = Callable[["PoolMode"], "PgBouncer"]
in_both_modes = pytest.mark.parametrize("pool_mode", ["transaction", "session"])


@pytest.fixture
def pooled_url(new_pooler: NewPooler, pool_mode: PoolMode, separate_postgres_url: str) -> str:
    """The URL of a migrated database through a pooler of three sessions, which the tests empty first."""
    return new_pooler(pool_mode).url_of(separate_postgres_url)


@pytest.fixture
def pooled(pooled_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(pooled_url)
    yield engine
    engine.dispose()


@in_both_modes
def test_each_transaction_has_our_settings_and_leaves_none_behind(pooled: sa.Engine, pooled_url: str) -> None:
    with writing(pooled) as db:
        assert is_pooled(db)
        assert {name: db.exec_driver_sql(f"show {name}").scalar() for name in SETTINGS} == SETTINGS
    with reading(pooled) as db:
        assert db.exec_driver_sql("show transaction_isolation").scalar() == "repeatable read"
        assert db.exec_driver_sql("show statement_timeout").scalar() == "2s"
    pooled.dispose()
    with psycopg.connect(dsn_of(pooled_url)) as other:
        assert other.execute("show statement_timeout").fetchone() == ("0",)
        assert other.execute("show timezone").fetchone() == ("Pacific/Auckland",)


def test_without_a_pooler_the_session_is_set_up_once(separate_postgres_url: str) -> None:
    engine, statements = open_engine(separate_postgres_url), []
    sa.event.listen(engine, "before_cursor_execute", lambda *seen: statements.append(seen[2]))
    with writing(engine) as db:
        assert not is_pooled(db)
        assert db.exec_driver_sql("show statement_timeout").scalar() == "2s"
    engine.dispose()
    assert statements == ["show statement_timeout"]


@pytest.mark.parametrize("pool_mode", ["transaction"])
def test_writers_that_share_sessions_prepare_nothing_by_name(pooled_url: str) -> None:
    add_up = (
        sa.update(offsets)
        .where(offsets.c.partition == sa.bindparam("number"))
        .values(seen=offsets.c.seen + 1)
    )
    columns = {c.name: "" if isinstance(c.type, sa.String) else 0 for c in offsets.c if not c.nullable}

    def write(number: int) -> None:
        with closing_engine(pooled_url) as engine:
            for _ in range(WRITES):
                with writing(engine) as db:
                    db.execute(add_up, {"number": number % 2})
                    db.execute(sa.select(sa.func.count()).select_from(offsets)).scalar()

    with closing_engine(pooled_url) as engine:
        with writing(engine) as db:
            db.execute(sa.insert(offsets), [{**columns, "partition": number} for number in range(2)])
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(write, range(WRITERS)))
        with reading(engine) as db:
            assert db.execute(sa.select(sa.func.sum(offsets.c.seen))).scalar() == WRITERS * WRITES
            assert db.exec_driver_sql("select count(*) from pg_prepared_statements").scalar() == 0


@pytest.mark.parametrize("pool_mode", ["transaction", "session"] if IS_DEEP else ["transaction"])
def test_an_import_through_a_pooler_is_exact_and_a_gate_polls_its_locks(
    pooled_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gatelock.toml").write_text(f'[database]\nurl = "{pooled_url}"\n{CONFIGURATION}')
    Path("old.log").write_text("".join(lines()))
    for counted in ("300 counted", "nothing new"):
        done = run_command(["upkeep", "import", "old.log", "--source", "access.log"])
        assert (done.exit_code, counted in done.output) == (0, True), done.output
    assert "daily" in run_command(["locks", "list"]).output
    with closing(SqlSource(pooled_url)) as source:
        first = source.fetch(None)
        assert [change.at.key for change in first.changes] == ["address:192.0.2.1"]
        assert not list(source.fetch(first.at).changes)


@pytest.mark.parametrize("pool_mode", ["session"])
def test_behind_a_pooler_the_feed_is_polled_and_no_session_listens(
    pooled: sa.Engine, pooled_url: str
) -> None:
    calls: list[bool] = []
    with listening(pooled, calls.append, threading.Event()):
        wait_until(lambda: bool(calls), LONG_S, lambda: "the listener has not looked")
        seen = len(calls)
        with writing(pooled) as db:
            lock_feed.publish(db, [Set(A_LOCK)], "a mark")
        wait_until(lambda: len(calls) > seen, LONG_S, lambda: "the change was not noticed")
        with writing(pooled) as db:
            listen = sa.text("select count(*) from pg_stat_activity where query ilike 'listen %'")
            assert db.execute(listen).scalar() == 0
    assert True not in calls, "a later change may be noticed late"


def test_a_pooler_without_transactions_is_refused_with_the_setting(
    new_pooler: NewPooler, separate_postgres_url: str
) -> None:
    engine = open_engine(new_pooler("statement").url_of(separate_postgres_url))
    with pytest.raises(StoreRefused, match="set pool_mode = transaction or session"), reading(engine):
        pass
    engine.dispose()


@pytest.mark.deep("two whole analyzers for half a minute")
@in_both_modes
def test_two_analyzers_share_the_sessions_of_a_pooler(pooled_url: str, tmp_path: Path) -> None:
    configurations = {name: CONFIGURATION.replace("access.log", f"{name}.log") for name in ("one", "other")}
    for name in configurations:
        (tmp_path / f"{name}.log").touch()
    analyzers = [
        Analyzer(tmp_path, name, configuration.replace(f"{name}.log", f"{tmp_path}/{name}.log"), pooled_url)
        for name, configuration in configurations.items()
    ]
    sent = 0
    try:
        for analyzer in analyzers:
            analyzer.wait_until_listening()
        for _ in range(20):
            for name in configurations:
                with (tmp_path / f"{name}.log").open("a") as log:
                    log.writelines(lines())
            sent += 2 * 300
            time.sleep(1.0)
        with closing_engine(pooled_url) as engine:
            seen = sa.select(sa.func.sum(offsets.c.counted))

            def counted() -> int:
                with reading(engine) as db:
                    return db.execute(seen).scalar() or 0

            wait_until(lambda: counted() >= sent, 60.0, lambda: f"{counted()} of {sent} counted")
            assert counted() == sent
        assert [analyzer.errors for analyzer in analyzers] == [[], []]
    finally:
        for analyzer in analyzers:
            analyzer.process.kill()
            analyzer.process.wait()


def lines() -> Iterator[str]:
    """Yields lines of a log of this day: 200 of one caller, 100 of others."""
    at = f"{datetime.now(UTC):%d/%b/%Y:%H:%M:%S +0000}"
    for number in range(300):
        address = "192.0.2.1" if number % 3 else f"198.51.100.{number // 3}"
        yield f'{address} - - [{at}] "GET /items HTTP/1.1" 200 5 "-" "test"\n'


@contextmanager
def closing_engine(url: str) -> Iterator[sa.Engine]:
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()
