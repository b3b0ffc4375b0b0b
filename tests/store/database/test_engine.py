"""Connections: isolation, durability and time-outs, with any defaults of the server; errors of outages."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import NowMs, open_engine, reading, writing
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.model import PartitionProgress, Position
from analyzer.kernel.tables.schema import buckets, leases
from analyzer.plan.plan import Plan
from tests.store.flushing import PART, run_together
from tests.support.servers.child import free_port
from tests.support.servers.postgres import NativePostgres, dsn_of
from tests.support.upkeep import Upkeep

NewEngine = Callable[[], sa.Engine]
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def setting_of(db: sa.Connection, setting: str) -> str:
    return str(db.exec_driver_sql(f"show {setting}").scalar_one())


@pytest.fixture
def with_other_defaults(separate_postgres_url: str) -> Iterator[sa.Engine]:
    """An engine of a database whose defaults differ from what the analyzer needs."""
    with psycopg.connect(dsn_of(separate_postgres_url), autocommit=True) as connection:
        for setting in (
            "default_transaction_isolation = 'repeatable read'",
            "synchronous_commit = off",
            "jit = on",
            "statement_timeout = 0",
            "timezone = 'America/St_Johns'",
        ):
            connection.execute(f'alter database "{connection.info.dbname}" set {setting}'.encode())
    engine = open_engine(separate_postgres_url)
    yield engine
    engine.dispose()


def test_writers_are_read_committed_and_durable_with_any_defaults(
    with_other_defaults: sa.Engine, separate_postgres_url: str
) -> None:
    with psycopg.connect(dsn_of(separate_postgres_url)) as plain:
        assert plain.execute("show transaction_isolation").fetchone() == ("repeatable read",)
    with writing(with_other_defaults) as db:
        assert setting_of(db, "transaction_isolation") == "read committed"
        assert setting_of(db, "synchronous_commit") == "on"
        assert setting_of(db, "timezone") == "UTC"
        assert setting_of(db, "jit") == "off"


@on_postgresql
def test_every_wait_is_bounded(engine: sa.Engine) -> None:
    with writing(engine) as db:
        assert setting_of(db, "idle_in_transaction_session_timeout") == "5s"
        assert (setting_of(db, "lock_timeout"), setting_of(db, "statement_timeout")) == ("2s", "2s")
        dbapi = db.connection.dbapi_connection
        assert dbapi is not None
        parameters = dbapi.info.get_parameters()
        assert (parameters["tcp_user_timeout"], parameters["connect_timeout"]) == ("5000", "5")


@on_postgresql
def test_a_reader_has_one_snapshot_and_does_not_change_its_connection(engine: sa.Engine) -> None:
    with reading(engine) as db:
        assert (setting_of(db, "transaction_isolation"), setting_of(db, "transaction_read_only")) == (
            "repeatable read",
            "on",
        )
    with writing(engine) as db:  # the same connection again
        assert (setting_of(db, "transaction_isolation"), setting_of(db, "transaction_read_only")) == (
            "read committed",
            "off",
        )


def test_a_reader_does_not_see_later_commits(engine: sa.Engine, new_engine: NewEngine) -> None:
    count = sa.select(sa.func.count()).select_from(leases)
    with reading(engine) as db:
        before = db.execute(count).scalar_one()
        assert Upkeep(new_engine(), str).hold()
        assert db.execute(count).scalar_one() == before == 0
    with reading(engine) as db:
        assert db.execute(count).scalar_one() == 1


@on_sqlite
def test_sqlite_syncs_to_the_disk_at_each_commit(engine: sa.Engine) -> None:
    with writing(engine) as db:
        assert db.exec_driver_sql("pragma journal_mode").scalar_one() == "wal"
        assert db.exec_driver_sql("pragma synchronous").scalar_one() == 2  # FULL


def test_the_time_of_the_database_is_in_milliseconds_and_advances(engine: sa.Engine) -> None:
    before_ms = time.time_ns() // 1_000_000
    with writing(engine) as db:
        readings = [db.execute(sa.select(NowMs())).scalar_one()]
        while readings[-1] == readings[0]:
            readings.append(db.execute(sa.select(NowMs())).scalar_one())
    assert before_ms - 1 <= readings[0] < readings[-1] <= time.time_ns() // 1_000_000 + 1


# Errors of a database that is away


@pytest.mark.parametrize("act", [writing, reading])
def test_a_wrong_statement_is_not_an_outage(engine: sa.Engine, act: Callable[..., object]) -> None:
    """Otherwise the loop would wait forever for a database that is there."""
    for mistake in ("select * from nowhere", "selekt 1"):
        with pytest.raises(sa.exc.DBAPIError), act(engine) as db:
            db.exec_driver_sql(mistake)


def test_a_refused_connection_is_an_outage_without_the_password() -> None:
    store = SqlStore(open_engine(f"postgresql+psycopg://ann:hush@127.0.0.1:{free_port()}/gatelock"), "here")
    with pytest.raises(StoreAway, match=r"[Cc]onnection refused") as away:
        store.positions([PART])
    assert "hush" not in str(away.value)
    assert "\n" not in str(away.value)


def test_a_killed_server_loses_the_flush_and_is_used_again_after_its_start(
    own_postgres: NativePostgres,
) -> None:
    from analyzer.kernel.database.migrate import upgrade

    url = own_postgres.new_database()
    upgrade(url)
    store = SqlStore(open_engine(url), "here")
    store.begin(PART, 0)
    with pytest.raises(StoreAway), store.transaction() as tx:  # noqa: PT012 - one story
        tx.move_offsets([PartitionProgress(PART, 0, 7)], {})
        own_postgres.kill()
    for ask in (lambda: store.positions([PART]), store.active_plan, lambda: store.activate(Plan())):
        with pytest.raises(StoreAway):
            ask()
    own_postgres.start()
    assert store.positions([PART]) == {PART: Position(0)}
    store._engine.dispose()


@on_postgresql
def test_a_connection_terminated_during_a_flush_is_an_outage(
    store: SqlStore, engine: sa.Engine, migrated_url: str
) -> None:
    store.begin(PART, 0)
    with pytest.raises(StoreAway, match="terminating connection"), store.transaction() as tx:  # noqa: PT012 - one story
        tx.move_offsets([PartitionProgress(PART, 0, 7)], {})
        with psycopg.connect(dsn_of(migrated_url), autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        tx.move_offsets([PartitionProgress(PART, 7, 9)], {})
    assert store.positions([PART]) == {PART: Position(0)}


def test_a_read_only_server_is_an_outage(separate_postgres_url: str) -> None:
    """After a failover the old address may be that of a standby."""
    with psycopg.connect(dsn_of(separate_postgres_url), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
    engine = open_engine(separate_postgres_url)
    store = SqlStore(engine, "here")
    with pytest.raises(StoreAway, match="read-only transaction"):
        store.begin(PART, 0)
    assert store.positions([PART]) == {}
    engine.dispose()


def test_a_connection_that_has_read_writes_in_the_mode_of_the_server(separate_postgres_url: str) -> None:
    """A standby refuses READ WRITE, and a server that is read-only by default obeyed it."""
    engine = open_engine(separate_postgres_url)
    with reading(engine) as db:
        session = db.exec_driver_sql("select pg_backend_pid()").scalar()
        assert db.exec_driver_sql("show transaction_read_only").scalar() == "on"
    with writing(engine) as db:
        assert db.exec_driver_sql("select pg_backend_pid()").scalar() == session
        assert db.exec_driver_sql("show transaction_read_only").scalar() == "off"
        db.exec_driver_sql("set default_transaction_read_only = on")
    with writing(engine) as db:
        assert db.exec_driver_sql("select pg_backend_pid()").scalar() == session
        assert db.exec_driver_sql("show transaction_read_only").scalar() == "on"
    engine.dispose()


@on_postgresql
def test_an_analyzer_that_is_stopped_during_a_flush_blocks_others_for_five_seconds(
    store: SqlStore, new_engine: NewEngine
) -> None:
    store.begin(PART, 0)
    other = SqlStore(new_engine(), "there")
    refused = 0
    with pytest.raises(StoreAway), store.transaction() as stopped:  # noqa: PT012 - one story
        stopped.move_offsets([PartitionProgress(PART, 0, 7)], {})
        began_s = time.monotonic()
        while other.positions([PART])[PART].next == 0:
            try:
                with other.transaction() as tx:
                    tx.move_offsets([PartitionProgress(PART, 0, 5)], {})
            except StoreAway:
                refused += 1
        waited_s = time.monotonic() - began_s
        stopped.check_plan(Plan(), 1)  # it continues
    assert other.positions([PART]) == {PART: Position(5)}
    assert refused >= 2, "each wait is two seconds at most"
    assert 4 < waited_s < 30, "the server ends an idle transaction after five seconds"


@on_sqlite
def test_a_file_that_another_process_writes_is_an_outage_after_two_seconds(
    store: SqlStore, engine: sa.Engine, new_engine: NewEngine
) -> None:
    store.begin(PART, 0)
    with writing(new_engine()):
        assert store.positions([PART]) == {PART: Position(0)}, "readers are not blocked"
        with reading(engine) as db:
            assert db.exec_driver_sql("pragma busy_timeout").scalar() == 2_000
        began_s = time.monotonic()
        with pytest.raises(StoreAway, match="database is locked"):
            store.begin(PART._replace(number=1), 0)
        assert 1.5 < time.monotonic() - began_s < 20
    assert store.begin(PART._replace(number=1), 3).next == 3


@on_sqlite
def test_a_read_only_file_is_an_outage(store: SqlStore, migrated_url: str) -> None:
    store.begin(PART, 4)
    engine = open_engine(f"sqlite:///file:{sa.make_url(migrated_url).database}?mode=ro&uri=true")
    reader = SqlStore(engine, "there")
    assert reader.positions([PART]) == {PART: Position(4)}
    with pytest.raises(StoreAway, match="readonly database"):
        reader.begin(PART._replace(number=1), 0)
    engine.dispose()


def test_a_missing_folder_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(StoreAway, match="unable to open database file"):
        SqlStore(open_engine(f"sqlite:///{tmp_path}/gone/gatelock.db"), "here").active_plan()


@on_sqlite
def test_a_full_disk_loses_the_flush_and_nothing_else(
    store: SqlStore, engine: sa.Engine, migrated_url: str
) -> None:
    store.begin(PART, 0)

    @sa.event.listens_for(engine, "begin")
    def fill_up(db: sa.Connection) -> None:
        if full:
            pages = db.exec_driver_sql("pragma page_count").scalar_one()
            db.exec_driver_sql(f"pragma max_page_count = {pages}")

    rows = [{c.name: 0 for c in buckets.c} | {"key": f"user:{n}", "resource": "x" * 100} for n in range(200)]
    full = True
    with pytest.raises(StoreAway, match="disk is full"), store.transaction() as tx:  # noqa: PT012 - one story
        tx.move_offsets([PartitionProgress(PART, 0, 7)], {})
        tx._db.execute(sa.insert(buckets), rows)
    assert store.positions([PART]) == {PART: Position(0)}
    full = False
    engine.dispose()  # the bound was one of that connection
    with store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 0, 7)], {})
        tx._db.execute(sa.insert(buckets), rows)
    assert store.positions([PART]) == {PART: Position(7)}


def test_four_threads_may_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    """SQLite does not wait when it changes a file to WAL: one in fifteen failed with "database is locked"."""

    def journal_mode(path: Path) -> str:
        engine = open_engine(f"sqlite:///{path}")
        with reading(engine) as db:
            mode = str(db.exec_driver_sql("pragma journal_mode").scalar_one())
        engine.dispose()
        return mode

    for n in range(40):
        answers = run_together(*[lambda n=n: journal_mode(tmp_path / f"{n}.db")] * 4)
        assert answers == ["wal"] * 4


def test_a_process_without_a_descriptor_to_connect_with_finds_the_database_away(database_url: str) -> None:
    engine = open_engine(database_url)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    try:
        for left in (0, 1):  # none for the socket; one for the socket, none for waiting for it
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + left, limits[1]))
            with pytest.raises(StoreAway), reading(engine) as db:
                db.execute(sa.select(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        engine.dispose()


@on_sqlite
def test_a_new_file_belongs_to_its_owner_alone(database_url: str) -> None:
    path, before = Path(sa.make_url(database_url).database or ""), os.umask(0o022)
    path.unlink(missing_ok=True)
    try:
        engine = open_engine(database_url)
        with writing(engine) as db:
            db.exec_driver_sql("create table t (n integer)")
        modes = {found.name: found.stat().st_mode & 0o777 for found in path.parent.glob(f"{path.name}*")}
        assert set(modes.values()) == {0o600}
        assert path.name in modes
        path.chmod(0o640)
        engine.dispose()
        with writing(engine) as db:
            db.exec_driver_sql("insert into t values (1)")
        assert path.stat().st_mode & 0o777 == 0o640, "as the operator left it"
        engine.dispose()
    finally:
        os.umask(before)
