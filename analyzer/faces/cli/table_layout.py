"""Tables that fit a terminal: names are cut in the middle, times and numbers never, sentences wrap by words.

A table that does not fit is made narrower in three steps, until it does: columns without any value are left
out; the widest columns of text are cut; what still finds no room stands in a second line of each row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GAP = "  "
INDENT = "    "  # of a row's second line
ELLIPSIS = "…"
TEXT_MIN = 16  # cells that a cut column of names keeps
PROSE_MIN = 30  # ... and one of sentences
PROSE_WORDS = 4  # of a cell that is a sentence
TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")
TIME_MAX = 34  # cells: a time with its zone, and a mark behind it
NUMBER = re.compile(r"-?[\d,]+(\.\d+)?( ?(%|s|B|[kMGT]i?B))?")
WIDTH_MIN = 20  # of a terminal


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        heading: Its name.
        width: Cells of its widest text.
        least: Cells that it needs at least.
        is_number: Whether it is aligned to the right.
        is_prose: Whether its texts are sentences, which wrap.
    """

    heading: str
    width: int
    least: int
    is_number: bool = False
    is_prose: bool = False


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, numbers: int = 0
) -> Iterator[str]:
    r"""Yields the lines of a table, the headings first, none wider than `width` cells.

    The last `numbers` columns are aligned to the right in any case. Control characters must be escaped
    already. The second line is a rule.

    >>> rows = [["api_key:a-very-long-name-of-a-caller", "1,204"], ["user:ann", "7"]]
    >>> print(*table_lines(["caller", "requests"], rows, 30), sep="\n")
    caller                requests
    ──────────────────────────────
    api_key:a-…-a-caller     1,204
    user:ann                     7
    """
    width = max(WIDTH_MIN, width)
    columns = [
        _measured(name, [row[place] for row in rows], is_amount=place >= len(headings) - numbers)
        for place, name in enumerate(headings)
    ]
    places = list(range(len(columns)))
    if _needed([column.width for column in columns]) > width:
        places = [place for place in places if any(row[place] for row in rows)] or places
    lines = _in_lines([columns[place] for place in places], places, width)
    yield from _row(columns, lines, headings)
    yield "─" * min(width, max(_needed([cells for _, cells in line]) for line in lines))
    for row in rows:
        yield from _row(columns, lines, row)


def cut_middle(text: str, cells: int) -> str:
    """Returns `text` with an ellipsis in place of its middle, if it is wider than `cells`.

    >>> cut_middle("api_key:acme-production", 12), cut_middle("acme", 12)
    ('api_ke…ction', 'acme')
    """
    if cell_width(text) <= cells:
        return text
    tail = _head(text[::-1], (cells - 1) // 2)[::-1]
    return _head(text, cells - 1 - cell_width(tail)) + ELLIPSIS + tail


def cell_width(text: str) -> int:
    """Returns how many cells of a terminal a text takes: two for each wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _head(text: str, cells: int) -> str:
    """Returns the longest begin of a text that fits."""
    if text.isascii():
        return text[:cells]
    end = min(len(text), cells)
    while cell_width(text[:end]) > cells:
        end -= 1
    return text[:end]


def _measured(heading: str, texts: Sequence[str], *, is_amount: bool) -> TableColumn:
    widest = max(map(cell_width, texts), default=0)
    width = max(widest, len(heading))
    is_number = is_amount or (any(texts) and all(not text or NUMBER.fullmatch(text) for text in texts))
    is_time = widest <= TIME_MAX and any(map(TIME.match, texts))
    is_prose = not is_number and any(len(text.split()) >= PROSE_WORDS for text in texts)
    if is_number or is_time:
        return TableColumn(heading, width, width, is_number)
    least = PROSE_MIN if is_prose else TEXT_MIN
    return TableColumn(heading, width, min(width, max(least, len(heading))), False, is_prose)


def _needed(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _in_lines(
    columns: Sequence[TableColumn], places: Sequence[int], width: int
) -> list[list[tuple[int, int]]]:
    """Returns for each line of a row the places of its columns, with the cells of each."""
    lines: list[list[tuple[int, int]]] = []
    line: list[tuple[int, TableColumn]] = []
    room = width
    for place, column in zip(places, columns, strict=True):
        least = min(column.least, width - len(INDENT))
        if line and _needed([min(part.least, room) for _, part in line] + [least]) > room:
            lines.append(_shared(line, room))
            line, room = [], width - len(INDENT)
        line.append((place, column))
    return [*lines, _shared(line, room)]


def _shared(line: Sequence[tuple[int, TableColumn]], room: int) -> list[tuple[int, int]]:
    """Returns the cells of each column: the widest ones give until all fit."""
    widths = [min(column.width, room) for _, column in line]
    least = [min(column.least, room) for _, column in line]
    while (excess := _needed(widths) - room) > 0:
        wide = [place for place, cells in enumerate(widths) if cells > least[place]]
        if not wide:
            break
        widest = max(wide, key=lambda place: widths[place])
        others = [widths[place] for place in wide if widths[place] < widths[widest]]
        floor = max(least[widest], max(others, default=0))
        widths[widest] = max(floor if floor < widths[widest] else widths[widest] - 1, widths[widest] - excess)
    return [(place, cells) for (place, _), cells in zip(line, widths, strict=True)]


def _row(
    columns: Sequence[TableColumn], lines: Sequence[Sequence[tuple[int, int]]], texts: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of one row."""
    for number, line in enumerate(lines):
        if number and not any(texts[place] for place, _ in line):
            continue
        cells = [_wrapped(texts[place], width, columns[place]) for place, width in line]
        for part in range(max(map(len, cells))):
            shown = [
                _aligned(texts_of[part] if part < len(texts_of) else "", width, columns[place])
                for (place, width), texts_of in zip(line, cells, strict=True)
            ]
            yield (INDENT * bool(number) + GAP.join(shown)).rstrip()


def _wrapped(text: str, width: int, column: TableColumn) -> list[str]:
    """Returns a text in lines: a sentence by its words, anything else cut to one."""
    if not column.is_prose or cell_width(text) <= width:
        return [cut_middle(text, width)]
    words = " ".join(cut_middle(word, width) for word in text.split(" "))
    wrapped = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [cut_middle(line, width) for line in wrapped] or [""]


def _aligned(text: str, width: int, column: TableColumn) -> str:
    blanks = " " * max(0, width - cell_width(text))
    return blanks + text if column.is_number else text + blanks
