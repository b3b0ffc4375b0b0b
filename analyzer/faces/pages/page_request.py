"""A request for a page, and the row of the table of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from analyzer.faces.api.endpoints import ApiContext
from analyzer.faces.api.pages import PagePlace, cursor_of, place_of
from analyzer.faces.pages.page_content import Content
from analyzer.faces.pages.page_filters import Filters
from analyzer.faces.pages.visitors import Visitor
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.tokens import TokenScope
from analyzer.plan.meter_units import Unit

ROWS = 50  # of a page of a list
FILE_ROWS = 1_000  # read at once for a file

PlacedFields = tuple[PagePlace, Mapping[str, Any]]
RowsBehind = Callable[[PagePlace | None], Iterable[PlacedFields]]


class PageRequest(NamedTuple):
    """A request for a page: the data, the filters and the visitor."""

    context: ApiContext
    filters: Filters
    visitor: Visitor

    @property
    def engine(self) -> Engine:
        return self.context.engine

    def unit(self, meter: str) -> Unit | None:
        """Returns the unit of a meter of the configuration; None for whole numbers."""
        return self.context.settings.units().get(meter)


class Page(NamedTuple):
    """A page.

    Attributes:
        path: Its address.
        name: Its name in the navigation; "" for one that others link to.
        scope: The least scope of a visitor.
        read: Returns its content; may raise AnalyzerError, NotThere.
        filters: The filters that have an effect on it.
        kept: Those that it is about, which its filter bar keeps.
    """

    path: str
    name: str
    scope: TokenScope
    read: Callable[[PageRequest], Content]
    filters: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def has_texts(self) -> bool:
        """Whether its filter bar has fields beside the time."""
        return bool({*self.filters} - {"span", "meter"})


class ListedRows(NamedTuple):
    """Some rows of a list, for the fields of a `PageTable` with these names."""

    rows: list[Mapping[str, Any]]
    first: int
    next: str
    begin: str
    all_rows: Callable[[], Iterator[Mapping[str, Any]]]


def listed(request: PageRequest, path: str, behind: RowsBehind, like: PagePlace) -> ListedRows:
    """Returns the rows of a list that the address asks for.

    `behind` yields all rows behind a place, or from the first one on; `like` is what places look like.
    Raises HttpProblem for a cursor of another list.
    """
    filters = request.filters
    place = place_of(filters.cursor, like) if filters.cursor else None
    rows = list(islice(behind(place), ROWS + 1))
    address = ""
    if len(rows) > ROWS:
        count = str(filters.place + ROWS)
        address = filters.address(path, cursor=cursor_of(rows[ROWS - 1][0])) + f"&place={count}"
    begin = filters.address(path) if place is not None else ""
    return ListedRows(
        [fields for _, fields in rows[:ROWS]],
        filters.place if place is not None else 0,
        address,
        begin,
        lambda: all_of(behind),
    )


def all_of(behind: RowsBehind) -> Iterator[Mapping[str, Any]]:
    """Yields all rows of a list; each `FILE_ROWS` are read at once, so that a slow reader holds nothing."""
    place: PagePlace | None = None
    while True:
        rows = list(islice(behind(place), FILE_ROWS))
        yield from (fields for _, fields in rows)
        if len(rows) < FILE_ROWS:
            return
        place = rows[-1][0]


def utc_text(at_s: float) -> str:
    """Returns a time as the pages' tables hold it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
