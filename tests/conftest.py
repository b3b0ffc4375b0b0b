"""Servers and databases for every test; `tests/support/servers` finds them."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

pytest_plugins = ["pytester"]
pytest.register_assert_rewrite("tests.support")  # before it is imported: helpers assert too

from tests.support.in_memory import keep_files_in_memory
from tests.support.servers import Missing
from tests.support.servers.report import ServersUsed, in_ci

if TYPE_CHECKING:  # a test that asks for no server does not wait for the clients' imports
    from tests.support.servers.kafka import GivenKafka, Kafka, NativeKafka
    from tests.support.servers.postgres import NativePostgres, Postgres
    from tests.support.servers.redis import NativeRedis, Redis

# No deadline anywhere: how long an example takes tells of the machine, not of the code.
# Half as many examples as usual, where a test does not say how many it needs: the whole run is to stay short.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if in_ci() else "default")

keep_files_in_memory()

SERVERS = pytest.StashKey[ServersUsed]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = ServersUsed(in_ci=in_ci())
    config.pluginmanager.register(config.stash[SERVERS])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What was imported and collected stays until the end: to look through it for garbage, again and again,
    took a quarter of the time of tests that start nothing."""
    gc.disable()
    found = yield
    gc.enable()
    gc.freeze()
    return found


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> ServersUsed:
    return pytestconfig.stash[SERVERS]


@pytest.fixture(scope="session")
def kafka(
    servers: ServersUsed, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kafka]:
    """A Kafka, or its mock; made once, for all processes that share the tests: one that idles costs a
    twentieth of a core. Take a topic of your own: `kafka.create_topic()`."""
    from tests.support.servers.shared import kafka_of_all

    folder = tmp_path_factory.getbasetemp()
    everybodys = folder.parent if hasattr(pytestconfig, "workerinput") else folder
    with kafka_of_all(everybodys / "kafka") as found:
        servers.found("kafka", found.kind, real=found.real)
        yield found


@pytest.fixture
def real_kafka(kafka: Kafka, servers: ServersUsed) -> NativeKafka | GivenKafka:
    """The same, but never the mock: for groups, configurations, and what must survive."""
    if not kafka.real:
        servers.lacks("kafka", Missing("a mock will not do"))
    return kafka


@pytest.fixture
def own_kafka(servers: ServersUsed) -> Iterator[NativeKafka]:
    """A started broker of the test's own: to kill, pause, restart and leave broken."""
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
    """A PostgreSQL, started once. Take a database of your own: `postgres.new_database()`."""
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
    """A started server of the test's own: to kill, pause, restart and leave broken."""
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


@pytest.fixture(scope="session")
def redis_server(servers: ServersUsed) -> Iterator[Redis]:
    """A Redis, started once. Its keys are everybody's: take a prefix of your own."""
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
    """A started server of the test's own: to kill, pause, restart, and count the round trips of."""
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
    """Which kind of database a test runs on: each of them, in turn."""
    return str(request.param)


@pytest.fixture
def database_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that is gone afterwards."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path}/gatelock.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def migrated_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with today's tables, copied from one that was migrated once."""
    if database == "sqlite":
        copy = tmp_path / "gatelock.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), copy)
        yield f"sqlite:///{copy}"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database(template=request.getfixturevalue("postgres_template"))
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that nobody has open, so that copying the file copies everything."""
    from analyzer.store.database.migrate import upgrade

    template = tmp_path_factory.mktemp("template") / "gatelock.db"
    upgrade(f"sqlite:///{template}")
    left_open = [name for name in ("-wal", "-shm") if Path(f"{template}{name}").exists()]
    assert not left_open, f"upgrade() left the database open: {left_open}"
    return template


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The URL of a migrated database that nobody is connected to."""
    from analyzer.store.database.migrate import upgrade

    url = postgres.new_database()
    upgrade(url)
    return url
