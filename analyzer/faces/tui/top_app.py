"""The screen of `gatelock top`.

The callers stand in a table that is read again every few seconds, in a thread: while the database is away,
the screen keeps what it has and says so. An act is asked for in a form, shown by its dry run, and done when
that is confirmed. Names are drawn as text and never as markup, with control characters escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from analyzer.faces.cli.table_layout import cell_width, cut_middle
from analyzer.faces.cli.top_texts import COLUMNS, heading, texts_of
from analyzer.faces.live_callers import SORTS, SPANS_S, LiveCallers, LiveQuery
from analyzer.faces.tui.live_board import ActRequest, Board, BoardAway
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.logs import printable
from analyzer.kernel.secrets import masked
from gatekeeper.client import ApiError, ServerAway

NARROW = 100  # columns; a narrower screen leaves out `share` and `change`
LEFT_OUT = ("share", "change")
NUMBERS = ("rate/s", "requests", "denied", "share", "change")
NAME_MIN = 16  # cells
LIMIT_MAX, STATE_MAX = 26, 30  # cells of these columns at most
PADDING = 2  # cells that the table adds to a column

AWAY = (BoardAway, AnalyzerError, ApiError, ServerAway)  # what a look may raise

HELP = """\
up, down, page up, page down    choose a caller
enter    what `gatelock explain CALLER` says of it
l, u     lock it, unlock it: asks for a reason, shows what is done, and asks
/        only callers whose name contains a text; empty: all
s        sort by the next column; S: by the one before
+, -     a longer, a shorter span
p        pause, or continue; r: read now
?        this help;  q: quit

rate/s is that of the last one to two minutes. requests are those of the span,
denied ones among them; change compares them with the span before. Rows are the
callers with the most requests in the span or in the last minute: other sorts
order these.  escape or q closes this text."""


class ActField(NamedTuple):
    """A field of the form of an act: the parameter, a hint, the text that stands in it at first."""

    name: str
    label: str
    text: str = ""


LOCK = ("locks lock", "Lock", (ActField("for", "for, such as 30m, 2h, 7d", "1h"),))
UNLOCK = (
    "locks unlock",
    "Unlock",
    (ActField("hold_off", "hold-off: not locked again for, such as 2h; empty: to the lock's end; or none"),),
)


class TextScreen(ModalScreen[None]):
    """A text over the table, which scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "close")]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yields the text and the keys."""
        with VerticalScroll(id="text"):
            yield Static(Text("\n".join(map(printable, self._lines))))
        yield Footer()

    def on_mount(self) -> None:
        """Gives the text the keys that scroll it."""
        self.query_one("#text").focus()


class ActScreen(ModalScreen[str | None]):
    """The form of an act on a caller. Its result is the sentence of what was done; None: nothing was."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "do nothing")]

    def __init__(self, board: Board, caller: str, act: tuple[str, str, Sequence[ActField]]) -> None:
        super().__init__()
        self._board, self._caller = board, caller
        self._words, self._verb, self._fields = act
        self._shown: ActRequest | None = None

    def compose(self) -> ComposeResult:
        """Yields the fields, the last of which is the reason."""
        with Vertical(id="form"):
            yield Label(Text(f"{self._verb} {printable(cut_middle(self._caller, 60))}", style="bold"))
            for field in self._fields:
                yield Label(Text(field.label))
                yield Input(field.text, id=field.name, compact=True)
            yield Label(Text("reason; it is kept with your name"))
            yield Input(id="reason", compact=True)
            yield Static(Text("enter: next field, and then what will be done"), id="answer")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Goes to the next field; behind the last one shows the act, and then does it."""
        inputs = [*self.query(Input)]
        place = inputs.index(event.input)
        if place + 1 < len(inputs):
            inputs[place + 1].focus()
            return
        request = self._request()
        if not request.reason:
            self._say("reason: write one; it is kept with your name")
        elif request == self._shown:
            self._say("...")
            self._run(request, only_shown=False)
        else:
            self._run(request, only_shown=True)

    def _request(self) -> ActRequest:
        texts = {field.name: self.query_one(f"#{field.name}", Input).value.strip() for field in self._fields}
        reason = self.query_one("#reason", Input).value.strip()
        return ActRequest(self._words, {"caller": self._caller, **texts}, reason)

    @work(thread=True, exclusive=True)
    def _run(self, request: ActRequest, *, only_shown: bool) -> None:
        """Shows or does the act, in a thread. One that fails must be shown again."""
        try:
            sentences = "; ".join(map(printable, self._board.act(request, only_shown=only_shown)))
        except BoardAway as away:
            self.app.call_from_thread(self._answered, None, printable(str(away)))
            return
        if only_shown:
            text = f"this does: {sentences}. enter: do it; escape: do nothing"
            self.app.call_from_thread(self._answered, request, text)
        else:
            self.app.call_from_thread(self.dismiss, sentences)

    def _answered(self, shown: ActRequest | None, text: str) -> None:
        self._shown = shown
        self._say(text)

    def _say(self, text: str) -> None:
        self.query_one("#answer", Static).update(Text(text))


class TopApp(App[None]):
    """The callers of this moment.

        TopApp(LiveBoard(engine, settings), LiveQuery(), every=5.0).run()

    Args:
        board: Reads and acts.
        query: The callers to begin with.
        every: Seconds from one look to the next.
    """

    CSS = """
    #heading { height: 1; text-style: bold; }
    #notice { height: 1; }
    #filter { dock: bottom; display: none; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    DataTable > .datatable--cursor { text-style: reverse bold; }
    TextScreen, ActScreen { align: center middle; }
    #text { width: 96%; height: 92%; padding: 0 1; border: solid; background: $surface; }
    #form { width: 72; max-width: 96%; height: auto; padding: 0 1; border: solid; background: $surface; }
    #answer { margin-top: 1; height: auto; }
    """
    TITLE = "gatelock top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"), ("slash", "filter", "filter"), ("s", "sort(1)", "sort"),
        ("S", "sort(-1)", ""), ("plus,equals_sign", "span(1)", "span"), ("minus", "span(-1)", ""),
        ("l", "act('lock')", "lock"), ("u", "act('unlock')", "unlock"), ("p,space", "pause", "pause"),
        ("r", "look", "now"), ("question_mark,h", "help", "help"),
    ]  # fmt: skip

    def __init__(self, board: Board, query: LiveQuery, every: float) -> None:
        super().__init__()
        self.board, self.live_query, self.every = board, query, every
        self.answer: LiveCallers | None = None
        self.is_paused = False
        self._looked_at = float("-inf")
        self._is_looking = self._is_ready = False
        self._notice, self._trouble = "", ""

    def compose(self) -> ComposeResult:
        """Yields the heading, the table, a line for notices, the filter and the keys."""
        yield Static(Text("..."), id="heading")
        yield DataTable(id="callers", cursor_type="row", zebra_stripes=False)
        yield Static(id="notice")
        yield Input(self.live_query.text, id="filter", placeholder="part of a name", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Looks at once, and then every few seconds."""
        self._is_ready = True
        self.query_one(DataTable).focus()
        self.set_interval(0.5, self._tick)
        self.action_look()

    def on_resize(self, _event: Resize) -> None:
        """Draws the callers for the new width, once it is known everywhere."""
        self.call_after_refresh(self._draw)

    def _tick(self) -> None:
        if not self.is_paused and monotonic() - self._looked_at >= self.every:
            self.action_look()

    def action_look(self) -> None:
        """Reads the callers now, unless they are being read: one look may take longer than `every`."""
        if not self._is_looking:
            self._is_looking, self._looked_at = True, monotonic()
            self._look(self.live_query)

    @work(thread=True)
    def _look(self, query: LiveQuery) -> None:
        try:
            answer: LiveCallers | None = self.board.look(query)
            trouble = ""
        except AWAY as away:
            since = f"; the callers are those of {self.answer.at}" if self.answer else ""
            answer, trouble = None, printable(masked(str(away))) + since
        self.call_from_thread(self._looked, query, answer, trouble)

    def _looked(self, query: LiveQuery, answer: LiveCallers | None, trouble: str) -> None:
        self._is_looking, self._trouble = False, trouble
        self.answer = answer or self.answer
        self._draw()
        if query != self.live_query:
            self.action_look()

    def _draw(self) -> None:
        """Draws the heading, the rows and the notice, with the cursor on the caller that it was on."""
        if self.answer is None or not self._is_ready:
            self._say()
            return
        self.query_one("#heading", Static).update(Text(heading(self.answer, self.live_query), no_wrap=True))
        table = self.query_one("#callers", DataTable)
        chosen, row_number = self.chosen, table.cursor_row
        names = [name for name in COLUMNS if self.size.width >= NARROW or name not in LEFT_OUT]
        rows = [dict(zip(COLUMNS, map(printable, texts_of(row)), strict=True)) for row in self.answer.rows]
        widths = column_widths(names, rows, self.size.width)
        table.clear(columns=True)
        for name in names:
            table.add_column(_text(name, name, widths[name]), width=widths[name], key=name)
        for number, row in enumerate(rows):
            table.add_row(*(_text(name, row[name], widths[name]) for name in names), key=str(number))
        places = {row.caller: place for place, row in enumerate(self.answer.rows)}
        table.move_cursor(row=places.get(chosen or "", row_number), animate=False)
        self._say()

    def _say(self) -> None:
        """Writes the notice: what is wrong before what was done."""
        if not self._is_ready:
            return
        paused = "paused: p continues" if self.is_paused else ""
        empty = "no caller was counted in this time" if self.answer and not self.answer.rows else ""
        text = "; ".join(filter(None, [self._trouble, paused, self._notice, empty]))
        self.query_one("#notice", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))

    @property
    def chosen(self) -> str | None:
        """The caller that the cursor is on; None without callers."""
        place = self.query_one("#callers", DataTable).cursor_row
        rows = () if self.answer is None else self.answer.rows
        return rows[place].caller if 0 <= place < len(rows) else None

    def _ask(self, query: LiveQuery) -> None:
        self.live_query = query
        self._notice = ""
        self.action_look()

    def action_sort(self, step: int) -> None:
        """Sorts by the next word of SORTS, or by the one before."""
        words = [*SORTS]
        place = (words.index(self.live_query.sort) + step) % len(words)
        self._ask(self.live_query._replace(sort=words[place]))

    def action_span(self, step: int) -> None:
        """Looks at a longer or a shorter time."""
        words = [*SPANS_S]
        place = min(max(0, words.index(self.live_query.span) + step), len(words) - 1)
        self._ask(self.live_query._replace(span=words[place]))

    def action_pause(self) -> None:
        """Keeps the rows as they are, or continues."""
        self.is_paused = not self.is_paused
        self._say()
        if not self.is_paused:
            self.action_look()

    def action_filter(self) -> None:
        """Opens the line for the filter."""
        line = self.query_one("#filter", Input)
        line.add_class("open")
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filters by the text of the line, and closes it."""
        if event.input.id == "filter":
            event.input.remove_class("open")
            self.query_one(DataTable).focus()
            self._ask(self.live_query._replace(text=event.value.strip()))

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(TextScreen(HELP.splitlines()))

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Shows what `gatelock explain` says of the caller."""
        if (caller := self.chosen) is not None:
            self._notice = f"reading {printable(caller)} ..."
            self._say()
            self._explain(caller, max(40, self.size.width - 8))

    @work(thread=True, exclusive=True, group="explain")
    def _explain(self, caller: str, width: int) -> None:
        try:
            lines = self.board.explain(caller, width)
        except BoardAway as away:
            self.call_from_thread(self._noticed, printable(str(away)))
            return
        self.call_from_thread(self._noticed, "")
        self.call_from_thread(self.push_screen, TextScreen(lines))

    def _noticed(self, text: str) -> None:
        self._notice = text
        self._say()

    def action_act(self, name: str) -> None:
        """Opens the form of an act on the chosen caller."""
        if (caller := self.chosen) is None:
            self._noticed("choose a caller first")
        else:
            act = {"lock": LOCK, "unlock": UNLOCK}[name]
            self.push_screen(ActScreen(self.board, caller, act), self._acted)

    def _acted(self, sentence: str | None) -> None:
        self._noticed(sentence or "")
        self.action_look()


def column_widths(names: Sequence[str], rows: Sequence[Mapping[str, str]], width: int) -> dict[str, int]:
    """Returns the cells of each column, so that all fit: the caller gets what the others leave."""
    most: Mapping[str, int] = {"nearest limit": LIMIT_MAX, "state": STATE_MAX}
    widths = {
        name: min(max([len(name), *(cell_width(row[name]) for row in rows)]), most.get(name, width))
        for name in names
        if name != "caller"
    }
    room = width - sum(widths.values()) - PADDING * len(names) - PADDING  # and the scroll bar
    for name, least in (("state", 8), ("nearest limit", 13)):
        excess = max(0, NAME_MIN - room)
        spared = min(excess, max(0, widths[name] - least))
        widths[name] -= spared
        room += spared
    longest = max((cell_width(row["caller"]) for row in rows), default=NAME_MIN)
    return {"caller": max(NAME_MIN, min(room, longest)), **widths}


def _text(name: str, text: str, width: int) -> Text:
    justify: Callable[[str], Text] = partial(
        Text, justify="right" if name in NUMBERS else "left", no_wrap=True
    )
    return justify(cut_middle(text, width))
