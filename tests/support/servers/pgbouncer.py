"""PgBouncer for tests: a connection pooler, started here in front of a PostgreSQL."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Literal

import psycopg
from sqlalchemy.engine import make_url

from tests.support.servers import Missing
from tests.support.servers.child import Child, free_port
from tests.support.servers.postgres import dsn_of, unprivileged_user

PoolMode = Literal["session", "transaction", "statement"]


class PgBouncer:
    """One pooler on 127.0.0.1, with the settings that Debian's package has otherwise.

    Args:
        folder: For its files; the caller deletes it.
        server_url: Of the PostgreSQL behind it, whose users need no password.
        pool_mode: When a session goes back to the pool.
        pool_size: Sessions of each database; few, so that clients do share them.
    """

    def __init__(self, folder: Path, server_url: str, pool_mode: PoolMode, pool_size: int = 3) -> None:
        """Raises Missing."""
        program = find_program()
        self.port = free_port()
        self.kind = f"native {program_version(program)}"
        self._url = make_url(server_url).set(host="127.0.0.1", port=self.port)
        server = make_url(server_url)
        password = f" password={server.password}" if server.password else ""
        (folder / "users.txt").write_text(f'"{server.username}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host={server.host} port={server.port} user={server.username}{password}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder}/users.txt\n"
            f"pool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\n"
        )
        user = unprivileged_user()
        if user:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user)
        command = [str(program), str(folder / "pgbouncer.ini")]
        self._child = Child(command, folder, parent_death_signal=signal.SIGKILL, user=user)

    def url_of(self, url: str) -> str:
        """Returns the URL of a database of the server, through this pooler."""
        return self._url.set(database=make_url(url).database).render_as_string(hide_password=False)

    def start(self) -> None:
        """Returns when the pooler lets clients in."""
        self._child.start(ready=self._answers)

    def close(self) -> None:
        self._child.kill()

    def _answers(self) -> bool:
        try:
            psycopg.connect(dsn_of(self.url_of(str(self._url))), connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True


def find_program() -> Path:
    """Returns the path of pgbouncer. Raises Missing."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/bin:/usr/bin:/usr/local/sbin")
    if program is None:
        raise Missing("no pgbouncer")
    return Path(program)


def program_version(program: Path) -> str:
    """Returns the version, for example 1.18.0."""
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return result.stdout.split()[1]
