"""The content of a page: tiles, charts, tables and forms, as data that one template draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from analyzer.billing.reports.row_formats import encode_csv

CellKind = Literal[
    "text", "count", "share", "time", "age", "caller", "policy", "bar", "state", "severity", "cure"
]
Mood = Literal["good", "watch", "bad"]


class Column(NamedTuple):
    """A column of a table: the name of its field, its heading, and how its cells are drawn."""

    name: str
    heading: str
    kind: CellKind = "text"


class PageTable(NamedTuple):
    """Rows with a heading; `empty` says why there may be none."""

    name: str
    heading: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    empty: str

    def as_csv(self) -> bytes:
        """Returns the rows as CSV, as reports are written."""
        names = [column.name for column in self.columns]
        return b"".join(encode_csv(names, ([_cell(row.get(name)) for name in names] for row in self.rows)))

    def as_json(self) -> str:
        """Returns the rows as a JSON object with the list `items`."""
        names = [column.name for column in self.columns]
        return json.dumps({"items": [{name: row.get(name) for name in names} for row in self.rows]})


class Tile(NamedTuple):
    """One number, with its unit in the label, and a note below it."""

    label: str
    value: str
    note: str = ""
    mood: Mood = "good"


class Banner(NamedTuple):
    """The sentence about the installation at the top of a page.

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


class Chart(NamedTuple):
    """Values over time, stacked, for the browser to draw.

    Attributes:
        heading: Its heading.
        about: A sentence for those who cannot see it.
        times: Begins of the steps, in seconds.
        series: Name and values of each layer, the lowest first.
    """

    heading: str
    about: str
    times: Sequence[int]
    series: Sequence[tuple[str, Sequence[int]]]

    @property
    def data(self) -> str:
        """The chart as JSON."""
        return json.dumps({"times": self.times, "series": self.series})


class HeatMap(NamedTuple):
    """A heat map: rows of cells with numbers from 0 to 1, and what each one says."""

    heading: str
    about: str
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]


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


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a page shows, from top to bottom."""

    heading: str
    about: str = ""
    banner: Banner | None = None
    tiles: Sequence[Tile] = ()
    charts: Sequence[Chart] = ()
    cells: Sequence[HeatMap] = ()
    forms: Sequence[ActForm] = ()
    tables: Sequence[PageTable] = field(default=())


def _cell(value: Any) -> str | int:
    if value is None:
        return ""
    return value if isinstance(value, str | int) else str(value)
