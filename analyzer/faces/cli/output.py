"""Rows as a table or as JSON."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from analyzer.faces.table_rows import TableRows

LINE_CHARACTERS_MAX = 2_000  # of a sentence
CELL_CHARACTERS_MAX = 400  # the longest name of a caller fits
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


def show(parts: Iterable[str | TableRows]) -> None:
    """Prints sentences and tables, in their order."""
    for part in parts:
        if isinstance(part, str):
            say(part)
        else:
            table(*part)


def lines_of(parts: Iterable[str | TableRows], width: int) -> Iterator[str]:
    """Yields the lines that `show` prints on a terminal of this width."""
    from analyzer.faces.cli.table_layout import table_lines
    from analyzer.kernel.logs import printable

    for part in parts:
        rows = [] if isinstance(part, str) else [[_cell(value) for value in row] for row in part.rows]
        if rows and not isinstance(part, str):
            yield from table_lines(part.columns, rows, width)
        else:
            yield from textwrap.wrap(printable(part if isinstance(part, str) else part.empty), width)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str, *, numbers: int = 0) -> None:
    """Prints a table that fits the terminal; without rows, the sentence `empty`.

    Where no terminal reads, cells are separated by tabs, and whole. The last `numbers` columns are aligned
    to the right in any case, such as amounts with a unit.
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
    """Prints rows for people on a terminal, and elsewhere separated by tabs, whole and without a style."""
    if not is_terminal():
        click.echo("\n".join("\t".join(row) for row in [columns, *rows]))
        return
    from analyzer.faces.cli.table_layout import table_lines

    heading, *lines = table_lines(columns, rows, shutil.get_terminal_size().columns, numbers=numbers)
    if not os.environ.get("NO_COLOR"):
        heading = click.style(heading, bold=True)
    click.echo("\n".join([heading, *lines]), color=True)


def is_terminal() -> bool:
    """Whether people read the output, and no program."""
    return sys.stdout.isatty()


def _cell(value: object) -> str:
    from analyzer.kernel.logs import printable

    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    if FINE_TIME.fullmatch(text):
        return text[:19] + "Z"  # seconds are enough for people; JSON has the rest
    return printable(text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]} ...")
