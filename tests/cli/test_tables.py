"""Tables and outcomes: no blank lines, no trailing blanks, times in seconds, JSON of what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import click
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.faces.cli import output
from analyzer.faces.cli.output import table
from analyzer.faces.cli.table_layout import cell_width, table_lines
from analyzer.kernel.database.audit_log import record
from tests.support.depth import deeper

Gatelock = Callable[..., Any]


WIDTHS = (80, 100, 120, 200)
LONG = "api_key:" + "a-name-that-goes-on-and-on-" * 9 + "end"
LOCK_COLUMNS = ("since", "until", "scope", "key", "resource", "policy", "does", "denied", "detail")
LOCK = [
    "2026-11-20T21:14:03Z", "2026-11-20T23:00:00Z", "caller", LONG, "", "daily", "deny 429", 1_204_000,
    "100,000 requests per day (Europe/Berlin), 100,214 counted",
]  # fmt: skip


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the output a terminal of some columns."""

    def terminal(columns: int) -> None:
        monkeypatch.setattr(output, "is_terminal", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))

    return terminal


def test_a_table_has_no_blank_lines_and_no_trailing_blanks(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(80)
    table(["name", "count"], [["a", 1], ["long name", 20_000]], "nothing")
    lines = click.unstyle(capsys.readouterr().out).split("\n")
    assert lines[0].split() == ["name", "count"]
    assert lines[2:] == ["a               1", "long name  20,000", ""]
    assert [line for line in lines[:-1] if not line or line != line.rstrip()] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_fits_and_cuts_names_in_the_middle_and_nothing_else(
    width: int, capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(width)
    table(LOCK_COLUMNS, [LOCK, LOCK], "nothing")
    shown = click.unstyle(capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= width
    assert re.search(r"api_key:a\S*…\S*end", shown)
    words = shown.split()
    for whole in ("2026-11-20T21:14:03Z", "2026-11-20T23:00:00Z", "1,204,000", "100,214", "policy"):
        assert whole in words
    assert "resource" not in words, "nothing is in this column, and there is no room for it"


@given(
    rows=st.lists(
        st.lists(
            st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60), min_size=4, max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    width=st.integers(20, 200),
)
@settings(max_examples=deeper(60), deadline=None)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    for line in table_lines(["a", "some heading", "c", "d"], rows, width):
        assert cell_width(line) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("database", ["sqlite"])
def test_lists_fit_a_terminal_with_the_longest_names(
    width: int, gatelock: Gatelock, terminal: Callable[[int], None]
) -> None:
    name = f"api_key:{'n' * 240}:end"
    route = f"/v1/{'r' * 240}/end"
    gatelock("locks", "lock", name, "--resource", route, "--for", "2h", "--reason", "w" * 200)
    gatelock("callers", "limit", name, "--policy", "daily", "--amount", "5", "--reason", "r" * 200)
    gatelock("callers", "set", name, "--plan", "p" * 60, "--tenant", "t" * 200)
    terminal(width)
    for words in (["locks", "list"], ["callers", "list"], ["upkeep", "events", "list"]):
        shown = click.unstyle(gatelock(*words).stdout)
        assert max(map(len, shown.splitlines())) <= width, words
        assert "…" in shown


def test_a_program_gets_whole_names_between_tabs_and_no_style(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    table(LOCK_COLUMNS, [LOCK], "nothing")
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split("\t") == [*LOCK_COLUMNS]
    assert row.split("\t") == [*map(str, LOCK[:7]), "1,204,000", LOCK[8]]


def test_times_in_a_table_are_whole_seconds(gatelock: Gatelock, engine: sa.Engine) -> None:
    with engine.begin() as db:
        record(db, "ann@desk", "token created", "shop", "new gate")
    assert re.search(r"\d\d:\d\d:\d\dZ", gatelock("upkeep", "events", "list").stdout)
    assert not re.search(r":\d\d\.\d+Z", gatelock("upkeep", "events", "list").stdout)


def test_no_color_leaves_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(80)
    monkeypatch.delenv("NO_COLOR", raising=False)
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
