"""The commands of docs/backup.md, with PostgreSQL's own programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import sqlalchemy as sa

from analyzer.kernel.database import migrate
from tests.support.servers.postgres import NativePostgres, dsn_of, find_programs

PAGE = (Path(__file__).parents[2] / "docs" / "backup.md").read_text()


def command(program: str) -> str:
    """Returns the only command line of the page that begins with `program`."""
    (found,) = re.findall(rf"^ {{4}}({program} .+)", PAGE, re.MULTILINE)
    return str(found)


def test_a_restored_backup_has_no_table_of_a_later_version_and_can_be_upgraded_again(
    own_postgres: NativePostgres, tmp_path: Path
) -> None:
    environment = os.environ | {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(own_postgres.port),
        "PGUSER": "gatelock",
        "PATH": f"{find_programs()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(line: str) -> None:
        subprocess.run(["bash", "-ec", line], cwd=tmp_path, env=environment, check=True)

    run("createdb gatelock")
    url = sa.make_url(own_postgres.url).set(database="gatelock")
    migrate.upgrade(url)
    (tmp_path / "gatelock.toml").write_text(
        f'[database]\nurl = "{url.render_as_string(hide_password=False)}"'
    )
    run("gatelock backup --to backups")
    assert "gatelock backup --to backups" in PAGE
    with psycopg.connect(dsn_of(str(url))) as db:  # a gate that stays connected
        db.execute("create table later (id bigint)")
        db.commit()
        run(command("dropdb"))
    run(command("pg_restore"))
    migrate.upgrade(url)
    assert migrate.check(url) == []
