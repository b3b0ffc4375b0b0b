"""The SQL source: its queries, and databases that fail."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed as feed_store
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tables import schema
from gatekeeper import Gate
from gatekeeper.model import Clear, Cursor, Lock, Set, SourceError
from gatekeeper.sources import sql
from gatekeeper.sources.sql import CHANGES_MAX, FETCH_S, TABLES, SqlSource
from gatekeeper.testing import ManualClock
from gatekeeper.view.lock_view import EMPTY, apply
from tests.support.waiting import wait_until

NOW = datetime.now(UTC).replace(microsecond=0)


def a_lock(caller: str = "api_key:acme", *, hours: float = 24.0) -> Lock:
    return Lock("caller", caller, "daily", NOW, NOW + timedelta(hours=hours))


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()


@pytest.fixture
def publish(engine: sa.Engine) -> Callable[..., None]:
    def publish(*changes: Set | Clear, mark: str = "m") -> None:
        with engine.begin() as db:
            feed_store.publish(db, changes, mark)

    return publish


@pytest.fixture
def source(migrated_url: str) -> Iterator[SqlSource]:
    source = SqlSource(migrated_url)
    yield source
    source.close()


def callers(source: SqlSource, since: Cursor | None = None) -> list[str]:
    return sorted(change.at.key for change in source.fetch(since).changes)


def test_the_columns_that_a_gate_reads_are_in_the_analyzers_schema() -> None:
    """The gatekeeper lists them again, because it must not import the analyzer."""
    for table in TABLES:
        columns = schema.metadata.tables[table.name].columns.keys()
        assert set(table.columns.keys()) <= set(columns), table.name
    assert set(sql.LOCK_COLUMNS) == set(schema.locks.columns.keys())


def test_a_snapshot_contains_locks_that_have_ended_by_the_databases_clock(
    source: SqlSource, publish: Callable[..., None]
) -> None:
    """If that clock is wrong, no later change would set them. The gate ends them by its own clock."""
    publish(Set(a_lock()), Set(a_lock("user:late", hours=-0.001)))
    assert callers(source) == ["api_key:acme", "user:late"]
    with Gate(source, clock=ManualClock(NOW)) as gate:
        assert gate.ready(10.0)
        assert [gate.allow("api_key:acme"), gate.allow("user:late")] == [False, True]


def test_more_changes_than_fit_an_answer_come_as_a_snapshot(
    source: SqlSource, publish: Callable[..., None]
) -> None:
    publish(Set(a_lock("user:0")))
    start = source.fetch(None).at
    publish(*(Set(a_lock(f"user:{n}")) for n in range(CHANGES_MAX)))
    assert not source.fetch(start).snapshot
    publish(Clear(a_lock("user:0").at))
    assert source.fetch(start).snapshot
    assert len(source.fetch(start).changes) == CHANGES_MAX - 1


def test_more_changes_come_as_changes_if_a_snapshot_is_not_shorter(
    source: SqlSource, publish: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a gate that lags while very many locks are raised would get them all again and again."""
    monkeypatch.setattr(sql, "CHANGES_MAX", 10)
    locks = [a_lock(f"user:{n}") for n in range(40)]
    publish(*map(Set, locks[:15]))
    start = source.fetch(None).at
    publish(*map(Set, locks[15:30]))
    publish(*map(Set, locks[30:]))
    update = source.fetch(start)
    assert (update.snapshot, update.since, update.changes) == (
        False,
        start.version,
        tuple(map(Set, locks[15:])),
    )
    publish(*(Clear(lock.at) for lock in locks[:8]))  # 33 changes, 32 locks
    assert source.fetch(start).snapshot


def test_an_unknown_op_is_left_out_and_named(
    source: SqlSource, publish: Callable[..., None], engine: sa.Engine
) -> None:
    publish(Set(a_lock("user:eve")))
    start = source.fetch(None).at
    publish(Set(a_lock()), Set(a_lock("user:bob")))
    with engine.begin() as db:
        at_bob = schema.lock_changes.c.key == "user:bob"
        db.execute(sa.update(schema.lock_changes).where(at_bob).values(op="warn"))
    update = source.fetch(start)
    assert (update.changes, update.unknown) == ((Set(a_lock()),), ("op warn",))


def test_pruned_changes_lead_to_a_snapshot_although_their_marks_are_stored(
    source: SqlSource, publish: Callable[..., None], engine: sa.Engine
) -> None:
    publish(Set(a_lock()), mark="m1")
    at = source.fetch(None).at
    publish(Set(a_lock("user:bob")), mark="m2")
    publish(Set(a_lock("user:eve")), mark="m3")
    with engine.begin() as db:
        db.execute(sa.delete(schema.lock_changes).where(schema.lock_changes.c.version <= 2))
        db.execute(sa.update(schema.feed).values(pruned_to=2))
    assert callers(source, at) == ["api_key:acme", "user:bob", "user:eve"]


class TestBehind:
    """A database that answers need not be up to date."""

    @pytest.fixture
    def beat(self, engine: sa.Engine) -> Callable[..., None]:
        def beat(partition: int, *, ago: float | None, behind: float = 0.0) -> None:
            ms = None if ago is None else int((time.time() - ago) * 1000)
            row = {"cluster": "c", "topic_id": "t", "partition": partition, "next": 0}
            with engine.begin() as db:
                db.execute(sa.insert(schema.offsets).values(beat_ms=ms, behind_ms=int(behind * 1000), **row))

        return beat

    def test_the_partition_that_is_furthest_behind_counts(
        self, source: SqlSource, beat: Callable[..., None]
    ) -> None:
        beat(0, ago=1.0, behind=2.0)
        beat(1, ago=0.5, behind=60.0)
        assert source.fetch(None).behind == pytest.approx(60.5, abs=5)

    def test_without_heartbeats_of_analyzers_it_falls_behind(
        self, source: SqlSource, beat: Callable[..., None]
    ) -> None:
        beat(0, ago=3600.0)
        assert source.fetch(None).behind == pytest.approx(3600, abs=5)

    def test_partitions_that_no_analyzer_follows_do_not_count(
        self, source: SqlSource, beat: Callable[..., None]
    ) -> None:
        assert source.fetch(None).behind == 0.0
        beat(0, ago=None, behind=99.0)
        assert source.fetch(None).behind == 0.0

    def test_the_delay_is_never_below_zero(self, source: SqlSource, beat: Callable[..., None]) -> None:
        beat(0, ago=-60.0)
        assert source.fetch(None).behind == 0.0


def test_an_answer_is_read_in_one_transaction_despite_concurrent_pruning(
    source: SqlSource, publish: Callable[..., None], engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(Set(a_lock("user:eve")), mark="m1")
    start = source.fetch(None).at
    publish(Set(a_lock()), mark="m2")
    publish(Set(a_lock("user:bob")), mark="m3")
    feed_position = sql._feed_position

    def then_prune(*arguments: Any) -> sql.FeedPosition:
        found = feed_position(*arguments)
        with engine.begin() as db:
            feed_store.prune(db, before_ms=1 << 60, most=1_000)
            db.execute(sa.delete(schema.lock_changes))
        return found

    monkeypatch.setattr(sql, "_feed_position", then_prune)
    assert callers(source, start) == ["api_key:acme", "user:bob"]


def test_the_error_for_a_database_without_tables_or_feed_names_the_command(
    database_url: str, request: Any
) -> None:
    engine = open_engine(database_url)
    with engine.begin() as db:
        db.exec_driver_sql("create table other (id integer)")
    source = SqlSource(database_url)
    with pytest.raises(SourceError, match="gatelock upkeep db upgrade"):
        source.fetch(None)
    with engine.begin() as db:
        schema.metadata.create_all(db)
    with pytest.raises(SourceError, match="the feed has no row: run `gatelock upkeep db upgrade`"):
        source.fetch(None)
    source.close()
    engine.dispose()


def test_errors_do_not_contain_the_password() -> None:
    source = SqlSource("postgresql+psycopg://gate:hunter2@127.0.0.1:1/gatelock")
    with pytest.raises(SourceError, match=r"gate:[*]{3}@127[.]0[.]0[.]1") as refused:
        source.fetch(None)
    assert "hunter2" not in repr(refused.value)


def test_after_fetches_concurrent_with_a_writer_the_view_equals_the_locks(
    source: SqlSource, publish: Callable[..., None], engine: sa.Engine
) -> None:
    view, ended = apply(EMPTY, source.fetch(None)), threading.Event()

    def write() -> None:
        for n in range(60):
            publish(Set(a_lock(f"user:{n}")), mark=f"m{n}")
            if n % 3 == 0:
                publish(Clear(a_lock(f"user:{n}").at), mark=f"c{n}")
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        view = apply(view, source.fetch(view.at))
    writer.join()
    view = apply(view, source.fetch(view.at))
    assert {lock.key for lock in view} == {f"user:{n}" for n in range(60) if n % 3}


class TestSQLite:
    @pytest.fixture
    def path(self, sqlite_template: Path, tmp_path: Path) -> Path:
        return Path(shutil.copyfile(sqlite_template, tmp_path / "gate lock#1%.db"))

    def test_a_wrong_path_does_not_create_an_empty_database(self, tmp_path: Path) -> None:
        source = SqlSource(f"sqlite:///{tmp_path}/nowhere.db")
        with pytest.raises(SourceError, match="unable to open database file"):
            source.fetch(None)
        assert list(tmp_path.iterdir()) == []

    def test_the_connection_is_read_only(self, path: Path) -> None:
        source = SqlSource(f"sqlite:///{path}")
        with source._engine.connect() as db, pytest.raises(sa.exc.OperationalError, match="readonly"):
            db.exec_driver_sql("delete from feed")

    def test_a_file_that_was_replaced_by_an_older_copy_is_read_from_then_on(
        self, path: Path, tmp_path: Path
    ) -> None:
        source, engine = SqlSource(f"sqlite:///{path}"), open_engine(f"sqlite:///{path}")
        with engine.begin() as db:
            feed_store.publish(db, [Set(a_lock())], "m1")
        engine.dispose()
        shutil.copyfile(path, tmp_path / "backup.db")
        with engine.begin() as db:
            feed_store.publish(db, [Set(a_lock("user:bob"))], "m2")
        view = apply(EMPTY, source.fetch(None))
        engine.dispose()
        (tmp_path / "backup.db").replace(path)
        assert {lock.key for lock in apply(view, source.fetch(view.at))} == {"api_key:acme"}

    def test_the_write_ahead_log_of_a_killed_analyzer_is_read(self, path: Path) -> None:
        code = f"""
            import os, sqlite3
            db = sqlite3.connect({str(path)!r})
            db.execute("pragma journal_mode = wal")
            db.execute("update feed set version = 7, mark = 'm7'")
            db.commit()
            os.kill(os.getpid(), 9)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
        assert SqlSource(f"sqlite:///{path}").fetch(None).at == Cursor(7, "m7")

    def test_an_exclusive_writer_does_not_delay_the_gate(self, path: Path) -> None:
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("pragma journal_mode = wal")
        writer.execute("begin exclusive")
        begun_s = time.monotonic()
        assert SqlSource(f"sqlite:///{path}").fetch(None).snapshot
        assert time.monotonic() - begun_s < 1.0
        writer.close()


class TestPostgres:
    @pytest.fixture
    def url(self, own_postgres: Any) -> str:
        from analyzer.kernel.database.migrate import upgrade

        url = own_postgres.new_database()
        upgrade(url)
        return url

    def test_a_restarted_server_is_reconnected_to(self, own_postgres: Any, url: str) -> None:
        source = SqlSource(url)
        at = source.fetch(None).at
        own_postgres.kill()
        for _ in range(2):
            with pytest.raises(SourceError):
                source.fetch(at)
        own_postgres.start()
        assert source.fetch(at).at == at
        source.close()

    def test_a_stopped_server_delays_the_poller_for_a_limited_time(self, own_postgres: Any, url: str) -> None:
        """The server's machine still acknowledges packets, and the server itself enforces no time-out."""
        source = SqlSource(url)
        at = source.fetch(None).at
        own_postgres.pause()
        for _ in range(2):  # with the open connection, and with a new one
            begun_s = time.monotonic()
            with pytest.raises(SourceError):
                source.fetch(at)
            assert time.monotonic() - begun_s < 2 * FETCH_S
        own_postgres.resume()
        assert source.fetch(at).at == at
        source.close()

    def test_closing_during_a_query_leaves_no_connection(self, url: str) -> None:
        """A gate may be closed during a poll."""
        source = SqlSource(url)
        with source._translate_errors(), source._snapshot() as db:
            driver = db.connection.driver_connection
            assert driver is not None
            source.close()
        assert driver.closed
        assert source.fetch(None).snapshot
        source.close()

    def test_the_transaction_is_read_only_with_time_outs(self, url: str) -> None:
        source = SqlSource(url)
        with source._snapshot() as db:
            assert db.exec_driver_sql("show transaction_isolation").scalar() == "repeatable read"
            assert db.exec_driver_sql("show statement_timeout").scalar() == "2s"
            with pytest.raises(sa.exc.DBAPIError, match="read-only"):
                db.exec_driver_sql("delete from feed")
        source.close()

    def test_a_forked_child_does_not_use_its_parents_connection(self, url: str) -> None:
        source = SqlSource(url)
        at = source.fetch(None).at
        with source._engine.connect() as db:
            backend = db.exec_driver_sql("select pg_backend_pid()").scalar()
        child = os.fork()
        if not child:
            status = 1
            try:
                same = source.fetch(at).at == at
                with source._engine.connect() as db:
                    other = db.exec_driver_sql("select pg_backend_pid()").scalar() != backend
                source.close()
                gc.collect()
                status = 0 if same and other else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        with source._engine.connect() as db:
            assert db.exec_driver_sql("select pg_backend_pid()").scalar() == backend
        assert source.fetch(at).at == at
        source.close()


def test_a_gate_made_from_a_url_learns_of_a_lock(migrated_url: str, publish: Callable[..., None]) -> None:
    with Gate(migrated_url) as gate:
        assert gate.ready(10.0)
        assert gate.allow("api_key:acme")
        publish(Set(a_lock()), mark="m1")
        wait_until(lambda: not gate.allow("api_key:acme"))
        assert gate.check("api_key:acme").policy == "daily"
        assert abs(gate.clock_skew) < 5.0
