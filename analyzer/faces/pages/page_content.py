"""The content of a page: tiles, charts, tables and forms, as data that one template draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from analyzer.billing.reports.row_formats import encode_csv
from analyzer.kernel.outbox import Severity
from analyzer.kernel.time_texts import offset_text
from analyzer.plan.meter_units import STORED_IN, chart_scale

CellKind = Literal[
    "text",
    "count",
    "amount",
    "share",
    "bar",
    "time",
    "age",
    "caller",
    "policy",
    "state",
    "link",
    "act",
    "cure",
    "prose",
    "route",
    "find",
]
# What a colour means everywhere: green fine, amber to be watched, red refused or wrong. The accent is for
# links and what is selected.
Mood = Literal["plain", "good", "watch", "bad"]
Role = Literal["", "refused", "usual", "forecast", "limit"]  # of a layer of a chart, by which it is drawn


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: The name of its field.
        heading: Its heading.
        kind: How its cells are drawn.
        rank: On a phone, 1 for the cell that heads the row's card, 0 for one that is left out there.
    """

    name: str
    heading: str
    kind: CellKind = "text"
    rank: int = 2


class Quantity(NamedTuple):
    """A stored value of a meter, with the unit that it is shown in; None for an unlimited one."""

    value: int | None
    unit: str | None = None


class Chip(NamedTuple):
    """A state in one or two words, in the colour of its mood."""

    text: str
    mood: Mood = "plain"


SEVERITY_MOODS: Mapping[Severity, Mood] = {"critical": "bad", "warning": "watch", "info": "plain"}


def severity_chip(severity: Severity) -> Chip:
    """Returns a severity in its colour."""
    return Chip(severity, SEVERITY_MOODS[severity])


class Link(NamedTuple):
    """A text that leads to another page."""

    text: str
    address: str


class Input(NamedTuple):
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[str] = ()
    required: bool = False
    hint: str = ""


class ActForm(NamedTuple):
    """A form that asks an endpoint of the API to act.

    Attributes:
        heading: What it does.
        path: The path of the endpoint.
        fixed: Values that the reader does not choose.
        inputs: Values that the reader chooses; a reason is always asked for.
        button: The word on the button.
    """

    heading: str
    path: str
    fixed: Mapping[str, str]
    inputs: Sequence[Input]
    button: str


class RowOrder(NamedTuple):
    """The order of a table's rows, which an index serves.

    Attributes:
        column: The column that it is by.
        text: The order in words, "the latest first".
        others: Addresses of the page in other orders, by column.
    """

    column: str
    text: str
    others: Mapping[str, str] = {}


class PageTable(NamedTuple):
    """Rows with a heading.

    Attributes:
        name: Names the table in addresses of files.
        heading: Its heading.
        columns: Its columns.
        rows: The rows that are shown.
        empty: A sentence that says why there may be no row.
        note: A sentence below the heading: what the rows are, or what was not looked at.
        total: How many rows there are; None: those that are shown.
        first: The number of the first row shown, from 0.
        next: The address of the next rows; "" behind the last one.
        begin: The address of the first rows; "" on that page.
        order: The order of the rows.
        all_rows: Yields all rows, for files; None: those that are shown are all.
        is_half: Whether it takes half of the width, beside another one.
    """

    name: str
    heading: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    empty: str
    note: str = ""
    total: int | None = None
    first: int = 0
    next: str = ""
    begin: str = ""
    order: RowOrder | None = None
    all_rows: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    is_half: bool = False

    @property
    def block(self) -> str:
        """The part of the template that draws it."""
        return "table"

    @property
    def shown_columns(self) -> Sequence[Column]:
        """The columns that have a value in some row."""
        return [
            column for column in self.columns
            if any(row.get(column.name) not in (None, "") for row in self.rows)
        ]  # fmt: skip

    @property
    def extent(self) -> str:
        """The rows that are shown, and how many there are."""
        shown = len(self.rows)
        if self.total is None or (self.total <= shown and not self.first):
            return f"{shown:,}"
        return f"{self.first + 1:,}\N{EN DASH}{self.first + shown:,} of {self.total:,}"

    @property
    def file_columns(self) -> Sequence[Column]:
        """The columns that a file has: those with data."""
        return [column for column in self.columns if column.kind != "act"]

    def file_rows(self, zone: str) -> Iterator[Mapping[str, Any]]:
        """Yields all rows as files have them: exact numbers, and times with the offset of a zone."""
        with_unit = [column.name for column in self.file_columns if column.kind == "amount"]
        for row in self.rows if self.all_rows is None else self.all_rows():
            fields = {column.name: _field(column, row.get(column.name), zone) for column in self.file_columns}
            for name in with_unit:
                amount = row.get(name)
                unit = amount.unit if isinstance(amount, Quantity) else None
                fields[f"{name}_unit"] = STORED_IN.get(unit or "", "")
            yield fields

    def as_csv(self, zone: str) -> Iterator[bytes]:
        """Yields the file of all rows as CSV, as reports are written."""
        names = [column.name for column in self.file_columns]
        names += [f"{column.name}_unit" for column in self.file_columns if column.kind == "amount"]
        yield from encode_csv(names, ([_cell(row[name]) for name in names] for row in self.file_rows(zone)))

    def as_json(self, zone: str) -> Iterator[bytes]:
        """Yields the file of all rows as a JSON object with the list `items`."""
        yield b'{"items": ['
        for number, row in enumerate(self.file_rows(zone)):
            yield (", " if number else "").encode() + json.dumps(row).encode()
        yield b"]}"


class Tile(NamedTuple):
    """One number.

    Attributes:
        label: What it is.
        value: The number with its unit.
        note: Something to compare it with.
        mood: Its colour.
        line: Its values over time, for a spark line.
        usual: The usual values at these times.
        address: A page that explains it.
    """

    label: str
    value: str
    note: str = ""
    mood: Mood = "plain"
    line: Sequence[float] = ()
    usual: Sequence[float] = ()
    address: str = ""

    def points(self, values: Sequence[float]) -> str:
        """Returns the points of a line in a box of 100 by 24."""
        most = max([*self.line, *self.usual, 1e-9])
        width = max(1, len(values) - 1)
        return " ".join(
            f"{100 * place / width:.1f},{23 - 21 * value / most:.1f}" for place, value in enumerate(values)
        )


class Banner(NamedTuple):
    """The sentence about the installation, or the subject of a page, at its top.

    Attributes:
        text: The sentence.
        mood: How bad it is.
        more: The text of a link; "" for none.
        address: Its address.
        cure: What to do, with commands in backticks; "" if there is nothing.
    """

    text: str
    mood: Mood
    more: str = ""
    address: str = ""
    cure: str = ""


class Layer(NamedTuple):
    """Values of a chart at its times; None where there is none."""

    name: str
    values: Sequence[int | None]
    role: Role = ""


class Chart(NamedTuple):
    """Values over time, for the browser to draw.

    Attributes:
        heading: Its heading.
        about: A sentence for those who cannot see it.
        times: Begins of the steps, in seconds.
        layers: The lowest first.
        unit: Of the values.
        is_stacked: Whether layers stand on one another.
        limit: A dashed line, named `limit_name`.
        is_half: Whether it takes half of the width.
    """

    heading: str
    about: str
    times: Sequence[int]
    layers: Sequence[Layer]
    unit: str | None = None
    is_stacked: bool = False
    limit: int | None = None
    limit_name: str = "limit"
    is_half: bool = False

    @property
    def block(self) -> str:
        """The part of the template that draws it."""
        return "chart"

    @property
    def data(self) -> str:
        """The chart as JSON."""
        most = self.limit or 0
        columns = [[value or 0 for value in layer.values] for layer in self.layers]
        if columns and self.times:
            heights = [sum(parts) if self.is_stacked else max(parts) for parts in zip(*columns, strict=True)]
            most = max(most, *heights)
        scale = chart_scale(most, self.unit)
        limit = None if self.limit is None else [self.limit, self.limit_name]
        return json.dumps(
            {"times": self.times, "series": self.layers, "divisor": scale.divisor, "symbol": scale.symbol,
             "stacked": self.is_stacked, "limit": limit}
        )  # fmt: skip


class HeatMap(NamedTuple):
    """A heat map: rows of cells with numbers from 0 to 1, and what each one says."""

    heading: str
    about: str
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]
    is_half: bool = False

    @property
    def block(self) -> str:
        """The part of the template that draws it."""
        return "cells"


class Bar(NamedTuple):
    """One bar of a histogram."""

    label: str
    value: int
    text: str
    mood: Mood = "plain"


class Histogram(NamedTuple):
    """Bars beside one another, with a sentence for those who cannot see them."""

    heading: str
    about: str
    bars: Sequence[Bar]
    is_half: bool = False

    @property
    def block(self) -> str:
        """The part of the template that draws it."""
        return "bars"

    @property
    def most(self) -> int:
        """The largest value, at least 1."""
        return max([1, *(bar.value for bar in self.bars)])


Block = Chart | HeatMap | Histogram | PageTable


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a page shows, from top to bottom.

    Attributes:
        heading: Its heading.
        about: A line about it.
        banner: The sentence at its top.
        links: Other views of it, of which one may be selected: address, text, whether it is.
        forms: What can be done here, beside the heading.
        tiles: Its numbers.
        blocks: What follows, in order.
    """

    heading: str
    about: str = ""
    banner: Banner | None = None
    links: Sequence[tuple[str, str, bool]] = ()
    forms: Sequence[ActForm] = ()
    tiles: Sequence[Tile] = ()
    blocks: Sequence[Block] = ()

    @property
    def tables(self) -> Sequence[PageTable]:
        return [block for block in self.blocks if isinstance(block, PageTable)]


def _field(column: Column, value: Any, zone: str) -> Any:
    match value:
        case Quantity() | None:
            return None if value is None else value.value
        case Chip() | Link():
            return value.text
        case str() if column.kind == "time" and value:
            try:
                return offset_text(datetime.fromisoformat(value), zone)
            except (ValueError, OverflowError):
                return value
    return value


def _cell(value: Any) -> str | int:
    if value is None:
        return ""
    return value if isinstance(value, str | int) else str(value)
