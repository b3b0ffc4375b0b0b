"""The filter bar: what the address of a page says about the rows that are wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from analyzer.kernel.logs import printable
from analyzer.plan.windows import is_zone

SPANS_S = {"1h": 3_600, "6h": 6 * 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
STEPS_S = {"1h": 60, "6h": 300, "24h": 900, "7d": 7_200, "30d": 21_600}
NAME_MAX = 512  # characters
MODES = ("enforce", "shadow")


class Filters(NamedTuple):
    """The wanted rows.

    Attributes:
        span: A key of `SPANS_S`: the time up to now.
        now_s: Now.
        zone: The time zone in which times are shown.
        caller: A caller, or a part of its name; "" for all.
        resource: A resource; "" for all.
        policy: A policy; "" for all.
        mode: One of `MODES`; "" for both.
        meter: What callers are ranked by.
    """

    span: str = "1h"
    now_s: int = 0
    zone: str = "UTC"
    caller: str = ""
    resource: str = ""
    policy: str = ""
    mode: str = ""
    meter: str = "requests"

    @property
    def step_s(self) -> int:
        return STEPS_S[self.span]

    @property
    def from_s(self) -> int:
        """The begin of the first step."""
        begin_s = self.now_s - SPANS_S[self.span]
        return begin_s - begin_s % self.step_s

    def address(self, path: str, **changed: str) -> str:
        """Returns the address of a page with these filters, some of them changed."""
        values = {name: getattr(self, name) for name in NAMES} | changed
        stated = {name: value for name, value in values.items() if value and value != DEFAULTS.get(name)}
        return f"{path}?{urlencode(stated)}" if stated else path


NAMES = ("span", "caller", "resource", "policy", "mode", "meter")
DEFAULTS = {"span": "1h", "meter": "requests"}


def filters_of(query: Mapping[str, str], zone: str) -> Filters:
    """Returns the filters that a query asks for. A value that cannot be is left out."""
    texts = {name: printable(query.get(name, "")[:NAME_MAX]).strip() for name in NAMES}
    return Filters(
        texts["span"] if texts["span"] in SPANS_S else DEFAULTS["span"],
        int(time.time()),
        zone if is_zone(zone) else "UTC",
        texts["caller"],
        texts["resource"],
        texts["policy"],
        texts["mode"] if texts["mode"] in MODES else "",
        texts["meter"] or DEFAULTS["meter"],
    )
