"""Servers and databases as fixtures; `tests/support/servers` starts or finds them."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

# Rewriting the assertions of all tests takes 6 CPU-seconds in each worker, and compiling our modules a second
# in each process that a test starts. Both are kept, also where the shell says otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ["pytester"]
pytest.register_assert_rewrite("tests.support")  # before it is imported: helpers assert too

from tests.support.compiled_statements import share_compiled_statements
from tests.support.cpu_meter import CpuMeter
from tests.support.depth import IS_DEEP, TIMES, deeper
from tests.support.in_memory import keep_files_in_memory
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed, in_ci
from tests.support.time_limits import RUN_S, TimeLimits
from tests.support.twins import twins

if TYPE_CHECKING:  # a test that asks for no server does not wait for the clients' imports
    from tests.support.servers.kafka import GivenKafka, Kafka, NativeKafka
    from tests.support.servers.pgbouncer import PgBouncer, PoolMode
    from tests.support.servers.postgres import NativePostgres, Postgres
    from tests.support.servers.redis import NativeRedis, Redis

# No deadline: the time of an example depends on the machine's load. Numbers of examples, here and where tests
# set them, are those of `make test`, so that its whole run stays short. `make deep` (GATELOCK_TEST_DEEP=1)
# draws ten times as many, and other ones each time: see `tests.support.depth`.
EXAMPLES = deeper(20)
hypothesis.settings.register_profile("default", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=EXAMPLES, derandomize=not IS_DEEP, print_blob=True
)
hypothesis.settings.load_profile("ci" if in_ci() else "default")

keep_files_in_memory()
share_compiled_statements()

SERVERS = pytest.StashKey[ServersUsed]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = ServersUsed(in_ci=in_ci())
    config.pluginmanager.register(config.stash[SERVERS])
    config.addinivalue_line("markers", "deep(why): runs in `make deep` alone")
    config.pluginmanager.register(CpuMeter(is_compared=not IS_DEEP))
    config.pluginmanager.register(
        TimeLimits(config, run_s=None if IS_DEEP else RUN_S, times=TIMES if IS_DEEP else 1)
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves to `make deep` what is marked so, and twins on PostgreSQL where databases do not differ.

    See `tests.support.twins`. A test that is asked for by its name runs always.
    """
    if any("::" in argument for argument in config.args):
        return
    if not IS_DEEP and (
        left_out := twins(items) | {item for item in items if item.get_closest_marker("deep")}
    ):
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Excludes imported modules and collected tests, which live to the end, from garbage collection.

    Scanning them took a quarter of the time of tests that start no process; the usual threshold of 700 new
    objects, which one statement of SQLAlchemy reaches, another twentieth.
    """
    gc.disable()
    found = yield
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    gc.freeze()
    return found


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_scanned() -> None:
    """Excludes what earlier modules left in caches too.

    Some tests collect garbage hundreds of times, and each time took longer the more tests had run before.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Takes back what a command that ran in this process set up.

    Its handler writes to the stream of that command, which is closed by then: each later record of the same
    process, of any thread, would print a traceback into the output that another test reads.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> ServersUsed:
    return pytestconfig.stash[SERVERS]


@pytest.fixture(scope="session")
def kafka(
    servers: ServersUsed, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kafka]:
    """A Kafka, or its mock; one for all workers, because an idle one takes a twentieth of a core.

    Use a new topic: `kafka.create_topic()`.
    """
    from tests.support.servers.shared import shared_kafka

    folder = tmp_path_factory.getbasetemp()
    of_all_workers = folder.parent if hasattr(pytestconfig, "workerinput") else folder
    with shared_kafka(of_all_workers / "kafka") as found:
        servers.found("kafka", found.kind, real=found.real)
        yield found


@pytest.fixture
def real_kafka(kafka: Kafka, servers: ServersUsed) -> NativeKafka | GivenKafka:
    """A Kafka, never the mock: for groups, configurations and records that must survive."""
    if not kafka.real:
        servers.lacks("kafka", Missing("a mock is not enough"))
    return kafka


@pytest.fixture
def own_kafka(servers: ServersUsed) -> Iterator[NativeKafka]:
    """A separate, started broker: to kill, pause, restart and leave broken."""
    from tests.support.servers.kafka import NativeKafka

    with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            broker = NativeKafka(Path(folder))
        except Missing as missing:
            servers.lacks("kafka", missing)
        broker.start()
        servers.found("kafka", broker.kind)
        yield broker
        broker.close()


@pytest.fixture(scope="session")
def postgres(servers: ServersUsed) -> Iterator[Postgres]:
    """A PostgreSQL, started once per worker. Use a new database: `postgres.new_database()`."""
    from tests.support.servers.postgres import find_postgres

    with tempfile.TemporaryDirectory(prefix="gatelock-postgres-") as folder:
        try:
            found = find_postgres(Path(folder))
        except Missing as missing:
            servers.lacks("postgresql", missing)
        servers.found("postgresql", found.kind)
        yield found
        found.close()


@pytest.fixture
def own_postgres(servers: ServersUsed) -> Iterator[NativePostgres]:
    """A separate, started server: to kill, pause, restart and leave broken."""
    from tests.support.servers.postgres import NativePostgres

    with tempfile.TemporaryDirectory(prefix="gatelock-postgres-") as folder:
        try:
            server = NativePostgres(Path(folder))
        except Missing as missing:
            servers.lacks("postgresql", missing)
        server.start()
        servers.found("postgresql", server.kind)
        yield server
        server.close()


@pytest.fixture
def new_pooler(servers: ServersUsed, postgres: Postgres) -> Iterator[Callable[[PoolMode], PgBouncer]]:
    """Starts a PgBouncer in a pool mode, in front of `postgres`."""
    from tests.support.servers.pgbouncer import PgBouncer

    with ExitStack() as stack:

        def start(pool_mode: PoolMode) -> PgBouncer:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gatelock-pgbouncer-"))
            try:
                pooler = PgBouncer(Path(folder), postgres.url, pool_mode)
            except Missing as missing:
                servers.lacks("pgbouncer", missing)
            pooler.start()
            stack.callback(pooler.close)
            servers.found("pgbouncer", pooler.kind)
            return pooler

        yield start


@pytest.fixture(scope="session")
def redis_server(servers: ServersUsed) -> Iterator[Redis]:
    """A Redis, started once per worker. All tests share its keys: use a new prefix."""
    from tests.support.servers.redis import find_redis

    with tempfile.TemporaryDirectory(prefix="gatelock-redis-") as folder:
        try:
            found = find_redis(Path(folder))
        except Missing as missing:
            servers.lacks("redis", missing)
        servers.found("redis", found.kind)
        yield found
        found.close()


@pytest.fixture
def own_redis(servers: ServersUsed) -> Iterator[NativeRedis]:
    """A separate, started server: to kill, pause, restart, and to count round trips."""
    from tests.support.servers.redis import NativeRedis

    with tempfile.TemporaryDirectory(prefix="gatelock-redis-") as folder:
        try:
            server = NativeRedis(Path(folder))
        except Missing as missing:
            servers.lacks("redis", missing)
        server.start()
        servers.found("redis", server.kind)
        yield server
        server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """The kind of database: a test with this fixture runs once on each."""
    return str(request.param)


@pytest.fixture
def database_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that is dropped afterwards."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path}/gatelock.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def migrated_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with all tables, copied from one that was migrated once."""
    if database == "sqlite":
        from tests.support.fresh_databases import copy_sqlite

        yield copy_sqlite(request.getfixturevalue("sqlite_template"), tmp_path / "gatelock.db")
        return
    from tests.support.fresh_databases import begin_history

    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database(template=request.getfixturevalue("postgres_template"))
    begin_history(url)
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that is not open, so that a copy of the file is complete."""
    from analyzer.kernel.database.migrate import upgrade

    template = tmp_path_factory.mktemp("template") / "gatelock.db"
    upgrade(f"sqlite:///{template}")
    left_open = [name for name in ("-wal", "-shm") if Path(f"{template}{name}").exists()]
    assert not left_open, f"upgrade() left the database open: {left_open}"
    return template


@pytest.fixture
def new_sqlite_url(sqlite_template: Path, tmp_path: Path) -> Callable[[], str]:
    """Returns a function that returns the URL of a new migrated SQLite database."""
    made = []

    def url() -> str:
        copy = tmp_path / f"{len(made)}.db"
        shutil.copyfile(sqlite_template, copy)
        made.append(copy)
        return f"sqlite:///{copy}"

    return url


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The URL of a migrated database without connections, as PostgreSQL requires of a template."""
    from analyzer.kernel.database.migrate import upgrade

    url = postgres.new_database()
    upgrade(url)
    return url
