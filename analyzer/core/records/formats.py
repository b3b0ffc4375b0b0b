"""What a format gives: columns of raw values. `json_format.py` and `combined_format.py` are the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from analyzer.core.model import RejectReason

# A value as a record has it: str, int, bool, None, or something that no field can be. bytes are the digits of
# a number that is not whole, or too long to be of use.
RawValue = object
Columns = list[list[Any]]  # one for each path, with a `Raw` for each record


class Format(Protocol):
    """Reads the values at the paths that it was made for."""

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        """A column for each path, and why which records cannot be read: theirs are all None, as are values
        that a record does not have. There is at least one record."""


def not_utf8(values: Sequence[bytes]) -> list[int]:
    """Which of `values` are not UTF-8."""
    # Parted by what is no part of any character, or two bad halves would make a good whole.
    text = b"\n".join(values)
    if text.isascii():
        return []
    try:
        text.decode()
    except UnicodeDecodeError:
        return [at for at, value in enumerate(values) if not _is_utf8(value)]
    return []


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
