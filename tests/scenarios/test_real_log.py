"""A real access log, replayed by its own clock: a surge locks the addresses that awk finds, and no other."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from collections import defaultdict, deque
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import sqlalchemy as sa

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.kernel.database.clock import millis
from analyzer.kernel.tables.schema import lock_history
from tests.support.whole_loop import World

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "data" / "apache_combined_10k.log.gz"
PAGE = (ROOT / "docs" / "policies.md").read_text()
LIMIT, WINDOW_S = 40, 60
CONFIGURATION = f"""
[[sources]]
topic = "access-log"
format = "combined"
[[policies]]
name = "flood"
kind = "surge"
per = "address"
limit = {LIMIT}
window = {{ rolling = "{WINDOW_S}s" }}
lock_for = "10m"
"""
STEP_S = 3.0  # shorter than a slot
JOBS_EVERY = 10  # turns: a lock that ends half a minute late is still the same lock


def lines() -> list[tuple[datetime, bytes]]:
    """Returns the lines in the order of the file, each with the latest time so far: it is not in order."""
    found: list[tuple[datetime, bytes]] = []
    with gzip.open(LOG) as log:
        for line in log:
            at = datetime.strptime(line.split(b"[")[1][:26].decode(), "%d/%b/%Y:%H:%M:%S %z")
            found.append((max(at, found[-1][0]) if found else at, line.rstrip(b"\n")))
    return found


def found_by_awk() -> set[str]:
    """Returns the addresses that the command of the page finds."""
    command = re.search(r"```sh\nzcat access\.log\.gz \| (awk .*?)```", PAGE, re.DOTALL)
    assert command is not None
    done = subprocess.run(
        ["bash", "-c", f"zcat {LOG} | {command[1]}"], capture_output=True, text=True, check=True
    )
    shown = "".join(f"    {line}\n" for line in done.stdout.splitlines())
    assert shown in PAGE, "the page shows what the command prints"
    return {line.split()[1] for line in done.stdout.splitlines()}


def found_in_any_window() -> set[str]:
    """Returns the addresses with LIMIT requests in any window, which need not be a minute of the clock."""
    requests = defaultdict[str, list[datetime]](list)
    with gzip.open(LOG, "rt") as log:
        for line in log:
            at = datetime.strptime(line.split("[")[1][:26], "%d/%b/%Y:%H:%M:%S %z")
            requests[line.split()[0]].append(at)
    found = set()
    for address, times in requests.items():
        window = deque[datetime]()
        for at in sorted(times):
            window.append(at)
            while window[0] <= at - timedelta(seconds=WINDOW_S):
                window.popleft()
            if len(window) >= LIMIT:
                found.add(address)
    return found


def replayed(tmp_path: Path, template: Path, begin: datetime | None) -> set[str]:
    """Replays the log, by its own clock or all of it at `begin`; returns the addresses that were locked."""
    copy = tmp_path / "gatelock.db"
    shutil.copyfile(template, copy)
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    log = lines()
    world = World(
        f"sqlite:///{copy}", InlineFlushes(), load(tmp_path / "gatelock.toml").plan(), begin or log[0][0]
    )
    try:
        turns = count()
        for at, line in log:
            while begin is None and world.clock.now() < at:
                world.daemon.run_once()
                if next(turns) % JOBS_EVERY == 0:
                    world.jobs.run_once()
                left_s = (at - world.clock.now()).total_seconds()
                # Between two of its hours the log has nothing.
                world.clock.jump(left_s) if left_s > 120 else world.clock.advance(STEP_S)
            world.log.append(line, millis(begin or at))
        while world.log.lags()[world.log.part].records:
            world.step()
        world.pass_s(3)
        with world.engine.connect() as db:
            addresses = sa.select(lock_history.c.key).where(lock_history.c.scope == "address")
            return set(db.execute(addresses).scalars())
    finally:
        world.close()


def test_a_surge_locks_the_addresses_that_awk_finds(tmp_path: Path, sqlite_template: Path) -> None:
    wanted = found_by_awk()
    assert len(wanted) == 6
    assert found_in_any_window() == wanted
    assert replayed(tmp_path, sqlite_template, None) == wanted


def test_the_log_at_once_locks_no_address(tmp_path: Path, sqlite_template: Path) -> None:
    """Requests of days ago are not a flood of now."""
    later = lines()[-1][0] + timedelta(hours=1)
    assert replayed(tmp_path, sqlite_template, later) == set()
