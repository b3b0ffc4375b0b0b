"""docs/backup.md: its commands back up and restore a database, and counting continues exactly."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.house.reading import ROOT
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "backup.md").read_text()
BIN = Path(sys.executable).parent
CONFIGURATION = """
[database]
url = "{url}"
[analyzer]
http = "off"
[[sources]]
file = "requests.jsonl"
[sources.fields]
time = {{ path = "ts", unit = "s" }}
user = "user"
"""


def commands_of(chapter: str) -> list[str]:
    """The indented blocks below a heading: that of the backup, and that of the restore."""
    part = PAGE.partition(f"## {chapter}\n")[2].partition("\n## ")[0]
    return re.findall(r"(?:^    .+\n)+", part, re.MULTILINE)


class Installation:
    """An analyzer of a file, and a shell in its folder, in which the database has the name of the page."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, make_url(url)
        self.environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        if self.url.get_backend_name() == "postgresql":
            self.environment |= {
                "PGHOST": self.url.host or "",
                "PGPORT": str(self.url.port),
                "PGUSER": self.url.username or "",
                "PGPASSWORD": str(self.url.password or ""),
            }
        (folder / "gatelock.toml").write_text(CONFIGURATION.format(url=url))
        self.write(0)

    def shell(self, commands: str) -> str:
        if self.url.get_backend_name() == "postgresql":
            commands = re.sub(
                r"(--dbname=|\.dump |dropdb --force |createdb )gatelock\b",
                rf"\g<1>{self.url.database}",
                commands,
            )
        ran = subprocess.run(
            ["bash", "-ec", commands],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def write(self, requests: int) -> None:
        with (self.folder / "requests.jsonl").open("a") as log:
            log.writelines(
                json.dumps({"ts": int(time.time()), "user": "ann"}) + "\n" for _ in range(requests)
            )

    def counted(self) -> int:
        rows = map(json.loads, self.shell("gatelock usage --json").splitlines())
        return sum(row["value"] for row in rows)

    @contextmanager
    def running(self) -> Iterator[None]:
        with (self.folder / "analyzer.log").open("ab") as output:
            child = subprocess.Popen(
                [BIN / "gatelock", "run"], cwd=self.folder, stdout=output, stderr=output
            )  # fmt: skip
        try:
            yield
            assert child.poll() is None, (self.folder / "analyzer.log").read_text()
        finally:
            child.terminate()
            assert child.wait(30) == 0

    def wait_for(self, requests: int) -> None:
        self.shell("gatelock upkeep db upgrade")
        wait_until(lambda: self.counted() == requests, 60, self.counted)


@pytest.mark.slow
@pytest.mark.deep("processes for each command: tests/migrations restores a backup")
def test_a_backup_of_a_running_analyzer_is_restored_and_counting_continues_exactly(
    tmp_path: Path, database: str, database_url: str
) -> None:
    url = "sqlite:///gatelock.db" if database == "sqlite" else database_url
    there = Installation(tmp_path, url)
    backup, restore = commands_of("SQLite" if database == "sqlite" else "PostgreSQL")
    there.shell("gatelock upkeep db upgrade")
    with there.running():
        there.write(50)
        there.wait_for(50)
        there.shell(backup)
        there.write(30)
        there.wait_for(80)
    there.shell(restore)
    assert there.counted() == 50
    there.write(7)
    with there.running():
        there.wait_for(87)
        there.write(2)
        there.wait_for(89)
    assert re.search(r"89 counted, 89 in buckets: equal", there.shell("gatelock billing audit"))
