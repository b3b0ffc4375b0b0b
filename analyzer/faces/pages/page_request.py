"""A request for a page, and the row of the table of pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from analyzer.faces.api.endpoints import ApiContext
from analyzer.faces.pages.page_content import Content
from analyzer.faces.pages.page_filters import Filters
from analyzer.faces.pages.visitors import Visitor
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.tokens import TokenScope

FILTERS_ALL = ("span", "caller", "resource", "policy", "mode")
WORDS = ("", "thousand", "million", "billion", "trillion")


class PageRequest(NamedTuple):
    """A request for a page: the data, the filters and the visitor."""

    context: ApiContext
    filters: Filters
    visitor: Visitor

    @property
    def engine(self) -> Engine:
        return self.context.engine


class Page(NamedTuple):
    """A page.

    Attributes:
        path: Its address.
        name: Its name in the navigation; "" for one that others link to.
        scope: The least scope of a visitor.
        read: Returns its content; may raise AnalyzerError, NotThere.
        filters: The filters that have an effect on it.
    """

    path: str
    name: str
    scope: TokenScope
    read: Callable[[PageRequest], Content]
    filters: tuple[str, ...] = ()


def short_number(number: float) -> str:
    """Returns a number with three digits or so: 1,234 as it is, 12.3 million beyond."""
    step = 0
    while abs(number) >= (10_000 if step == 0 else 1_000) and step < len(WORDS) - 1:
        number, step = number / 1_000, step + 1
    if step == 0:
        return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:.1f}"
    return f"{number:.3g} {WORDS[step]}"


def share_text(part: float, whole: float) -> str:
    """Returns a share in percent, "0 %" of nothing."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1g} %"


def utc_text(at_s: float) -> str:
    """Returns a time as the pages' tables hold it: RFC 3339, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
