"""The filter bar: what the address of a page says about the rows that are wanted."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from analyzer.kernel.logs import printable
from analyzer.plan.windows import is_zone

SPANS_S = {"1h": 3_600, "6h": 6 * 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
SPAN = re.compile(r"([1-9]\d{0,4})(m|h|d)")
SPAN_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400}
SPAN_MIN_S, SPAN_MAX_S = 300, 800 * 86_400
STEPS_S = (60, 300, 900, 3_600, 7_200, 21_600, 86_400)
POINTS_MAX = 130  # of a chart
NAME_MAX = 512  # characters
CURSOR_MAX = 4_096  # characters
MODES = ("enforce", "shadow")


class Filters(NamedTuple):
    """The wanted rows.

    Attributes:
        span: The length of the time up to now, such as "1h"; "" if `begin` and `end` say the time.
        now_s: The end of the time: now, or `end`.
        length_s: The length of the time.
        zone: The time zone in which times are shown and read.
        begin: The begin of the time, a local one such as "2026-11-27T14:00".
        end: Its end.
        caller: A caller, or a part of its name; "" for all.
        tenant: A tenant; "" for all.
        resource: A resource, or a part of it; "" for all.
        policy: A policy; "" for all.
        mode: One of `MODES`; "" for both.
        meter: What callers are ranked by.
        sort: The column by which rows are in order; "" for the first one.
        limit: A limit that is tried out.
        cursor: The place behind which rows are wanted; "" for the first ones.
        place: How many rows are before them.
    """

    span: str = "1h"
    now_s: int = 0
    length_s: int = 3_600
    zone: str = "UTC"
    begin: str = ""
    end: str = ""
    caller: str = ""
    tenant: str = ""
    resource: str = ""
    policy: str = ""
    mode: str = ""
    meter: str = "requests"
    sort: str = ""
    limit: str = ""
    cursor: str = ""
    place: int = 0

    @property
    def step_s(self) -> int:
        """The step of a chart of the time."""
        return next((step_s for step_s in STEPS_S if self.length_s / step_s <= POINTS_MAX), STEPS_S[-1])

    @property
    def refresh_s(self) -> int:
        """Seconds between two reads of a page with the newest of these rows; more for wider steps."""
        return max(10, min(60, self.step_s // 6))

    @property
    def from_s(self) -> int:
        """The begin of the first step."""
        begin_s = self.now_s - self.length_s
        return begin_s - begin_s % self.step_s

    @property
    def times(self) -> list[int]:
        """The begins of all steps."""
        return list(range(self.from_s, self.now_s + 1, self.step_s))

    @property
    def time_text(self) -> str:
        """The time in words: "the last 1h", or from when until when."""
        if self.span:
            return f"the last {self.span}"
        return f"{self.begin.replace('T', ' ')} to {self.end.replace('T', ' ') or 'now'}"

    def address(self, path: str, **changed: str) -> str:
        """Returns the address of a page with these filters, some of them changed, from the first row on."""
        values = {name: getattr(self, name) for name in NAMES if name != "cursor"} | changed
        if values["begin"]:
            values["span"] = ""
        stated = {
            ADDRESS_NAMES.get(name, name): value
            for name, value in values.items()
            if value and value != DEFAULTS.get(name)
        }
        return f"{path}?{urlencode(stated)}" if stated else path


ADDRESS_NAMES = {"begin": "from", "end": "to"}  # where a name of Python differs from that in addresses
NAMES = (
    "span", "begin", "end", "caller", "tenant", "resource", "policy", "mode", "meter", "sort", "limit",
    "cursor",
)  # fmt: skip
DEFAULTS = {"span": "1h", "meter": "requests"}


def filters_of(query: Mapping[str, str], zone: str) -> Filters:
    """Returns the filters that a query asks for. A value that cannot be is left out."""
    texts = {name: printable(query.get(ADDRESS_NAMES.get(name, name), "")).strip() for name in NAMES}
    most = {"cursor": CURSOR_MAX}
    texts = {name: text[: most.get(name, NAME_MAX)] for name, text in texts.items()}
    zone = zone if is_zone(zone) else "UTC"
    now_s = int(time.time())
    begin_s, end_s = _second(texts["begin"], zone), _second(texts["end"], zone)
    if begin_s is not None and end_s is None and not texts["end"]:
        end_s = now_s
    if begin_s is None or end_s is None or not SPAN_MIN_S <= end_s - begin_s <= SPAN_MAX_S:
        texts |= {"begin": "", "end": ""}
        length_s = span_s(texts["span"]) or SPANS_S[DEFAULTS["span"]]
        texts["span"] = texts["span"] if span_s(texts["span"]) else DEFAULTS["span"]
    else:
        now_s, length_s = min(now_s, end_s), end_s - begin_s
        texts["span"] = ""
    texts["mode"] = texts["mode"] if texts["mode"] in MODES else ""
    texts["meter"] = texts["meter"] or DEFAULTS["meter"]
    place = query.get("place", "")
    number = int(place) if place.isascii() and place.isdecimal() and len(place) < 10 else 0
    return Filters(now_s=now_s, length_s=length_s, zone=zone, place=number, **texts)


def span_s(text: str) -> int | None:
    """Returns the seconds of a length such as "90m"; None for another text, or a length beyond the bounds."""
    match = SPAN.fullmatch(text)
    if match is None:
        return None
    length_s = int(match[1]) * SPAN_UNITS_S[match[2]]
    return length_s if SPAN_MIN_S <= length_s <= SPAN_MAX_S else None


def local_input(at_s: int, zone: str) -> str:
    """Returns a time as a field for local times holds it."""
    return datetime.fromtimestamp(at_s, ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")


def _second(text: str, zone: str) -> int | None:
    """Returns the second of a local time or a day; None for another text."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(zone))
        return int(moment.astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        return None
