"""Rows as a table or as JSON."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Column

LINE_CHARACTERS_MAX = 2_000  # of a sentence
CELL_CHARACTERS_MAX = 400  # the longest name of a caller fits
TIME = re.compile(r"\d{4}-\d\d-\d\dT")
FINE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
TABLE_ROWS_MAX = 1_000  # a table is laid out in memory; JSON is streamed


def say(text: str, *, err: bool = False) -> None:
    """Prints sentences on standard output, or on standard error with `err`.

    Each line shows control and bidirectional characters as escapes, and is cut after `LINE_CHARACTERS_MAX`:
    names in a sentence may come from any client.
    """
    from analyzer.kernel.logs import printable

    for line in text.split("\n"):
        left = len(line) - LINE_CHARACTERS_MAX
        shown = line if left <= 0 else f"{line[:LINE_CHARACTERS_MAX]} ... ({left:,} characters more)"
        click.echo(printable(shown), err=err)


def json_lines(rows: Iterable[object]) -> None:
    """Prints each row as a JSON object on one line, in ASCII, as soon as it is there."""
    import msgspec  # an eighth of the time of `json`, which a report of a million rows consists of

    write, encode = sys.stdout.write, msgspec.json.Encoder().encode
    for row in rows:
        try:
            line = encode(row).decode("ascii")
            is_safe = "\x7f" not in line
        except UnicodeError:
            is_safe = False
        if not is_safe:
            # Escaped: a terminal must get no control characters from a caller's name, and a file's name may
            # have lone surrogates.
            line = json.dumps(row, separators=(",", ":"))
        write(line + "\n")
    sys.stdout.flush()


def outcome(sentence: str, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Prints what a command did: a sentence, or its fields as one JSON object."""
    if as_json:
        json_lines([fields])
    else:
        say(sentence)


def csv_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows as CSV (RFC 4180) below the names of the columns."""
    import csv

    from analyzer.kernel.logs import printable

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str, *, numbers: int = 0) -> None:
    """Prints a table with numbers aligned to the right; without rows, the sentence `empty`.

    The last `numbers` columns are aligned to the right in any case, such as amounts with a unit.
    """
    rows = iter(rows)
    shown = [[_cell(value) for value in row] for row in itertools.islice(rows, TABLE_ROWS_MAX)]
    if not shown:
        say(empty)
        return
    _print(columns, shown, numbers)
    if next(rows, None) is not None:
        say(f"... and more: these are the first {TABLE_ROWS_MAX:,}; --json prints all", err=True)


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Without a terminal nothing is wrapped: the output may be searched line by line.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    bold = "" if os.environ.get("NO_COLOR") else "bold"
    layout = Table(
        *_headed(columns, rows, numbers),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        header_style=bold,
    )
    for row in rows:
        layout.add_row(*map(Text, row))  # as text: a caller's name must not be taken for markup
    with console.capture() as captured:
        console.print(layout)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    click.echo("\n".join(line for line in lines if line), color=True)  # Rich has decided about styles


def _headed(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[Column]:
    from rich.table import Column

    for index, name in enumerate(columns):
        is_number = index >= len(columns) - numbers or all(
            row[index].replace(",", "").lstrip("-").isdecimal() for row in rows
        )
        is_time = all(TIME.match(row[index]) for row in rows)
        yield Column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_time)


def _cell(value: object) -> str:
    from analyzer.kernel.logs import printable

    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    if FINE_TIME.fullmatch(text):
        return text[:19] + "Z"  # seconds are enough for people; JSON has the rest
    return printable(text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]} ...")
