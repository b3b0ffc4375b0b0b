"""The callers of this moment: how fast each sends, its part of all, its nearest limit, its locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.callers.caller_standing import BriefStanding, brief_standings
from analyzer.counting.key_search import find_keys
from analyzer.counting.traffic import TrafficAmount, TrafficQuery, traffic
from analyzer.judging.locks.suspension import suspended_until
from analyzer.kernel.database.clock import database_now
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.time_texts import format_second
from gatekeeper.feed.feed_json import time_text

SPANS_S: Mapping[str, int] = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
ROWS_MAX = 500
MINUTE_S = 60
NOTHING = TrafficAmount()


class LiveQuery(NamedTuple):
    """A choice of callers.

    Attributes:
        span: A word of SPANS_S: the time whose requests are added up.
        sort: A word of SORTS.
        text: Only callers whose name contains it, in any case of letters; "": all.
        rows: So many at most.
    """

    span: str = "1h"
    sort: str = "requests"
    text: str = ""
    rows: int = 40


class LiveCaller(NamedTuple):
    """One caller.

    Attributes:
        caller: Its name.
        rate: Requests per second in the last one to two minutes.
        requests: In the span, the denied ones among them.
        denied: Of these, by a gate or a limiter.
        share: Its part of all requests of the span.
        earlier: Its requests in the span before.
        policy: The policy whose limit is nearest, of those that are enforced if any is; "": none holds for
            it.
        used: The part of that limit which is used.
        is_shadow: Whether that policy is in shadow.
        locked_by: The policies whose locks are enforced against it.
        until: The last end of these; "": not locked.
    """

    caller: str
    rate: float
    requests: int
    denied: int
    share: float
    earlier: int
    policy: str
    used: float
    is_shadow: bool
    locked_by: Sequence[str]
    until: str

    @property
    def difference(self) -> int:
        """By how much its requests grew since the span before."""
        return self.requests - self.earlier

    def as_object(self) -> dict[str, object]:
        """Returns it for programs."""
        return self._asdict() | {
            "rate": round(self.rate, 3), "share": round(self.share, 6), "used": round(self.used, 4),
            "locked_by": list(self.locked_by),
        }  # fmt: skip


class LiveCallers(NamedTuple):
    """The callers of a moment, and the sums of all.

    Attributes:
        at: The time, by the database's clock.
        span: That of the query.
        rate: Requests per second of all callers.
        requests: Of all callers in the span, the denied ones among them.
        denied: Of these.
        suspended: Until when no lock is enforced; "": locks are enforced.
        note: What a search did not look at; "": nothing was left out.
        rows: The callers, in their order.
    """

    at: str
    span: str
    rate: float
    requests: int
    denied: int
    suspended: str
    note: str
    rows: Sequence[LiveCaller]

    def as_object(self) -> dict[str, Any]:
        """Returns it for programs."""
        return self._asdict() | {
            "rate": round(self.rate, 3), "rows": [row.as_object() for row in self.rows]
        }  # fmt: skip


def live_from(answer: Mapping[str, Any]) -> LiveCallers:
    """Returns what `LiveCallers.as_object` has made an object of."""
    return LiveCallers(**{**answer, "rows": [LiveCaller(**row) for row in answer["rows"]]})


SORTS: Mapping[str, Callable[[LiveCaller], Any]] = {
    "requests": lambda row: -row.requests,
    "rate": lambda row: -row.rate,
    "denied": lambda row: -row.denied,
    "change": lambda row: -abs(row.difference),
    "limit": lambda row: -row.used,
    "name": lambda row: row.caller,
}


def live_callers(engine: Engine, query: LiveQuery, kinds: Iterable[str] = ()) -> LiveCallers:
    """Returns the callers with the most requests in the span or in the last minute, sorted.

    `kinds` are those of callers, which a text may leave out. Sorts other than `requests` and `rate` order
    these, and find no caller beyond them. Raises StoreAway, NotRankedYet.
    """
    now_s = int(database_now(engine).timestamp())
    span_s = SPANS_S[query.span]
    begin_s = now_s - span_s - (now_s - span_s) % MINUTE_S
    minute_s = now_s - now_s % MINUTE_S - MINUTE_S
    rows = min(query.rows, ROWS_MAX)
    span = TrafficQuery("caller", begin_s, now_s + 1, span_s, rows)
    minute = TrafficQuery("caller", minute_s, now_s + 1, MINUTE_S, rows)
    present, latest = traffic(engine, span), traffic(engine, minute)
    names, note = [*dict.fromkeys([*present.keys, *latest.keys])], ""
    if query.text:
        found = find_keys(engine, "caller", query.text, kinds, begin_s, now_s + 1)
        names, note = [*found.keys], found.note
    both = {**_amounts(engine, span, present.keys, names), **present.keys}
    rates = {**_amounts(engine, minute, latest.keys, names), **latest.keys}
    earlier = span._replace(from_s=begin_s - span_s, until_s=begin_s, keys=names, top=len(names))
    before = traffic(engine, earlier).keys if names else {}
    standings = brief_standings(engine, names)
    whole, lasted_s = present.total.whole, now_s + 1 - minute_s
    callers = [
        _caller(
            name, both.get(name, NOTHING), before.get(name, NOTHING), standings[name],
            rates.get(name, NOTHING).whole / lasted_s, whole,
        )
        for name in names
    ]  # fmt: skip
    suspended = suspended_until(engine)
    return LiveCallers(
        format_second(now_s), query.span, latest.total.whole / lasted_s, whole, present.total.denied,
        "" if suspended is None else time_text(suspended), note,
        sorted(callers, key=SORTS[query.sort])[:rows],
    )  # fmt: skip


def _amounts(
    engine: Engine, query: TrafficQuery, counted: Mapping[str, TrafficAmount], names: Sequence[str]
) -> Mapping[str, TrafficAmount]:
    """Returns the amounts of those callers that a ranking did not have among its first."""
    missing = [name for name in names if name not in counted]
    return traffic(engine, query._replace(keys=missing, top=len(missing))).keys if missing else {}


def _caller(
    name: str, amount: TrafficAmount, earlier: TrafficAmount, standing: BriefStanding, rate: float, whole: int
) -> LiveCaller:
    nearest, locks = standing.nearest, standing.locks
    return LiveCaller(
        name,
        rate,
        amount.whole,
        amount.denied,
        amount.whole / whole if whole else 0.0,
        earlier.whole,
        "" if nearest is None else nearest.policy.name,
        0.0 if nearest is None else nearest.part,
        nearest is not None and nearest.policy.is_shadow,
        [*dict.fromkeys(lock.policy for lock in locks)],
        time_text(max(lock.until for lock in locks)) if locks else "",
    )
