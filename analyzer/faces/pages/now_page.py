"""The first page: is something wrong, who sends most, what has changed, and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from analyzer.counting.traffic import Traffic, TrafficQuery, traffic
from analyzer.faces.pages.lock_blocks import lock_columns, lock_row
from analyzer.faces.pages.page_content import (
    Chip,
    Column,
    Content,
    PageTable,
    Quantity,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest, utc_text
from analyzer.faces.pages.signals_page import signals_banner
from analyzer.faces.pages.traffic_blocks import (
    LAYERS,
    NOTHING,
    WEEK_S,
    change_text,
    locked_callers,
    query_of,
    stacked,
    state_of,
    whole_line,
)
from analyzer.faces.signals.status import InstallationStatus, installation_status
from analyzer.flush.followed_partitions import FollowedPartition, followed
from analyzer.gates.gate_answers import listed_gates
from analyzer.judging.locks.stored_locks import LockSearch, count_locks, locks_in_force, newest_changes
from analyzer.kernel.database.audit_log import entries
from analyzer.kernel.database.revisions import head
from analyzer.kernel.number_texts import count_text, length_text, share_text
from analyzer.kernel.sentences import plural

STALE_S = 60.0  # of lag, from which on the pages say that they are late
COMPARED = 100  # callers with the most, of this time and of the earlier one
MOVERS = 6  # up, and as many down
LISTED = 10  # locks
EVENTS = 12

EVENT_COLUMNS = (
    Column("at", "Time", "time", 2), Column("act", "Event", "state", 2), Column("about", "About", rank=1),
    Column("who", "By"), Column("why", "Why", rank=3),
)  # fmt: skip


def now(request: PageRequest) -> Content:
    """Returns the first page: the state of the installation, its traffic and what changed."""
    engine = request.engine
    amounts = traffic(engine, query_of(request, "caller", COMPARED))
    earlier, ago = _earlier(request)
    status, parts = installation_status(engine, head()), followed(engine)
    shown = amounts._replace(keys=dict(islice(amounts.keys.items(), LAYERS)))
    search = LockSearch()
    locks = [lock_row(lock) for lock in islice(locks_in_force(engine, search=search), LISTED)]
    locks_table = PageTable(
        "locks", "Locks in force", lock_columns(request), locks, "No lock is in force.",
        total=count_locks(engine, search), next=request.filters.address("/locks"),
    )  # fmt: skip
    if len(locks) == locks_table.total:
        locks_table = locks_table._replace(next="")
    up, down = _movers(request, amounts, earlier, ago)
    return Content(
        "Now",
        banner=signals_banner(engine),
        tiles=_tiles(request, amounts, earlier, status, parts),
        blocks=[stacked(request, shown, "Requests by caller"), up, down, locks_table, _events(request)],
    )


def _earlier(request: PageRequest) -> tuple[Traffic, str]:
    """Returns the traffic of these hours a week ago; where nothing was counted, that of the time before."""
    week = traffic(request.engine, query_of(request, "caller", COMPARED, ago_s=WEEK_S))
    if week.whole or request.filters.length_s > WEEK_S:
        return week, "a week ago"
    length_s = request.filters.length_s
    steps_s = length_s - length_s % request.filters.step_s
    before = traffic(request.engine, query_of(request, "caller", COMPARED, ago_s=steps_s))
    return before, "the time before"


def _tiles(
    request: PageRequest,
    amounts: Traffic,
    earlier: Traffic,
    status: InstallationStatus,
    parts: Iterable[FollowedPartition],
) -> list[Tile]:
    filters, times, total = request.filters, request.filters.times, amounts.total
    ages = [
        age
        for gate in listed_gates(request.engine).as_objects()
        if isinstance(age := gate.get("age_s"), int | float)
    ]
    lag_s = max((part.behind_s for part in parts), default=0.0)
    minute_s = filters.now_s - filters.now_s % 60 - 60
    last = traffic(request.engine, TrafficQuery("caller", minute_s, minute_s + 60, 60, 1)).total
    usual = sum(amount.whole for amount in earlier.whole.values()) / filters.length_s
    ago_s = min((at_s for at_s in times), default=0) - min(earlier.whole, default=0)
    is_week = abs(ago_s) > 6 * 86_400
    largest = next(iter(amounts.keys), "")
    locked = sum(status.active_locks.values())
    denied = [amounts.whole.get(at_s, NOTHING).denied for at_s in times]
    share = largest and share_text(amounts.keys[largest].whole, total.whole)
    of_largest = amounts.series.get(largest, {})
    number = len(list(parts))
    return [
        Tile(
            "requests per second", count_text(round(last.whole / 60, 1)),
            f"usual {count_text(round(usual, 1))}" if usual else "last whole minute",
            line=whole_line(amounts, times), usual=whole_line(earlier, times, WEEK_S) if is_week else (),
        ),
        Tile(
            "largest caller", share or "none", largest or "no request was counted",
            line=[of_largest.get(at_s, NOTHING).whole for at_s in times],
            address=filters.address("/caller", caller=largest) if largest else "",
        ),
        Tile(
            "refused", share_text(total.denied, total.whole), f"{plural(total.denied, 'request')}",
            line=denied if any(denied) else (),
        ),
        Tile("locks", f"{locked:,}", "in force", "bad" if locked else "plain", address="/locks"),
        Tile("lag", length_text(round(lag_s, 1)), plural(number, "partition"),
             "bad" if lag_s > STALE_S else "plain"),
        Tile("oldest view", length_text(round(max(ages), 1)) if ages else "no gate",
             plural(len(ages), "gate") if ages else "no gate reports", address="/gates"),
    ]  # fmt: skip


def _movers(
    request: PageRequest, amounts: Traffic, earlier: Traffic, ago: str
) -> tuple[PageTable, PageTable]:
    """Returns the callers whose requests have grown most, and those whose have shrunk most."""
    engine, locked = request.engine, locked_callers(request.engine)
    present, past = dict(amounts.keys), dict(earlier.keys)
    span_s = request.filters.now_s - request.filters.from_s
    if gone := [key for key in past if key not in present]:
        query = query_of(request, "caller", len(gone))._replace(keys=gone, step_s=span_s + 1)
        present |= traffic(engine, query).keys
    if new := [key for key in present if key not in past]:
        query = query_of(request, "caller", len(new), ago_s=_ago_s(request, ago))
        past |= traffic(engine, query._replace(keys=new, step_s=span_s + 1)).keys
    rows: list[dict[str, Any]] = []
    for key in present.keys() | past.keys():
        then, is_now = past.get(key, NOTHING).whole, present.get(key, NOTHING).whole
        rows.append(
            {"caller": key, "value": Quantity(is_now), "then": Quantity(then), "difference": is_now - then,
             "change": change_text(is_now, then), "state": state_of(key, locked)}
        )  # fmt: skip
    columns = (
        Column("caller", "Caller", "caller", 1), Column("value", "Requests", "amount"),
        Column("then", ago.capitalize(), "amount"), Column("change", "Change", "count"),
        Column("state", "State", "state"),
    )  # fmt: skip
    up = sorted((row for row in rows if row["difference"] > 0), key=_by_difference, reverse=True)[:MOVERS]
    down = sorted((row for row in rows if row["difference"] < 0), key=_by_difference)[:MOVERS]
    return (
        PageTable("up", f"Up against {ago}", columns, up, f"No caller sends more than {ago}.", is_half=True),
        PageTable(
            "down", f"Down against {ago}", columns, down, f"No caller sends less than {ago}.", is_half=True
        ),
    )


def _ago_s(request: PageRequest, ago: str) -> int:
    length_s = request.filters.length_s
    return WEEK_S if ago == "a week ago" else length_s - length_s % request.filters.step_s


def _by_difference(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["difference"], row["caller"]


def _events(request: PageRequest) -> PageTable:
    """Returns the newest locks, lifts and acts; acts need the scope operate."""
    changes = [
        {"at": utc_text(change.at_ms / 1000),
         "act": Chip("locked", "bad") if change.is_set else Chip("lifted"),
         "about": " ".join(filter(None, (change.lock.key or change.lock.scope, change.lock.resource))),
         "who": change.lock.policy.removeprefix(":"), "why": change.detail}
        for change in newest_changes(request.engine, EVENTS)
    ]  # fmt: skip
    acts = [
        {"at": utc_text(entry.at.timestamp()), "act": Chip(entry.act), "about": entry.about,
         "who": entry.who, "why": entry.why}
        for entry in (islice(entries(request.engine), EVENTS) if request.visitor.may("operate") else ())
    ]  # fmt: skip
    newest = sorted([*changes, *acts], key=lambda row: str(row["at"]), reverse=True)[:EVENTS]
    return PageTable("events", "Newest events", EVENT_COLUMNS, newest, "Nothing has happened yet.")
