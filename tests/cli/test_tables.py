"""Tables and outcomes: no blank lines, no trailing blanks, times in seconds, JSON of what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.faces.cli.output import table
from analyzer.kernel.database.audit_log import record

Gatelock = Callable[..., Any]


def test_a_table_has_no_blank_lines_and_no_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table(["name", "count"], [["a", 1], ["long name", 20_000]], "nothing")
    lines = capsys.readouterr().out.split("\n")
    assert not lines[0].startswith(" ")
    assert lines[0].split() == ["name", "count"]
    assert lines[-2].endswith("20,000")
    assert lines[-1] == ""
    assert [line for line in lines[:-1] if not line or line != line.rstrip()] == []


def test_times_in_a_table_are_whole_seconds(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        record(db, "ann@desk", "token created", "shop", "new gate")
    assert re.search(r"\d\d:\d\d:\d\dZ", gatelock("upkeep", "events", "list").stdout)
    assert not re.search(r":\d\d\.\d+Z", gatelock("upkeep", "events", "list").stdout)


def test_no_color_leaves_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    table(["name"], [["a"]], "nothing")
    assert "\x1b[1m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    table(["name"], [["a"]], "nothing")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.usefixtures("engine")
def test_an_outcome_is_json_if_asked_for(gatelock: Gatelock) -> None:
    done = gatelock("locks", "suspend", "--for", "30m", "--reason", "INC-311", "--json")
    assert json.loads(done.stdout)["suspended_until"].endswith("Z")
    done = gatelock("locks", "resume", "--reason", "over", "--json")
    assert json.loads(done.stdout) == {"suspended_until": None}
