"""Rows as Parquet, by pyarrow, which the extra `parquet` installs.

A row group at a time is in memory. Equal rows give equal bytes with one release of pyarrow, whose name the
file contains; no time is written into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import islice
from typing import Any

from analyzer.kernel.errors import NotInstalled

ROWS_PER_GROUP = 20_000
DIGITS, PLACES_MAX = 28, 9  # of decimals: those of a sum of 64 bits, and billionths
# The types of columns, as pyarrow calls them; all others are strings.
TYPES: Mapping[str, str] = {
    "from": "date32", "to": "date32", "booked": "date32", "day": "date32",
    "value": "int64", "denied": "int64", "is_final": "bool_", "provisional": "bool_",
    "human_value": "decimal", "human_denied": "decimal",
}  # fmt: skip


class Sink:
    """A file that keeps what is written to it until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def flush(self) -> None:
        """Does nothing: all is in memory."""

    def close(self) -> None:
        """Does nothing: what is kept can still be taken."""

    def take(self) -> bytes:
        """Returns what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def encode_parquet(columns: Sequence[str], rows: Iterable[Sequence[str | int | Decimal]]) -> Iterator[bytes]:
    """Yields a Parquet file. Raises NotInstalled."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as missing:
        raise NotInstalled("Parquet needs pyarrow: pip install 'gatelock[parquet]'") from missing
    decimal = pa.decimal128(DIGITS, PLACES_MAX)
    kinds = [TYPES.get(name, "string") for name in columns]
    types = [decimal if kind == "decimal" else getattr(pa, kind)() for kind in kinds]
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in zip(columns, types, strict=True)]
    )
    sink, rows = Sink(), iter(rows)
    # Without the schema of Arrow, the bytes depend on the rows and on the release of pyarrow alone.
    with parquet.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            values = zip(*group, strict=True)
            arrays = [
                pa.array(map(date.fromisoformat, column) if TYPES.get(name) == "date32" else column, kind)
                for name, kind, column in zip(columns, types, values, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield sink.take()
    yield sink.take()
