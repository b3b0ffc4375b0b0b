"""Ten minutes of three analyzers on one PostgreSQL, whose log then has no deadlock.

Days are closed, locks set and ended, plans of callers changed and old rows pruned meanwhile, by threads and
processes that meet as they like. Runs in `make deep`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from analyzer.billing.days.day_rows import add_day
from analyzer.callers.caller_changes import set_callers
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.database.engine import open_engine, reading, writing
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.job_tables import job_runs
from analyzer.kernel.tables.schema import lock_history, offsets
from tests.support.running import Analyzer
from tests.support.servers.postgres import NativePostgres
from tests.support.waiting import wait_until

SECONDS = float(os.environ.get("GATELOCK_TEST_DEADLOCKS_S", "600"))
PATIENCE_S = 300.0  # on a busy machine
LINES, ROUND_S = 60, 1.0  # of each log, and the time between two rounds
DAYS = 4  # before today, each of which is closed in each zone
ZONES = (
    "UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Sydney",
    "America/Los_Angeles", "Africa/Nairobi", "America/Sao_Paulo", "Asia/Dubai", "Asia/Kathmandu",
    "Pacific/Apia",
)  # fmt: skip
CONFIGURATION = """
    [billing]
    grace = "1m"
    zones = {zones}
    [[sources]]
    name = "{name}"
    file = "{file}"
    format = "combined"
    [[policies]]
    name = "daily"
    limit = 400
    window = {{ per = "day" }}
    [[policies]]
    name = "flood"
    kind = "surge"
    limit = 40
    window = {{ rolling = "1m" }}
    [[policies]]
    name = "whole"
    limit = 10000000
    per = "everyone"
    window = {{ per = "day" }}
"""


@pytest.mark.deep("ten minutes")
def test_postgresql_meets_no_deadlock(own_postgres: NativePostgres, tmp_path: Path) -> None:
    random, url, sent = Random(63), own_postgres.new_database(), 0
    upgrade(url)
    engine = open_engine(url)
    begin_days(engine)
    logs = {name: tmp_path / f"{name}.log" for name in ("one", "two", "three")}
    for log in logs.values():
        log.touch()
    analyzers = [
        Analyzer(tmp_path, name, CONFIGURATION.format(name=name, file=log, zones=[*ZONES]), url)
        for name, log in logs.items()
    ]
    try:
        wait_until(
            lambda: all(one.logged_at("listening") is not None for one in analyzers),
            PATIENCE_S,
            lambda: "an analyzer has not started",
        )
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            for log in logs.values():
                with log.open("a") as file:
                    file.writelines(lines(random))
                sent += LINES
            change_plans(engine, random)
            time.sleep(ROUND_S)
        wait_until(lambda: figure(engine, COUNTED) >= sent, PATIENCE_S, lambda: "it is not counted")
        assert figure(engine, COUNTED) == sent
        figures = {name: figure(engine, query) for name, query in FIGURES.items()}
        print(f"{sent} records in {SECONDS:.0f} s: {figures}")
        assert min(figures.values()) > 0, figures
        text = (own_postgres.folder / "log").read_text(errors="replace")
        assert text.count("deadlock detected") == 0
        assert "deadlock" not in "".join(line["message"] for one in analyzers for line in one.log)
    finally:
        for analyzer in analyzers:
            analyzer.process.kill()
            analyzer.process.wait()
        engine.dispose()


COUNTED = sa.select(sa.func.sum(offsets.c.counted))
NUMBERS = sa.select(sa.func.max(job_runs.c.number).label("number")).group_by(job_runs.c.job).subquery()
FIGURES = {
    "days closed": sa.select(sa.func.count()).where(days.c.state == "closed"),
    "runs of jobs": sa.select(sa.func.sum(NUMBERS.c.number)),
    "locks": sa.select(sa.func.count()).select_from(lock_history),
}


def figure(engine: sa.Engine, query: sa.Select[tuple[int]]) -> int:
    with reading(engine) as db:
        return int(db.execute(query).scalar() or 0)


def begin_days(engine: sa.Engine) -> None:
    """Opens an earlier day of each zone: it is due, and each one behind it when it is closed."""
    with writing(engine) as db:
        for zone in ZONES:
            add_day(db, zone, int(time.time()) - DAYS * 86_400)


def change_plans(engine: sa.Engine, random: Random) -> None:
    """An operator changes facts about some callers; the plans' table lock may be held for too long."""
    profiles = {f"address:{caller(random)}": Profile(random.choice(("free", "pro"))) for _ in range(5)}
    with suppress(StoreAway):
        set_callers(engine, profiles, "operator", "", new_mark)


def caller(random: Random) -> str:
    """Returns an address; few make most of the requests."""
    return f"192.0.2.{min(random.randrange(250), random.randrange(250), random.randrange(250))}"


def lines(random: Random) -> Iterator[str]:
    """Yields lines of now, and some that come late: of days that are being closed."""
    now = datetime.now(UTC)
    for _ in range(LINES):
        late = timedelta(days=random.randrange(DAYS + 1)) if random.random() < 0.3 else timedelta()
        at = f"{now - late:%d/%b/%Y:%H:%M:%S +0000}"
        yield f'{caller(random)} - - [{at}] "GET /items HTTP/1.1" 200 5 "-" "test"\n'
