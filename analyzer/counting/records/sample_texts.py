"""Texts within a part of a record that cannot be read: any of them may be the name of its caller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

FORGOTTEN = b"(forgotten)"  # in place of a sample that names a forgotten caller
WITHHELD = b"(withheld)"  # in place of a sample whose caller is counted by a digest
HIDDEN = (FORGOTTEN, WITHHELD)

PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")  # as URLs escape a byte
QUOTED = re.compile(r'(?:[^"\\]|\\.)+')  # between two quotation marks, as JSON escapes what is within
# Characters that few names have, and then those that some names have as well.
SEPARATORS = re.compile(r"[\s\"'`=&?,;|(){}\[\]<>]+"), re.compile(r"[^\w@.+~-]+")


def texts_within(sample: bytes) -> set[str]:
    r"""Returns texts that stand alone in a sample: between quotation marks, blanks, or other separators.

    A name in a text without quotation marks, and with several kinds of separators in it, is not among them.

    >>> {'dan, "d"', "dan", "key"} <= texts_within(b'{"key": "dan, \\"d\\"", "n')
    True
    >>> "dan, d" in texts_within(b'{"message": "{\\"key\\": \\"dan, d\\"}"}')
    True
    """
    plain = PERCENT.sub(lambda match: bytes.fromhex(match[1].decode()), sample)
    return {text for form in {sample, plain} for text in _texts(form.decode(errors="replace"))} - {""}


def _texts(text: str) -> Iterator[str]:
    yield text
    for quoted in QUOTED.findall(text):
        yield quoted
        if "\\" in quoted:  # perhaps a record within the envelope of a shipper
            with suppress(ValueError):
                yield from _texts(json.loads(f'"{quoted}"', strict=False))
    for separators in SEPARATORS:
        for part in separators.split(text):
            yield part
            yield part.strip(".:-")
