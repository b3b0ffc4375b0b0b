"""`gatelock top`: who sends how much, on a screen, as a table and as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from analyzer.config.settings import load
from analyzer.faces.live_callers import SORTS, LiveCaller, LiveCallers, LiveQuery, live_callers
from analyzer.faces.tui.live_board import ActRequest, BoardAway, LiveBoard
from analyzer.faces.tui.top_app import ActScreen, TextScreen, TopApp, column_widths
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import locks
from tests.support.stored_counts import put_counts
from tests.support.waiting import PATIENCE_S, wait_until

Gatelock = Callable[..., Any]
Story = Callable[[TopApp, Pilot[None]], Awaitable[None]]

REASON = ("--reason", "INC-311")
ALL = {"acme": (600, 30), "bob": (90, 0), "eve": (30, 10)}  # requests and denied ones, this minute
on_one_database = pytest.mark.parametrize("database", ["sqlite"])


@pytest.fixture
def configuration() -> str:
    return """
        [[sources]]
        name = "web"
        file = "access.jsonl"
        [sources.fields]
        time = { path = "ts", unit = "s" }
        api_key = "key"
        [[policies]]
        name = "daily"
        limit = 1000
        window = { per = "day" }
        """


@pytest.fixture
def counted(engine: sa.Engine, gatelock: Gatelock, tmp_path: Path) -> sa.Engine:
    """Counts a day and a minute of three callers, by a log."""
    now_s = int(time.time())
    lines = [{"ts": now_s, "key": key} for key, (requests, _) in ALL.items() for _ in range(requests)] + [
        {"ts": now_s - 7_200, "key": "bob"}
    ] * 60
    (tmp_path / "access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert gatelock("upkeep", "import", "access.jsonl", "--source", "web").exit_code == 0
    with engine.begin() as db:
        rows = [
            CountRow("caller", f"api_key:{key}", "", "requests", 60, now_s - now_s % 60, 0, denied)
            for key, (_, denied) in ALL.items()
            if denied
        ]
        put_counts(db, rows)
    return engine


def test_callers_have_rate_share_change_and_the_nearest_limit(counted: sa.Engine) -> None:
    answer = live_callers(counted, LiveQuery())
    acme, bob, eve = answer.rows
    assert [row.caller for row in answer.rows] == ["api_key:acme", "api_key:bob", "api_key:eve"]
    assert (acme.requests, acme.denied, bob.earlier, eve.earlier) == (630, 30, 60, 0)
    assert (answer.requests, answer.denied) == (760, 40)
    assert acme.share == pytest.approx(630 / 760)
    assert 630 / 121 <= acme.rate <= 630 / 60
    assert (acme.policy, acme.used, acme.is_shadow) == ("daily", 0.6, False)
    assert live_callers(counted, LiveQuery(span="6h")).rows[1].requests == 150
    assert answer.as_object()["rows"][0]["caller"] == "api_key:acme"


@on_one_database
def test_every_sort_has_the_callers_in_its_order(counted: sa.Engine) -> None:
    by_sort = {
        sort: [row.caller[8:] for row in live_callers(counted, LiveQuery(sort=sort)).rows] for sort in SORTS
    }
    assert by_sort["denied"][:2] == ["acme", "eve"]
    assert by_sort["name"] == ["acme", "bob", "eve"]
    assert {order[0] for order in by_sort.values()} == {"acme"}


def test_a_filter_finds_callers_that_are_not_among_the_first(counted: sa.Engine) -> None:
    assert [row.caller for row in live_callers(counted, LiveQuery(rows=1)).rows] == ["api_key:acme"]
    found = live_callers(counted, LiveQuery(rows=1, text="VE"))
    assert [(row.caller, row.requests) for row in found.rows] == [("api_key:eve", 40)]
    assert found.requests == 760, "all requests remain the whole"
    assert not live_callers(counted, LiveQuery(text="%")).rows


@on_one_database
@pytest.mark.usefixtures("counted")
def test_once_prints_a_table_or_an_object(gatelock: Gatelock) -> None:
    shown = gatelock("top", "--once").stdout.splitlines()
    assert "760 in 1h, 5.3 % denied; by requests" in shown[0]
    assert shown[2].split("\t")[:1] == ["api_key:acme"]
    assert "daily 60 %" in shown[2].split("\t")
    answer = json.loads(gatelock("top", "--json", "--filter", "bob").stdout)
    assert [row["caller"] for row in answer["rows"]] == ["api_key:bob"]
    assert gatelock("top", "--once", "--filter", "mallory").stdout.splitlines()[1:] == ["nothing matches"]
    assert gatelock("top").exit_code == 2, "it needs a terminal"


@on_one_database
@pytest.mark.usefixtures("engine")
def test_without_textual_the_extra_is_named(gatelock: Gatelock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual" or "top_app" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("analyzer.faces.cli.verbs.top.all", lambda _streams: True, raising=False)
    result = gatelock("top")
    assert result.exit_code == 2
    assert "pip install 'gatelock[tui]'" in result.stderr


def on_a_screen(
    board: Any, story: Story, width: int = 80, height: int = 24, query: LiveQuery = LiveQuery()
) -> None:
    """Runs the screen without a terminal, and the story on it once the callers are drawn."""

    async def run() -> None:
        app = TopApp(board, query, every=3_600)
        async with app.run_test(size=(width, height)) as pilot:
            await shown(app, pilot, lambda: app.answer is not None)
            await story(app, pilot)

    asyncio.run(run())


async def shown(app: TopApp, pilot: Pilot[None], is_true: Callable[[], bool]) -> None:
    """Waits until something is so, and the workers have ended."""
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until, [str(line.content) for line in app.screen.query(Static)]
        await pilot.pause(0.02)
    await app.workers.wait_for_complete()
    await pilot.pause()


def cells(app: TopApp) -> list[list[str]]:
    table = app.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(place)] for place in range(table.row_count)]


def notice(app: TopApp) -> str:
    return str(app.query_one("#notice", Static).content)


@pytest.fixture
def board(counted: sa.Engine) -> LiveBoard:
    return LiveBoard(counted, load(Path("gatelock.toml")))


@on_one_database
def test_keys_sort_filter_widen_and_pause(board: LiveBoard) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert [row[0] for row in cells(app)] == ["api_key:acme", "api_key:bob", "api_key:eve"]
        await pilot.press("S")
        await shown(app, pilot, lambda: app.answer is not None and app.live_query.sort == "name")
        await pilot.press("plus")
        await shown(app, pilot, lambda: app.answer is not None and app.answer.span == "6h")
        await pilot.press("slash", *"bob", "enter")
        await shown(app, pilot, lambda: len(cells(app)) == 1)
        assert cells(app)[0][0] == "api_key:bob"
        await pilot.press("p")
        assert "paused" in notice(app)

    on_a_screen(board, story)


@on_one_database
def test_enter_shows_what_explain_says_and_escape_closes_it(board: LiveBoard) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        await shown(app, pilot, lambda: isinstance(app.screen, TextScreen))
        text = str(app.screen.query_one("#text Static", Static).content)
        assert text.startswith("api_key:bob is not locked")
        assert "daily" in text
        assert max(map(len, text.splitlines())) <= 80
        await pilot.press("escape", "question_mark")
        await shown(app, pilot, lambda: isinstance(app.screen, TextScreen))
        await pilot.press("q")
        await shown(app, pilot, lambda: not isinstance(app.screen, TextScreen))

    on_a_screen(board, story)


@on_one_database
def test_a_caller_is_locked_and_unlocked_with_a_reason_once_it_was_shown(
    board: LiveBoard, counted: sa.Engine
) -> None:
    def locked() -> list[tuple[str, str]]:
        with counted.connect() as db:
            return [(row.key, row.detail) for row in db.execute(sa.select(locks))]

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("l", "enter", "enter")
        assert isinstance(app.screen, ActScreen)
        assert "reason: write one" in str(app.screen.query_one("#answer", Static).content)
        await pilot.press(*"INC-311", "enter")
        await shown(app, pilot, lambda: "this does: set" in answer(app))
        assert locked() == [], "it was only shown"
        app.screen.query_one("#for", Input).value = "tomorrow"
        await pilot.press("enter")
        await shown(app, pilot, lambda: "for: tomorrow: write a length" in answer(app))
        app.screen.query_one("#for", Input).value = "2h"
        await pilot.press("enter")
        await shown(app, pilot, lambda: "this does: set" in answer(app))
        await pilot.press("enter")
        await shown(app, pilot, lambda: "set: caller api_key:acme" in notice(app))
        assert locked() == [("api_key:acme", "INC-311")]
        await shown(app, pilot, lambda: "locked: :manual" in cells(app)[0])
        await pilot.press("u", "enter", *"over", "enter")
        await shown(app, pilot, lambda: "this does: cleared" in answer(app))
        await pilot.press("escape")
        await shown(app, pilot, lambda: not isinstance(app.screen, ActScreen))
        assert len(locked()) == 1, "nothing was done"
        await pilot.press("u", "enter", *"over", "enter")
        await shown(app, pilot, lambda: "this does: cleared" in answer(app))
        await pilot.press("enter")
        await shown(app, pilot, lambda: "cleared" in notice(app))
        assert locked() == []

    def answer(app: TopApp) -> str:
        found = app.screen.query("#answer")
        return str(found.first(Static).content) if found else ""

    on_a_screen(board, story)
    assert [(entry.act, entry.why) for entry in entries(counted)][:2] == [
        ("locks unlock", "over"), ("locks lock", "INC-311")
    ]  # fmt: skip


class MadeUpBoard:
    """A board without a database: its names are hostile, and it can be away."""

    def __init__(self, names: Sequence[str] = ("api_key:acme",)) -> None:
        self.names, self.trouble = names, ""

    def look(self, query: LiveQuery) -> LiveCallers:
        if self.trouble:
            raise BoardAway(self.trouble)
        rows = [
            LiveCaller(
                name, 1_204.5, 10**9, 10**8, 0.5, 7, "a-policy-with-a-long-name", 12.5, False, [name], ""
            )
            for name in self.names
        ]
        return LiveCallers("2026-11-20T21:14:03Z", query.span, 2.0, 10**9, 10**8, "", "", rows)

    def explain(self, caller: str, width: int) -> list[str]:
        return [f"{caller} is locked", "x" * width]

    def act(self, request: ActRequest, *, only_shown: bool) -> Sequence[str]:
        raise BoardAway(f"no act on {request.texts['caller']}")


HOSTILE = [
    "api_key:\x1b[2J\x1b]0;owned\x07", "user:\u202egnp.exe", "api_key:[bold red]x[/]", "api_key:\x9b31m",
    "api_key:" + "n" * 248, "user:顧客の名前はとても長いのでここに入りません", "user:\U0001f600" * 20,
]  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_no_name_controls_the_screen_and_all_columns_fit(width: int, height: int) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        rows = cells(app)
        assert len(rows) == len(HOSTILE)
        assert all(cell.isprintable() for row in rows for cell in row)
        assert rows[2][0] in ("api_key:[bold red]x[/]", "api_key:…ed]x[/]"), "no markup"
        table = app.query_one(DataTable)
        assert sum(column.get_render_width(table) for column in table.columns.values()) <= width
        await pilot.press("enter")
        await shown(app, pilot, lambda: isinstance(app.screen, TextScreen))
        assert "\\x1b[2J" in str(app.screen.query_one("#text Static", Static).content)

    on_a_screen(MadeUpBoard(HOSTILE), story, width, height)


def test_a_resized_screen_is_drawn_for_its_width() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        assert len(cells(app)[0]) == 6
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        assert len(cells(app)[0]) == 8

    on_a_screen(MadeUpBoard(), story)


def test_while_the_database_is_away_the_callers_remain_and_a_line_says_so() -> None:
    away = MadeUpBoard()

    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        away.trouble = "cannot reach the database: connection refused"
        await pilot.press("r")
        await shown(app, pilot, lambda: "connection refused" in notice(app))
        assert len(cells(app)) == 1
        away.trouble = ""
        await pilot.press("r")
        await shown(app, pilot, lambda: not notice(app))

    on_a_screen(away, story)


def test_a_name_gets_what_the_other_columns_leave() -> None:
    row = {"caller": "n" * 300, "rate/s": "1,204", "state": "s" * 90, "nearest limit": "p" * 90}
    for width in (60, 80, 120, 300):
        widths = column_widths([*row], [row], width)
        assert sum(widths.values()) + 2 * len(widths) <= width
        assert widths["caller"] >= 16


@on_one_database
@pytest.mark.usefixtures("counted")
def test_on_a_real_terminal_without_colours(tmp_path: Path) -> None:
    """In tmux, which draws what a terminal shows."""
    if shutil.which("tmux") is None:
        assert not os.environ.get("CI"), "tmux is missing"
        pytest.skip("no tmux")
    socket = str(tmp_path / "tmux")
    command = f"NO_COLOR=1 {sys.executable} -m analyzer.faces.cli top --filter acme"
    tmux = ["tmux", "-f", "/dev/null", "-S", socket]
    start = [*tmux, "new-session", "-d", "-x", "80", "-y", "24", "-c", str(tmp_path), command]
    subprocess.run(start, check=True, env=os.environ | {"TERM": "xterm-256color"})

    def screen() -> str:
        return tmux_says("capture-pane", "-p")

    def tmux_says(*words: str) -> str:
        done = subprocess.run([*tmux, *words], capture_output=True, text=True)
        return done.stdout + done.stderr

    try:
        wait_until(lambda: "api_key:acme" in screen() and "quit" in screen())
        assert "daily 60 %" in screen()
        tmux_says("send-keys", "Enter")
        wait_until(lambda: "is not locked" in screen())
        tmux_says("send-keys", "Escape")
        wait_until(lambda: "rate/s" in screen())
        tmux_says("send-keys", "q")
        wait_until(lambda: subprocess.run([*tmux, "has-session"], capture_output=True).returncode)
    finally:
        tmux_says("kill-server")
