"""Callers: ranked by what they used, or found by a part of their name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from analyzer.callers.caller_changes import known_callers
from analyzer.callers.caller_tenants import tenants_of
from analyzer.counting.key_search import find_keys
from analyzer.counting.traffic import EMPTY, Traffic, TrafficAmount, traffic
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.counting.usage_windows import counted_meters
from analyzer.faces.pages.page_content import Column, Content, Link, PageTable, Quantity, RowOrder
from analyzer.faces.pages.page_request import ROWS, PageRequest
from analyzer.faces.pages.traffic_blocks import LAYERS, locked_callers, query_of, rank_rows, stacked
from analyzer.plan.mapping import CALLER_FIELDS
from analyzer.plan.meter_units import rounded_text
from analyzer.plan.windows import Window

PATH = "/callers"
RANKED_MAX = 1_000  # that can be paged through; files have all
INEXACT = "A caller with at most {} may be missing here; the files have all."
REFUSED_FIRST = "Of these, the most refused first."
OTHER_KINDS = ("unnamed", "forgotten", "folded")
SORTS = {"value": "size", "denied": "denied"}
TENANT_MAX = 1_000  # callers of a tenant that are ranked

COLUMNS = (
    Column("caller", "Caller", "caller", 1), Column("value", "Used", "amount"),
    Column("share", "Share", "share"),
    Column("change", "Against the time before", "count"), Column("denied", "Refused", "amount"),
    Column("tenant", "Tenant", "link"), Column("state", "State", "state"),
)  # fmt: skip


def callers(request: PageRequest) -> Content:
    """Returns the callers with the most of a meter, or those with a text in their name or of a tenant."""
    filters = request.filters
    unit, sort = request.unit(filters.meter), filters.sort if filters.sort in SORTS else "value"
    note = ""
    first = min(filters.place, RANKED_MAX - ROWS)
    query = query_of(request, "caller", first + ROWS + 1, filters.meter)
    following, begin = "", ""
    if filters.caller or filters.tenant:
        keys, note = _found(request)
        amounts = traffic(request.engine, query._replace(keys=keys, top=TENANT_MAX)) if keys else EMPTY
        amounts = _with_uncounted(amounts, keys)
        kept, first = dict(amounts.keys), 0
    else:
        amounts = traffic(request.engine, query)
        note = "" if amounts.is_exact else INEXACT.format(rounded_text(amounts.unlisted_at_most, unit))
        has_more = len(amounts.keys) > first + ROWS and first + 2 * ROWS <= RANKED_MAX
        following = (
            f"{filters.address(PATH)}{_mark(filters.address(PATH))}place={first + ROWS}" if has_more else ""
        )
        begin = filters.address(PATH) if first else ""
        kept = dict(islice(amounts.keys.items(), first, first + ROWS))
    rows = _rows(request, amounts._replace(keys=kept), unit)
    if sort == "denied":
        rows.sort(key=lambda row: -(row["denied"].value or 0))
    shown = amounts._replace(keys=dict(islice(amounts.keys.items(), LAYERS)))
    order = RowOrder(
        sort, "Ranked by what was used." if sort == "value" else REFUSED_FIRST,
        {name: filters.address(PATH, sort=name) for name in SORTS},
    )  # fmt: skip
    table = PageTable(
        "callers", "Callers", COLUMNS, rows, "No caller like this was counted in this time.", note,
        order=order, first=first, next=following, begin=begin,
        all_rows=None if filters.caller or filters.tenant else lambda: _all_rows(request, unit),
    )  # fmt: skip
    chart = stacked(request, shown, f"{filters.meter.capitalize()} by caller", unit)
    return Content("Callers", links=meter_links(request, PATH), blocks=[chart, table])


def _mark(address: str) -> str:
    return "&" if "?" in address else "?"


def meter_links(request: PageRequest, path: str) -> list[tuple[str, str, bool]]:
    """Returns links to the page by each meter that is counted; none where there is one."""
    filters = request.filters
    meters = sorted(counted_meters(request.engine), key=lambda name: (name != "requests", name))
    links = [(filters.address(path, meter=name), name, name == filters.meter) for name in meters]
    return links if len(links) > 1 else []


def _found(request: PageRequest) -> tuple[list[str], str]:
    filters, keys, note = request.filters, [], ""
    if filters.tenant:
        known = islice(known_callers(request.engine, tenant=filters.tenant), TENANT_MAX)
        keys = [caller.caller for caller in known]
        note = f"The first {TENANT_MAX:,} callers of the tenant by name." if len(keys) == TENANT_MAX else ""
        keys = [key for key in keys if filters.caller.lower() in key.lower()]
        return keys, note
    stated = (source.caller or () for source in request.context.settings.sources)
    kinds = {*CALLER_FIELDS, *OTHER_KINDS, *(kind for kinds in stated for kind in kinds)}
    found = find_keys(
        request.engine, "caller", filters.caller, kinds, filters.now_s - filters.length_s, filters.now_s + 1
    )
    return list(found.keys), found.note


def _with_uncounted(amounts: Traffic, keys: list[str]) -> Traffic:
    """Returns amounts with those keys, too, that are known and were not counted in this time."""
    uncounted = {key: TrafficAmount() for key in keys if key not in amounts.keys}
    series: dict[str, dict[int, TrafficAmount]] = {key: {} for key in uncounted}
    return amounts._replace(keys={**amounts.keys, **uncounted}, series={**amounts.series, **series})


def _rows(request: PageRequest, amounts: Traffic, unit: str | None) -> list[dict[str, Any]]:
    filters, engine = request.filters, request.engine
    keys = [*amounts.keys]
    ago_s = filters.length_s - filters.length_s % filters.step_s
    before = query_of(request, "caller", len(keys), filters.meter, ago_s=ago_s)
    earlier = traffic(engine, before._replace(keys=keys)).keys if keys else {}
    rows = rank_rows(amounts, earlier, locked_callers(engine), unit)
    tenants = tenant_links(request, keys)
    return [row | {"tenant": tenants.get(row["caller"])} for row in rows]


def tenant_links(request: PageRequest, keys: list[str]) -> dict[str, Any]:
    """Returns a link to the callers of the tenant of each caller that has one."""
    return {
        key: Link(tenant, request.filters.address(PATH, tenant=tenant, caller=""))
        for key, tenant in tenants_of(request.engine, keys).items()
    }


def _all_rows(request: PageRequest, unit: str | None) -> Iterator[Mapping[str, Any]]:
    """Yields every caller of the time with what it used, the largest first."""
    filters = request.filters
    from_s, until_s = filters.from_s, filters.now_s + 1
    query = UsageQuery(
        "caller", filters.step_s, from_s, until_s, meter=filters.meter, order="size",
        window=Window(from_s, until_s),
    )  # fmt: skip
    for row in usage_rows(request.engine, query):
        yield {
            "caller": row.key,
            "value": Quantity(row.value + row.denied, unit),
            "denied": Quantity(row.denied, unit),
        }
