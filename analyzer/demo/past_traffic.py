"""A believable past: requests of some days, with a rhythm, a noisy neighbour and a flood at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

TENANTS = ("acme", "globex", "initech", "umbrella", "hooli", "wayne", "stark", "soylent")
APPLICATIONS = ("web", "mobile", "sync", "reports", "ci")
ROUTES = ("/v1/items/{}", "/v1/search", "/v1/orders", "/v1/export", "/login")
ROUTE_WEIGHTS = (52, 22, 14, 4, 8)
TOOK_S = {"/v1/items/{}": 0.02, "/v1/search": 0.09, "/v1/orders": 0.06, "/v1/export": 0.9, "/login": 0.12}
BYTES = {
    "/v1/items/{}": 2_400,
    "/v1/search": 9_000,
    "/v1/orders": 3_100,
    "/v1/export": 240_000,
    "/login": 700,
}
HOUR_S, DAY_S, WEEK_S = 3_600, 86_400, 7 * 86_400
NEIGHBOUR, NEIGHBOUR_S = "reports-globex", 80 * 60  # the caller that exports too much, and for how long
FLOOD_S, FLOOD_NETWORK = 11 * 60, "203.0.113"
SLOWER = 3.5  # an export, while the neighbour exports too much


class PastCaller(NamedTuple):
    """A caller of the past: its part of the traffic, its address, and when its day is busiest."""

    api_key: str
    tenant: str
    weight: float
    address: str
    peak_hour: int


class PastTraffic(NamedTuple):
    """The parameters of a past.

    Attributes:
        until_s: The time of the last record, in seconds since 1970.
        days: How long the past is.
        per_minute: Requests of a minute at noon of a working day.
        seed: Equal ones make equal records.
    """

    until_s: int
    days: float = 8.0
    per_minute: float = 90.0
    seed: int = 7

    def callers(self) -> list[PastCaller]:
        """Returns the callers, the largest first: few send most."""
        random, callers = Random(self.seed), []  # noqa: S311 - equal seeds make equal records
        for number, tenant in enumerate(TENANTS):
            for place, application in enumerate(APPLICATIONS):
                weight = 1 / (1 + number * 0.9 + place * 1.7)
                address = f"198.51.{100 + number}.{10 + place}"
                if application == "mobile":
                    address = f"2001:db8:{number + 1:x}:{place + 1:x}::1"
                hour = random.choice((9, 10, 13, 14, 15, 20))
                callers.append(PastCaller(f"{application}-{tenant}", tenant, weight, address, hour))
        return sorted(callers, key=lambda caller: -caller.weight)

    def records(self) -> Iterator[bytes]:
        """Yields the records as lines of JSON, by time."""
        random, callers = Random(self.seed), self.callers()  # noqa: S311 - as above
        until_s = self.until_s - self.until_s % 60
        for minute_s in range(until_s - int(self.days * DAY_S), until_s, 60):
            lines = list(self._minute(random, callers, minute_s, until_s - minute_s))
            yield from (line for _, line in sorted(lines))

    def _minute(
        self, random: Random, callers: Sequence[PastCaller], minute_s: int, left_s: int
    ) -> Iterator[tuple[float, bytes]]:
        """Yields the records of a minute, with their times; `left_s` is the rest of the past."""
        hour = minute_s % DAY_S / HOUR_S
        weights = [caller.weight * _rhythm(minute_s, hour, caller.peak_hour) for caller in callers]
        cumulative = list(accumulate(weights))
        whole = self.per_minute * cumulative[-1] / sum(caller.weight for caller in callers)
        slow = SLOWER if left_s <= NEIGHBOUR_S else 1.0
        for _ in range(_about(random, whole)):
            caller = random.choices(callers, cum_weights=cumulative)[0]
            route = random.choices(ROUTES, ROUTE_WEIGHTS)[0]
            yield _record(random, minute_s, caller, route, slow if route == "/v1/export" else 1.0)
        if left_s <= NEIGHBOUR_S:
            neighbour = next(caller for caller in callers if caller.api_key == NEIGHBOUR)
            for _ in range(_about(random, self.per_minute * 0.55)):
                yield _record(random, minute_s, neighbour, "/v1/export", slow)
        if left_s <= FLOOD_S:
            for _ in range(_about(random, self.per_minute * 5)):
                address = f"{FLOOD_NETWORK}.{random.randint(1, 90)}"
                yield _record(random, minute_s, PastCaller("", "", 0, address, 0), "/login", 1.0)


def _rhythm(minute_s: int, hour: float, peak_hour: int) -> float:
    """Returns how busy a caller is: by its hour, less at night and at weekends."""
    by_day = 0.25 + 0.75 * math.exp(-(((hour - peak_hour + 12) % 24 - 12) ** 2) / 18)
    is_weekend = (minute_s // DAY_S + 3) % 7 >= 5
    return by_day * (0.45 if is_weekend else 1.0)


def _about(random: Random, mean: float) -> int:
    return max(0, round(random.gauss(mean, math.sqrt(mean))))


def _record(
    random: Random, minute_s: int, caller: PastCaller, route: str, slow: float
) -> tuple[float, bytes]:
    at_s = minute_s + random.random() * 60
    took_s = TOOK_S[route] * slow * random.lognormvariate(0, 0.5)
    chance = random.random()
    status = 500 + random.choice((0, 2, 3)) if chance < 0.004 * slow**2 else 404 if chance < 0.03 else 200
    if not caller.api_key:
        status = 401
    fields = {
        "ts": round(at_s, 3), "api_key": caller.api_key or None, "ip": caller.address, "org": caller.tenant,
        "path": route.format(random.randint(1, 9_999)), "status": status,
        "bytes": int(BYTES[route] * random.lognormvariate(0, 0.4)), "took": round(took_s, 6), "gate": "",
    }  # fmt: skip
    return at_s, json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
