"""Rows as CSV, JSON lines or Parquet, streamed: a list of any length needs constant memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from analyzer.billing.reports.parquet_rows import encode_parquet

EXECUTED = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet takes a cell that begins so for a formula
LINES_AT_ONCE = 1_000

Cell = str | int | Decimal  # a decimal stands there with all its digits, in JSON as text
Rows = Iterable[Sequence[Cell]]


def encode_csv(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """Yields CSV (RFC 4180) with the names of the columns.

    Text that a spreadsheet would execute has an apostrophe in front.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_csv_cell(cell) for cell in row])
        if number % LINES_AT_ONCE == 0:
            yield _taken(buffer)
    yield _taken(buffer)


def _csv_cell(cell: Cell) -> Cell:
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, Decimal):
        return _digits(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(EXECUTED) else cell


def _digits(number: object) -> str:
    return f"{number:f}"  # `str` would write an exponent


def _taken(buffer: io.StringIO) -> bytes:
    content = buffer.getvalue().encode()
    buffer.seek(0)
    buffer.truncate()
    return content


def encode_jsonl(columns: Sequence[str], rows: Rows) -> Iterator[bytes]:
    """Yields an object for each row, one per line of text."""
    return encode_json_lines(dict(zip(columns, row, strict=True)) for row in rows)


def encode_json_lines(objects: Iterable[Mapping[str, object]]) -> Iterator[bytes]:
    """Yields the objects, one per line of text."""
    buffer = io.StringIO(newline="")
    for number, fields in enumerate(objects, start=1):
        buffer.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":"), default=_digits))
        buffer.write("\n")
        if number % LINES_AT_ONCE == 0:
            yield _taken(buffer)
    yield _taken(buffer)


class RowFormat(NamedTuple):
    """A format of reports; its name is the end of a file's name.

    Attributes:
        encode: Yields rows below the names of their columns.
        is_text: Whether it is lines of text, which a terminal shows and an audit compares one by one.
    """

    encode: Callable[[Sequence[str], Rows], Iterator[bytes]]
    is_text: bool = True


ROW_FORMATS: Mapping[str, RowFormat] = {
    "csv": RowFormat(encode_csv),
    "jsonl": RowFormat(encode_jsonl),
    "parquet": RowFormat(encode_parquet, is_text=False),
}
