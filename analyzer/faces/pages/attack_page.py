"""Attack: the rate against its band, callers that are new, and networks with how many addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from analyzer.counting.traffic import Traffic, traffic
from analyzer.counting.usage import is_counted
from analyzer.faces.pages.lock_blocks import LENGTH
from analyzer.faces.pages.locks_page import lock_forms
from analyzer.faces.pages.page_content import (
    ActForm,
    Banner,
    Block,
    Chart,
    Column,
    Content,
    Layer,
    PageTable,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest
from analyzer.faces.pages.traffic_blocks import (
    WEEK_S,
    locked_callers,
    query_of,
    rank_rows,
    state_of,
    whole_line,
)
from analyzer.kernel.number_texts import count_text, share_text
from analyzer.kernel.sentences import plural

PATH = "/attack"
WEEKS = 4  # whose same hours make the band
ADDRESSES = 2_000  # that are sorted into networks
NETWORKS = 12
NEW = 100  # callers with the most, of which those are shown that were not counted before
BEFORE_S = 7 * 86_400
NOT_COUNTED = "Addresses are not counted: add address to groupings in [[sources]]."
HEADINGS = {"address": "Addresses", "address/24": "IPv4 networks (/24)", "address6/56": "IPv6 networks (/56)"}
UNNAMED = {"address/24": "IPv6 and unnamed", "address6/56": "IPv4 and unnamed"}


def attack(request: PageRequest) -> Content:
    """Returns the traffic beside its usual band, and where it comes from."""
    amounts = traffic(request.engine, query_of(request, "caller", NEW))
    weeks = [
        traffic(request.engine, query_of(request, "caller", 1, ago_s=number * WEEK_S))
        for number in range(1, WEEKS + 1)
    ]
    known = [(number, week) for number, week in enumerate(weeks, 1) if week.whole]
    blocks: list[Block] = [_band(request, amounts, known), _new_callers(request, amounts)]
    by_address = _addresses(request)
    blocks += by_address or [
        PageTable("addresses", "Addresses", (Column("caller", "Address"),), [], NOT_COUNTED)
    ]
    return Content(
        "Attack",
        banner=_banner(request, amounts, known),
        tiles=_tiles(request, amounts, known),
        forms=lock_forms()[1:2] if request.visitor.may_act("operate") else (),
        blocks=blocks,
    )


def _lines(request: PageRequest, known: Sequence[tuple[int, Traffic]]) -> list[list[int]]:
    times = request.filters.times
    return [whole_line(week, times, number * WEEK_S) for number, week in known]


def _band(request: PageRequest, amounts: Traffic, known: Sequence[tuple[int, Traffic]]) -> Chart:
    times, lines = request.filters.times, _lines(request, known)
    layers = [Layer("requests", whole_line(amounts, times))]
    about = "Requests. Nothing was counted in the same hours of the weeks before, so there is no usual band."
    if lines:
        layers += [
            Layer("most of the same hours", [max(values) for values in zip(*lines, strict=True)], "usual"),
            Layer("least of the same hours", [min(values) for values in zip(*lines, strict=True)], "usual"),
        ]
        weeks = plural(len(lines), "week")
        about = f"Requests, between the least and the most of the same hours of the last {weeks}."
    return Chart("Rate against its band", about, times, layers[::-1])


def _banner(request: PageRequest, amounts: Traffic, known: Sequence[tuple[int, Traffic]]) -> Banner | None:
    """Returns whether the traffic is above what it ever was in the same hours."""
    most = max((week.total.whole for _, week in known), default=0)
    whole = amounts.total.whole
    if not most:
        return None
    if whole > 1.5 * most:
        times = count_text(round(whole / most, 1))
        return Banner(f"{times} times the most of the same hours of the last weeks.", "bad")
    return Banner("Within what the same hours of the last weeks had.", "good")


def _tiles(request: PageRequest, amounts: Traffic, known: Sequence[tuple[int, Traffic]]) -> list[Tile]:
    total, length_s, times = amounts.total, request.filters.length_s, request.filters.times
    most = max((week.total.whole for _, week in known), default=0)
    line = whole_line(amounts, times)
    peak = max(line, default=0) / request.filters.step_s
    return [
        Tile("requests per second", count_text(round(total.whole / length_s, 1)), "mean of the time",
             line=line),
        Tile("highest step", count_text(round(peak, 1)), "requests per second"),
        Tile("most of the same hours", count_text(round(most / length_s, 1)) if most else "unknown",
             "requests per second"),
        Tile("refused", share_text(total.denied, total.whole), f"{total.denied:,} requests"),
    ]  # fmt: skip


def _new_callers(request: PageRequest, amounts: Traffic) -> PageTable:
    """Returns those of the largest callers that were not counted in the week before."""
    columns = (
        Column("caller", "Caller", "caller", 1), Column("value", "Requests", "amount"),
        Column("share", "Share", "share"), Column("denied", "Refused", "amount"),
        Column("state", "State", "state"),
        Column("lock", "", "act"),
    )  # fmt: skip
    keys = [*amounts.keys]
    query = query_of(request, "caller", len(keys))
    before = query._replace(from_s=query.from_s - BEFORE_S, until_s=query.from_s, step_s=BEFORE_S, keys=keys)
    earlier = traffic(request.engine, before).keys if keys else {}
    locked = locked_callers(request.engine)
    rows = [
        row | {"lock": _lock(request, {"caller": row["caller"]}, row["caller"] in locked)}
        for row in rank_rows(amounts, {}, locked, None)
        if row["caller"] not in earlier
    ][:NETWORKS]
    note = f"Of the {NEW} largest, those that were not counted in the 7 days before."
    return PageTable("new", "New callers", columns, rows, "All of the largest callers are known.", note)


def _lock(request: PageRequest, fixed: Mapping[str, str], is_locked: bool) -> ActForm | None:
    if is_locked or not request.visitor.may_act("operate"):
        return None
    return ActForm("Lock", "/v1/locks/lock", fixed, [LENGTH], "Lock")


def _addresses(request: PageRequest) -> list[PageTable]:
    """Returns the networks and addresses with the most, as far as they are counted."""
    engine, locked, tables = request.engine, locked_callers(request.engine), []
    counted = [name for name in HEADINGS if is_counted(engine, name)]
    addresses = traffic(engine, query_of(request, "address", ADDRESSES)) if "address" in counted else None
    for name in reversed(counted):
        amounts = (
            addresses
            if name == "address" and addresses
            else traffic(engine, query_of(request, name, NETWORKS))
        )
        columns = (
            Column("network", "Network" if name != "address" else "Address", rank=1),
            *([Column("addresses", "Addresses", "count")] if name != "address" and addresses else []),
            Column("value", "Requests", "amount"), Column("share", "Share", "share"),
            Column("denied", "Refused", "amount"), Column("state", "State", "state"),
            Column("lock", "", "act"),
        )  # fmt: skip
        members = _members(name, addresses)
        rows: list[dict[str, Any]] = []
        for row in rank_rows(amounts, {}, locked, None)[:NETWORKS]:
            key = row["caller"]
            address = key.removeprefix("address:")
            is_network = key and _is_network(address)
            lock = _lock(request, {"address": address}, address in locked) if is_network else None
            rows.append(row | {"network": address or UNNAMED.get(name, "without an address"),
                               "addresses": members.get(address), "lock": lock,
                               "state": state_of(address, locked)})  # fmt: skip
        note = f"Addresses among the {ADDRESSES:,} with the most." if members else ""
        tables.append(
            PageTable(name.replace("/", "-"), HEADINGS[name], columns, rows, "Nothing in this time.", note,
                      is_half=name != "address")
        )  # fmt: skip
    return tables


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _members(name: str, addresses: Traffic | None) -> dict[str, int]:
    """Returns how many addresses of the largest ones lie in each network."""
    if addresses is None or name == "address":
        return {}
    length, version = (24, 4) if name == "address/24" else (56, 6)
    members: dict[str, int] = {}
    for key in addresses.keys:
        try:
            address = ip_address(key.removeprefix("address:").partition("/")[0])
        except ValueError:
            continue
        if address.version == version:
            network = str(ip_network((address, length), strict=False))
            members[network] = members.get(network, 0) + 1
    return members
