"""Now, callers, attack: who sends how much, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from analyzer.counting.traffic import Traffic, TrafficAmount, TrafficQuery, traffic
from analyzer.counting.usage import is_counted
from analyzer.counting.usage_windows import counted_meters
from analyzer.faces.pages.page_content import ActForm, Chart, Column, Content, Input, PageTable, Tile
from analyzer.faces.pages.page_filters import SPANS_S
from analyzer.faces.pages.page_request import PageRequest, share_text, short_number, utc_text
from analyzer.faces.pages.signals_page import signals_banner
from analyzer.faces.signals.status import installation_status
from analyzer.flush.followed_partitions import followed
from analyzer.gates.gate_answers import listed_gates
from analyzer.judging.locks.lock_answers import lock_fields
from analyzer.judging.locks.stored_locks import locks_in_force
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.database.revisions import head

STALE_S = 60.0  # of lag, from which on the pages say that they are late
LAYERS = 8  # of a stacked chart
RANKED = 100
MOVERS = 10
LISTED = 20  # locks of the first page
EVENTS = 12
LOCKS = 1_000
ADDRESS_GROUPINGS = ("address", "address/24", "address6/56")

LOCK_COLUMNS = (
    Column("key", "Who", "caller"), Column("scope", "Scope"), Column("policy", "Policy", "policy"),
    Column("detail", "Why"), Column("began", "Since", "time"), Column("until", "Until", "time"),
)  # fmt: skip
RANK_COLUMNS = (
    Column("caller", "Caller", "caller"), Column("value", "Counted", "count"),
    Column("share", "Share", "share"),
    Column("change", "Against the time before", "text"), Column("denied", "Denied", "count"),
    Column("state", "State", "state"),
)  # fmt: skip


def now(request: PageRequest) -> Content:
    """Returns the first page: is something wrong, who sends most, what has changed."""
    engine, filters = request.engine, request.filters
    amounts = traffic(
        engine, TrafficQuery("caller", filters.from_s, filters.now_s + 1, filters.step_s, LAYERS)
    )
    minute_s = filters.now_s - filters.now_s % 60 - 60
    last = traffic(engine, TrafficQuery("caller", minute_s, minute_s + 60, 60, 1)).total
    status, parts = installation_status(engine, head()), followed(engine)
    gates = [gate for gate in listed_gates(engine).as_objects() if "age_s" in gate]
    total, lag_s = amounts.total, max((part.behind_s for part in parts), default=0.0)
    ages = [age for gate in gates if isinstance(age := gate["age_s"], int | float)]
    locked = sum(status.active_locks.values())
    tiles = [
        Tile("requests per second", short_number(last.whole / 60), "last whole minute"),
        Tile(
            "largest caller",
            share_text(_largest(amounts), total.whole),
            next(iter(amounts.keys), "no caller yet"),
        ),
        Tile("locked", f"{locked:,}", "locks in force", "watch" if locked else "good"),
        Tile("denied", share_text(total.denied, total.whole), f"{total.denied:,} requests"),
        Tile("lag", f"{lag_s:.1f} s", f"{len(parts)} partitions", "bad" if lag_s > STALE_S else "good"),
        Tile(
            "oldest view of a gate", f"{max(ages):.1f} s" if ages else "no gate", f"{len(ages)} gates report"
        ),
    ]
    return Content(
        "Now",
        banner=signals_banner(engine),
        tiles=tiles,
        charts=[_stacked(amounts, "Requests by caller", filters.step_s, filters.from_s, filters.now_s)],
        tables=[_movers(request), _locks(engine), _events(request)],
    )


def callers(request: PageRequest) -> Content:
    """Returns the callers with the most of a meter, with what each had in the time before."""
    engine, filters = request.engine, request.filters
    meters = sorted(counted_meters(engine))
    ranked = _ranked(request, RANKED)
    text = filters.caller.lower()
    rows = [row for row in ranked if text in str(row["caller"]).lower()]
    about = f"By {filters.meter}, in the last {filters.span}; the first {RANKED} callers."
    amounts = traffic(
        engine,
        TrafficQuery("caller", filters.from_s, filters.now_s + 1, filters.step_s, LAYERS, filters.meter),
    )
    chart = _stacked(amounts, f"{filters.meter} by caller", filters.step_s, filters.from_s, filters.now_s)
    table = PageTable("callers", "Callers", RANK_COLUMNS, rows, "No caller was counted in this time.")
    links = PageTable(
        "meters", "Ranked by another meter", (Column("meter", "Meter"), Column("address", "Page", "text")),
        [{"meter": name, "address": filters.address("/callers", meter=name)} for name in meters],
        "Nothing was counted yet.",
    )  # fmt: skip
    return Content("Callers", about, charts=[chart], tables=[table, links] if len(meters) > 1 else [table])


def attack(request: PageRequest) -> Content:
    """Returns the traffic and that of the time before, and the addresses with the most of it."""
    engine, filters = request.engine, request.filters
    long_s = SPANS_S[filters.span]
    present = traffic(
        engine, TrafficQuery("caller", filters.from_s, filters.now_s + 1, filters.step_s, 1)
    ).whole
    earlier = traffic(
        engine, TrafficQuery("caller", filters.from_s - long_s, filters.now_s - long_s + 1, filters.step_s, 1)
    ).whole
    times = list(range(filters.from_s, filters.now_s + 1, filters.step_s))
    none = TrafficAmount()
    series = [
        ("all requests", [present.get(at_s, none).whole for at_s in times]),
        ("the time before", [earlier.get(at_s - long_s, none).whole for at_s in times]),
    ]
    chart = Chart(
        "Requests, beside the time before", "Lines: all requests now, and one span earlier.", times, series
    )
    tables = []
    for name in ADDRESS_GROUPINGS:
        if is_counted(engine, name):
            query = TrafficQuery(name, filters.from_s, filters.now_s + 1, filters.step_s, 20)
            rows = _rank_rows(traffic(engine, query), {}, {})
            columns = (
                Column("caller", "Address"), Column("value", "Counted", "count"),
                Column("share", "Share", "share"), Column("denied", "Denied", "count"),
            )  # fmt: skip
            tables.append(
                PageTable(name.replace("/", "-"), f"By {name}", columns, rows, "Nothing in this time.")
            )
    if not tables:
        hint = "Addresses are not counted: add address to groupings in [[sources]]."
        tables = [PageTable("addresses", "Addresses", (Column("caller", "Address"),), [], hint)]
    forms = [
        ActForm(
            "Lock an address or a range", "/v1/locks/lock", {},
            [Input("address", "Address or range", hint="203.0.113.0/24", required=True),
             Input("for", "For", "1h", required=True, hint="30m, 2h or 7d")], "Lock",
        )
    ]  # fmt: skip
    return Content(
        "Attack", charts=[chart], forms=forms if request.visitor.may_act("operate") else [], tables=tables
    )


def _largest(amounts: Traffic) -> int:
    return next((amount.whole for amount in amounts.keys.values()), 0)


def _stacked(amounts: Traffic, heading: str, step_s: int, from_s: int, until_s: int) -> Chart:
    times = list(range(from_s, until_s + 1, step_s))
    none = TrafficAmount()
    layers = [(key, [amounts.series[key].get(at_s, none).whole for at_s in times]) for key in amounts.keys]
    rest = [
        max(0, amounts.whole.get(at_s, none).whole - sum(values[place] for _, values in layers))
        for place, at_s in enumerate(times)
    ]
    names = ", ".join(
        f"{key} {share_text(amount.whole, amounts.total.whole)}" for key, amount in amounts.keys.items()
    )
    return Chart(
        heading, f"Stacked: {names or 'no requests in this time'}.", times, [*layers, ("all others", rest)]
    )


def _ranked(request: PageRequest, top: int) -> list[dict[str, Any]]:
    """Returns the largest callers, each with its change and its state."""
    engine, filters = request.engine, request.filters
    long_s = SPANS_S[filters.span]
    query = TrafficQuery(
        "caller", filters.now_s - long_s, filters.now_s + 1, filters.step_s, top, filters.meter
    )
    amounts = traffic(engine, query)
    last_week = query._replace(
        from_s=query.from_s - long_s, until_s=query.until_s - long_s, keys=[*amounts.keys]
    )
    earlier = traffic(engine, last_week).keys if amounts.keys else {}
    locked = {lock.key: lock.policy for lock in islice(locks_in_force(engine), LOCKS)}
    return _rank_rows(amounts, earlier, locked)


def _rank_rows(
    amounts: Traffic, earlier: Mapping[str, TrafficAmount], locked: Mapping[str, str]
) -> list[dict[str, Any]]:
    whole = amounts.total.whole
    return [
        {
            "caller": key, "value": amount.whole, "denied": amount.denied,
            "share": round(amount.whole / whole, 4) if whole else 0.0,
            "change": _change(amount.whole, earlier[key].whole) if key in earlier else "new",
            "difference": amount.whole - (earlier[key].whole if key in earlier else 0),
            "state": f"locked by {locked[key]}" if key in locked else "",
        }
        for key, amount in amounts.keys.items()
    ]  # fmt: skip


def _change(present: int, earlier: int) -> str:
    if not earlier:
        return "new"
    factor = present / earlier
    return f"{factor:.1f} times" if factor >= 2 else f"{(factor - 1) * 100:+.0f} %"


def _movers(request: PageRequest) -> PageTable:
    rows = sorted(_ranked(request, RANKED), key=lambda row: -abs(row["difference"]))[:MOVERS]
    return PageTable("movers", "Biggest movers", RANK_COLUMNS, rows, "No caller was counted in this time.")


def _locks(engine: Engine) -> PageTable:
    rows = [lock_fields(lock) for lock in islice(locks_in_force(engine), LISTED)]
    return PageTable("locks", "Locks in force", LOCK_COLUMNS, rows, "No lock is in force.")


def _events(request: PageRequest) -> PageTable:
    columns = (
        Column("at", "Time", "time"), Column("act", "Event"), Column("about", "About"), Column("who", "By"),
    )  # fmt: skip
    if not request.visitor.may("operate"):
        return PageTable(
            "events", "Newest events", columns, [], "Events need a token with the scope operate."
        )
    newest = islice(entries(request.engine), EVENTS)
    rows = [
        {"at": utc_text(entry.at.timestamp()), "act": entry.act, "about": entry.about, "who": entry.who}
        for entry in newest
    ]
    return PageTable("events", "Newest events", columns, rows, "Nothing has happened yet.")
