"""Times that an operator writes are times of the database's clock, and not of this machine's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.model import CountRow
from tests.support.stored_counts import put_counts

Gatelock = Callable[..., Any]

AHEAD = timedelta(days=90)  # of the database's clock
CONFIGURATION = """
[[sources]]
name = "web"
file = "access.jsonl"
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
[[policies]]
name = "daily"
limit = 50
window = { per = "day" }
"""


@pytest.fixture
def clock(engine: sa.Engine) -> Iterator[None]:
    """Sets the clock of each SQLite database ahead."""
    engine.dispose()

    def prepare(connection: Any, _record: object) -> None:
        def julian_day(_now: str) -> float:
            return 2440587.5 + (time.time() + AHEAD.total_seconds()) / 86_400

        connection.create_function("julianday", 1, julian_day)

    sa.event.listen(sa.pool.Pool, "connect", prepare)
    yield
    sa.event.remove(sa.pool.Pool, "connect", prepare)
    engine.dispose()


pytestmark = [pytest.mark.parametrize("database", ["sqlite"]), pytest.mark.usefixtures("clock")]


def written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"


@pytest.fixture
def configuration() -> str:
    return CONFIGURATION


@pytest.fixture(autouse=True)
def counted(engine: sa.Engine, clock: None) -> None:
    """Counts 60 requests of acme in the last minute of the database, and puts the plan in force."""
    minute_s = int((datetime.now(UTC) + AHEAD).timestamp()) // 60 * 60
    with engine.begin() as db:
        put_counts(db, [CountRow("caller", "api_key:acme", "", "requests", 60, minute_s, 60, 0)])


def stored(gatelock: Gatelock) -> list[dict[str, str]]:
    listed = gatelock("callers", "list", "--overrides", "--json")
    return [json.loads(line) for line in listed.stdout.splitlines()]


def test_an_override_lasts_by_the_clock_of_the_database(gatelock: Gatelock) -> None:
    assert gatelock("policies", "apply").exit_code == 0
    now = datetime.now(UTC) + AHEAD
    add = ("callers", "limit", "acme", "--amount", "90", "--reason", "WHY")
    over = gatelock(*add, "--until", written(now - timedelta(hours=1)))
    assert (over.exit_code, "is over: write a time of the future" in over.stderr) == (2, True)
    assert gatelock(*add, "--until", written(now + timedelta(hours=1))).exit_code == 0
    assert gatelock(*add, "--for", "1h").exit_code == 0
    ends = [datetime.fromisoformat(one["until"]) for one in stored(gatelock)]
    assert ends
    assert all(timedelta(minutes=58) < end - now < timedelta(minutes=61) for end in ends)


def test_lists_since_an_age_have_what_came_since(gatelock: Gatelock) -> None:
    gatelock("callers", "set", "acme", "--plan", "pro")
    for command in (
        "upkeep events list --since 1h",
        "usage --since 1h --width minute",
        "explain acme --since 1h",
    ):
        assert "acme" in gatelock(*command.split()).stdout, command
    assert (
        "acme"
        not in gatelock("upkeep", "events", "list", "--since", "2000d", "--json", "--since", "0s").stdout
    )
    listed = gatelock("usage", "--from", "today", "--width", "minute", "--json").stdout
    assert json.loads(listed.splitlines()[0])["value"] == 60
    minute = written(datetime.now(UTC) + AHEAD - timedelta(minutes=2))
    found = gatelock("usage", "--from", minute, "--to", "0s", "--width", "minute")
    assert found.exit_code == 0, "the end is later by the database's clock"
