"""Texts within a part of a record that cannot be read: any of them may be the name of its caller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

FORGOTTEN = b"(forgotten)"  # in place of a sample that names a forgotten caller
WITHHELD = b"(withheld)"  # in place of a sample whose caller is counted by a digest
HIDDEN = (FORGOTTEN, WITHHELD)

QUOTED = re.compile(r'(?:[^"\\]|\\.)+')  # between two quotation marks, as JSON escapes what is within
# Characters that few names have, and then those that some names have as well.
SEPARATORS = re.compile(r"[\s\"'`=&?,;|(){}\[\]<>]+"), re.compile(r"[^\w@.+~-]+")


def texts_within(sample: bytes) -> set[str]:
    r"""Returns texts that stand alone in a sample: between quotation marks, blanks, or other separators.

    A name in a text without quotation marks, and with several kinds of separators in it, is not among them.

    >>> {'dan, "d"', "dan", "key"} <= texts_within(b'{"key": "dan, \\"d\\"", "n')
    True
    """
    text = sample.decode(errors="replace")
    texts = set(_texts(text))
    if "%" in text:
        texts.update(_texts(unquote(text)))
    return texts - {""}


def _texts(text: str) -> Iterator[str]:
    for quoted in QUOTED.findall(text):
        yield quoted
        if "\\" in quoted:
            try:
                yield json.loads(f'"{quoted}"', strict=False)
            except ValueError:
                continue
    for separators in SEPARATORS:
        for part in separators.split(text):
            yield part
            yield part.strip(".:-")
