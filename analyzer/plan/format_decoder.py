"""The protocol of a log format: many records to columns of raw values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from analyzer.kernel.model import RejectReason

# A value as a record has it: str, int, bool, None, or something that no field accepts. bytes are the digits
# of a number that is not whole, or has more than `DIGITS_MAX` digits.
RawValue = object
Columns = list[list[Any]]  # one per path, with a `RawValue` per record


class FormatDecoder(Protocol):
    """Reads the values at the paths that it was made for."""

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """Returns a column per path, and the reasons of the records that cannot be read, by index.

        Values that a record does not have are None, and so are all values of an unreadable record. `values`
        is not empty.
        """


def invalid_utf8(values: Sequence[bytes]) -> list[int]:
    """Returns the indexes of the `values` that are not UTF-8."""
    # Joined by a newline, which is never part of a longer character: two invalid values cannot become valid.
    text = b"\n".join(values)
    if text.isascii():
        return []
    try:
        text.decode()
    except UnicodeDecodeError:
        return [index for index, value in enumerate(values) if not _is_utf8(value)]
    return []


def text_of_bytes(value: bytes) -> str:
    """Returns the value as text; a byte that is not UTF-8 becomes half of a surrogate pair.

    No name can contain one, so that a client which sends such bytes loses its name, and not the record.
    """
    return value.decode(errors="surrogateescape")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
