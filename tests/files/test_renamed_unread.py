"""A followed file is renamed before it is read: the day waits, and names the command that counts the rest."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days.targets import distinct_names
from analyzer.kernel.database.engine import open_engine, reading, writing
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.schema import offsets
from tests.support.command_line import run_command
from tests.support.running import Analyzer
from tests.support.waiting import wait_until

DAY_S = 86_400
SOURCE = """
    [billing]
    grace = "0s"
    [[sources]]
    name = "shop"
    file = "{path}"
    [sources.fields]
    time = {{ path = "ts", unit = "s" }}
    user = "user"
"""
DAYS = 2  # since the lines were written
WRITTEN = datetime.now(UTC) - timedelta(days=DAYS)
DATE = WRITTEN.date().isoformat()


class FollowedLog:
    """A file that an analyzer follows, with lines of a day that is over."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "app.log"
        self.lines = 0

    def write(self, prefix: str, lines: int) -> int:
        """Writes lines; returns their bytes."""
        ts = int(WRITTEN.replace(hour=12).timestamp())
        text = "".join(f"{json.dumps({'ts': ts, 'user': f'{prefix}{number}'})}\n" for number in range(lines))
        with self.path.open("a") as file:
            file.write(text)
        self.lines += lines
        return len(text)

    def start(self) -> Analyzer:
        analyzer = Analyzer(self.folder, "one", SOURCE.format(path=self.path))
        analyzer.wait_until_ready()
        return analyzer

    def counted(self) -> int:
        return sum(row.counted for row in self.rows())

    def rows(self) -> list[Any]:
        engine = self.engine()
        with reading(engine) as db:
            rows = list(db.execute(sa.select(offsets)).all())
        engine.dispose()
        return rows

    def engine(self) -> sa.Engine:
        return open_engine(f"sqlite:///{self.folder}/gatelock.db")

    def gatelock(self, *arguments: str) -> Any:
        return run_command([*arguments, "--config", str(self.folder / "one.toml")])

    def let_days_pass(self) -> None:
        """Has the open day be over, and the first file last read within it."""
        engine = self.engine()

        def is_changed() -> bool:
            earlier = {
                "begin_s": days.c.begin_s - DAYS * DAY_S,
                "end_s": days.c.end_s - DAYS * DAY_S,
                "date": DATE,
            }
            with writing(engine) as db:
                first = offsets.c.counted == 20
                read_ms = int(WRITTEN.replace(hour=20).timestamp()) * 1000
                db.execute(sa.update(offsets).where(first).values(beat_ms=read_ms))
                return db.execute(sa.update(days).where(days.c.state == "open").values(earlier)).rowcount == 1

        wait_until(is_changed, 30)  # an analyzer stores the open day within seconds
        engine.dispose()

    def shown(self) -> dict[str, Any]:
        lines = self.gatelock("billing", "days", "list", "--json").stdout.splitlines()
        return next(day for day in map(json.loads, lines) if day["day"] == DATE)

    def waits(self) -> int:
        return len(self.shown()["waits_for"])


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[tuple[FollowedLog, int]]:
    """A log whose file was renamed while its analyzer stood still and was killed, and the bytes left unread.

    Another analyzer follows the new file, and the day is over.
    """
    log = FollowedLog(tmp_path)
    log.write("a", 20)
    analyzer = log.start()
    try:
        wait_until(lambda: log.counted() == 20, 30)
        os.kill(analyzer.process.pid, signal.SIGSTOP)
        unread_bytes = log.write("b", 31)
        log.path.rename(f"{log.path}.2")
        log.write("c", 9)
    finally:
        analyzer.process.kill()
        analyzer.process.wait()
    analyzer = log.start()
    try:
        wait_until(lambda: log.counted() == 29, 30)
        log.let_days_pass()
        wait_until(lambda: log.waits() == 1, 30, log.shown)  # for the new file until the job has run
        yield log, unread_bytes
    finally:
        analyzer.end()


def test_a_day_waits_for_a_renamed_file_and_names_the_command_that_counts_it(
    unread: tuple[FollowedLog, int],
) -> None:
    log, unread_bytes = unread
    shown = log.gatelock("billing", "days", "list").stdout
    assert "app.log[0]: the file was renamed before it was read to its end, last read at " in shown
    assert f"; {unread_bytes:,} bytes of it are not counted" in shown
    command = f"gatelock upkeep import {log.path}.2 --source shop"
    assert f"{command}  # count the rest of it" in shown
    assert "--without" not in shown
    doctor = log.gatelock("doctor").stdout
    assert command in doctor
    assert "--without" not in doctor

    renamed, elsewhere = Path(f"{log.path}.2"), log.folder / "elsewhere"
    renamed.rename(elsewhere)
    shown = log.gatelock("billing", "days", "list", DATE).stdout
    assert "gatelock upkeep import FILE --source shop  # count the rest of it" in shown
    assert "bytes of it" not in shown
    elsewhere.rename(renamed)

    assert log.gatelock(*shlex.split(command)[1:]).exit_code == 0
    wait_until(lambda: log.shown()["state"] == "closed", 30)
    assert log.counted() == log.lines
    report = log.gatelock("billing", "report", "day", DATE).stdout
    assert len(re.findall(r",user:", report)) == log.lines
    assert log.gatelock("billing", "audit", "--day", DATE).exit_code == 0


def test_files_of_one_path_have_different_names() -> None:
    first, second, copy = (
        Partition("file", topic_id, 0, "web", "app.log")
        for topic_id in ("3f9a2b1c77", "90d1e4c2aa", "90d1e4c2aa#1")
    )
    assert [*distinct_names([first, second, copy]).values()] == [
        *("app.log[0]#3f9a2b1c", "app.log[0]#90d1e4c2aa", "app.log[0]#90d1e4c2aa#1"),
    ]
    assert distinct_names([first]) == {first: "app.log[0]"}
