"""Rows for people or for programs."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Column

TABLE_ROWS_MAX = 1_000  # a table is laid out in memory; JSON has no end


def json_lines(rows: Iterable[object]) -> None:
    """One JSON object per line, each written as it comes."""
    write = sys.stdout.write
    for row in rows:
        write(json.dumps(row) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str) -> None:
    """A table; `nothing` is said when there is no row. Columns of numbers stand to the right."""
    rows = iter(rows)
    shown = [[_cell(value) for value in row] for row in itertools.islice(rows, TABLE_ROWS_MAX)]
    if not shown:
        typer.echo(nothing)
        return
    _print(columns, shown)
    if next(rows, None) is not None:
        typer.echo(f"... and more: the first {TABLE_ROWS_MAX:,} are shown, --json gives all", err=True)


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Without a terminal nothing is cut: somebody searches in it.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    laid_out = Table(*_headed(columns, rows), box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        laid_out.add_row(*map(Text, row))  # as text: a caller's name is no markup
    console.print(laid_out)


def _headed(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Column]:
    from rich.table import Column

    for at, name in enumerate(columns):
        number = all(row[at].replace(",", "").lstrip("-").isdecimal() for row in rows)
        yield Column(name, justify="right" if number else "left", overflow="fold")


def _cell(value: object) -> str:
    from analyzer.logs import printable

    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def time_of(second: int) -> str:
    """RFC 3339, UTC.

    >>> time_of(1763596800)
    '2025-11-20T00:00:00Z'
    """
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
