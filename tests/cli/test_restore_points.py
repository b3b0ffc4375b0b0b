"""A backup at any moment and its restore at any later one change no report, no identifier and no sum."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.billing_server import KEY, BillingServer, billing_server
from tests.support.depth import IS_DEEP, deeper
from tests.support.restoring import backed_up

Gatelock = Callable[..., Any]
Step = Callable[[], None]
NOW = datetime.now(UTC)
FIRST, SECOND, THIRD = (f"{NOW - timedelta(days=number):%Y-%m-%d}" for number in (3, 2, 1))
UNSURE = "it may have been sent before the database was restored"


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    (tmp_path / "key").write_text("0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    return (
        f'[billing]\ngrace = 0\ndigest_key_file = "key"\nwitness = "{tmp_path}/witness.json"\n'
        'recount = "never"\n[[sources]]\nname = "web"\nfile = "requests.jsonl"\n[sources.fields]\n'
        'time = { path = "t", unit = "s" }\napi_key = "key"\n'
    )


class Story:
    """Three days of two callers: counted, late, closed, reported and handed over, a step at a time."""

    def __init__(self, gatelock: Gatelock, engine: sa.Engine, amounts: Sequence[int]) -> None:
        self.gatelock, self.engine = gatelock, engine
        self.service: BillingServer | None = None
        self.sent: set[tuple[str, str]] = set()
        first, late, later, second, third = amounts
        self.steps: list[Step] = [
            partial(self.count, "a", FIRST, first),
            partial(self.close, FIRST),
            partial(self.send, "day", FIRST),
            partial(self.count, "b", SECOND, second),
            partial(self.count, "late", FIRST, late),
            partial(self.close, SECOND),
            partial(self.send, "day", SECOND),
            partial(self.send, "corrections", SECOND),
            partial(self.count, "later", FIRST, later),
            partial(self.count, "c", THIRD, third),
            partial(self.close, THIRD),
            partial(self.send, "day", THIRD),
            partial(self.send, "corrections", THIRD),
        ]

    def run(self, *arguments: str, exit_codes: Sequence[int] = (0,)) -> Any:
        result = self.gatelock(*arguments)
        assert result.exit_code in exit_codes, result.stderr + result.stdout
        return result

    def count(self, name: str, date: str, requests: int) -> None:
        at_s = int(datetime.fromisoformat(f"{date}T12:00:00Z").timestamp())
        callers = ["acme", "bob"] * requests
        rows = [{"t": at_s, "key": caller, "file": name} for caller in callers[:requests]]
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self.run("upkeep", "import", f"{name}.jsonl", "--source", "web")

    def close(self, date: str) -> None:
        self.run("billing", "days", "close", date, "--reason", "r", "--yes")
        self.run("billing", "report", "day", date, "--out", f"reports/{date}.csv")

    def send(self, what: str, date: str) -> None:
        assert self.service is not None
        to = ("billing", "report", "send", what, date, "--to", self.service.url, "--format", "lago")
        result = self.run(*to, exit_codes=(0, 1))
        if result.exit_code:
            assert UNSURE in result.stderr
            assert (what, date) not in self.sent, "a day that was billed is sent again by itself"
            self.run(*to, "--repeat")
        self.sent.add((what, date))

    def played(self, backup: int, restore: int) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
        """Plays the story with a backup before a step and its restore before a later one.

        Returns the reports, and what the service has of each identifier.
        """
        shutil.rmtree("reports", ignore_errors=True)
        Path("reports").mkdir()
        Path("witness.json").unlink(missing_ok=True)
        self.sent.clear()
        with billing_server("lago") as self.service:
            for step in self.steps[:backup]:
                step()
            put_back = backed_up(self.engine)
            for step in self.steps[backup:restore]:
                step()
            kept = {file.name: file.read_bytes() for file in Path("reports").iterdir()}
            if restore > backup:
                put_back()
                from_ = ("--from", "reports") if kept else ()
                self.run("restore", "days", *from_, "--reason", "r", "--yes", exit_codes=(0, 1 - bool(kept)))
            for step in self.steps[backup:]:
                step()
            for name, content in kept.items():
                assert Path("reports", name).read_bytes() == content, name
            self.run("billing", "audit", "--report", "reports")
            events = {key: (event.customer, event.value) for key, event in self.service.events.items()}
            return {file.name: file.read_text() for file in Path("reports").glob("*.csv")}, events


@pytest.fixture
def story(
    gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[int]], Story]:
    monkeypatch.setenv("GATELOCK_SEND_TOKEN", KEY)
    empty = backed_up(engine)

    def new(amounts: Sequence[int]) -> Story:
        empty()
        return Story(gatelock, engine, amounts)

    return new


@settings(
    max_examples=deeper(2),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=not IS_DEEP,
)
@given(
    amounts=st.tuples(*[st.integers(1, 9)] * 5),
    points=st.tuples(st.integers(0, 12), st.integers(1, 13)).filter(lambda points: points[0] < points[1]),
)
def test_no_restore_changes_what_was_billed(
    story: Callable[[Sequence[int]], Story], amounts: Sequence[int], points: tuple[int, int]
) -> None:
    expected = story(amounts).played(0, 0)
    assert story(amounts).played(*points) == expected
