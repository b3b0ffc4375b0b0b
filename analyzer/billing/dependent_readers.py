"""Readers for the second count of a day: the independent ones, and the counter's where it has none.

The module stands beside `day_recount`, which imports nothing of the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from analyzer.billing.recount.log_documents import READERS, LogReader, Path, ValueAt
from analyzer.billing.recount.log_envelopes import Unreadable
from analyzer.billing.recount.single_values import Digits
from analyzer.counting.records.formats import FORMATS, RecordFormat


def log_readers() -> dict[str, LogReader]:
    """Returns the readers of all formats; those that the second counter lacks are made from the counter's."""
    return {name: _counters_reader(log_format) for name, log_format in FORMATS.items()} | dict(READERS)


def _counters_reader(log_format: RecordFormat) -> LogReader:
    """Returns a reader that is the counter's decoder."""

    def make(paths: Sequence[Path]) -> Callable[[bytes], ValueAt]:
        decoder = log_format.decoder([tuple(path) for path in paths])

        def read(value: bytes) -> ValueAt:
            columns, reasons = decoder.read([value])
            if reasons:
                raise Unreadable(reasons[0])
            values = [_as_written(column[0]) for column in columns]
            by_path = dict(zip(map(tuple, paths), values, strict=True))
            return lambda path: by_path[tuple(path)]

        return read

    return LogReader(
        make,
        log_format.caller,
        msgspec.to_builtins(log_format.fields),
        msgspec.to_builtins(log_format.time),
        is_independent=False,
    )


def _as_written(raw: object) -> object:
    """Returns a value of the counter's decoder as the second counter has it: numbers as their digits."""
    if isinstance(raw, bytes):
        return Digits(raw.decode())
    return Digits(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
