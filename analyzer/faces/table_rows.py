"""Rows of a table among lines of text: what a command prints, and the API answers with `texts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class TableRows(NamedTuple):
    """Rows of a table: its columns, and the sentence that stands for no row."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    empty: str


def as_json(parts: Iterable[str | TableRows]) -> list[object]:
    """Returns sentences as they are, and tables as objects."""
    return [
        part if isinstance(part, str) else {**part._asdict(), "rows": [list(row) for row in part.rows]}
        for part in parts
    ]
