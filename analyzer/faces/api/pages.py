"""Pages of long lists. A cursor is the place of the last row of a page in the order of the list.

Rows that come or go between two pages neither repeat nor hide another one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import dropwhile, islice
from typing import Any

from analyzer.server.problems import HttpProblem

ROWS_MAX = 1_000  # of a page
ROWS = 100  # unless the request says more
CURSOR_MAX = 4_096  # characters

PagePlace = tuple[int | str, ...]  # rises along a list
PlacedRow = tuple[PagePlace, Mapping[str, object]]


def page_of(rows: Iterable[PlacedRow], place: PagePlace | None, limit: int) -> dict[str, object]:
    """Returns `limit` rows behind a place, and the cursor of the next page; None when there is none."""
    if place is not None:
        rows = dropwhile(lambda row: row[0] <= place, rows)
    page = list(islice(rows, limit + 1))
    following = cursor_of(page[limit - 1][0]) if len(page) > limit else None
    return {"items": [fields for _, fields in page[:limit]], "next": following}


def cursor_of(place: PagePlace) -> str:
    """Returns a place as text for a URL."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def place_of(cursor: str, like: PagePlace) -> PagePlace:
    """Returns the place of a cursor. Raises HttpProblem unless it looks like the places of this list."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (binascii.Error, ValueError, RecursionError):
        place = None
    if isinstance(place, list) and [type(part) for part in place] == [type(part) for part in like]:
        numbers: list[Any] = [part for part in place if isinstance(part, int)]
        if all(abs(part) < 1 << 53 for part in numbers):
            return tuple(place)
    raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "`cursor` is not the `next` of a page of this list.")
