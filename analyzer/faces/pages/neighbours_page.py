"""Neighbours: the callers of a route by what they use of it, and what all others get meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.counting.route_use import RouteQuery, RouteUse, busiest_resources, route_use
from analyzer.counting.usage_windows import counted_meters
from analyzer.faces.pages.lock_blocks import LENGTH
from analyzer.faces.pages.page_content import (
    ActForm,
    Chart,
    Column,
    Content,
    Layer,
    Link,
    PageTable,
    Quantity,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest, utc_text
from analyzer.faces.pages.traffic_blocks import OTHERS, locked_callers, state_of
from analyzer.judging.kinds import policy_kind
from analyzer.judging.locks.lock_outcomes import lock_outcomes
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.number_texts import share_text
from analyzer.plan.meter_units import rounded_text
from analyzer.plan.plan import Plan

PATH = "/neighbours"
ROUTES = 30
TAKERS = 7
NOT_COUNTED = "Callers are not counted by resource: add caller+resource to groupings in [[sources]]."

TAKER_COLUMNS = (
    Column("caller", "Caller", "caller", 1), Column("share", "Takes", "share"),
    Column("value", "Used", "amount"),
    Column("each", "A request takes", "amount"), Column("state", "State", "state"), Column("lock", "", "act"),
)  # fmt: skip
VICTIM_COLUMNS = (
    Column("began", "Lock began", "time"), Column("key", "Neighbour", "caller", 1),
    Column("resource", "Route", "route"), Column("policy", "Policy", "policy"),
    Column("detail", "All others, during and before", rank=3),
)  # fmt: skip


def neighbours(request: PageRequest) -> Content:
    """Returns the callers of the chosen route, the busiest one unless the filter names another."""
    filters, engine = request.filters, request.engine
    from_s, until_s = filters.from_s, filters.now_s + 1
    durations = [name for name, unit in request.context.settings.units().items() if unit == "duration"]
    meter = filters.meter
    routes = busiest_resources(engine, from_s, until_s, meter, ROUTES)
    if not routes:
        table = PageTable("routes", "Routes", ROUTE_COLUMNS, [], NOT_COUNTED)
        return Content("Neighbours", blocks=[table, _victims(request)])
    route = filters.resource or next(iter(routes))
    query = RouteQuery(route, from_s, until_s, filters.step_s, meter, TAKERS)
    others = [name for name in dict.fromkeys(["requests", *durations[:1], "errors"]) if name != meter]
    use = route_use(engine, query, others)
    unit = request.unit(meter)
    meters = sorted(counted_meters(engine), key=lambda name: (name != "requests", name))
    links = [(filters.address(PATH, meter=name), name, name == meter) for name in meters]
    return Content(
        "Neighbours",
        f"Callers of {route or '(none)'} by {meter}.",
        links=links if len(links) > 1 else [],
        tiles=_tiles(use, unit),
        blocks=[
            _takes(request, use, meter, unit), *_others_side(request, use, durations),
            _takers(request, use, meter, unit), _routes(request, routes, route, unit), _victims(request),
        ],
    )  # fmt: skip


ROUTE_COLUMNS = (
    Column("route", "Route", "link", 1), Column("value", "Used", "amount"), Column("share", "Share", "share"),
)  # fmt: skip


def _tiles(use: RouteUse, unit: str | None) -> list[Tile]:
    largest, amount = next(iter(use.callers.items()), ("", 0))
    rest = use.total - amount
    return [
        Tile("largest taker", share_text(amount, use.total), largest or "no request was counted"),
        Tile("it took", rounded_text(amount, unit)),
        Tile("all others took", rounded_text(rest, unit)),
        Tile("of the route in all", rounded_text(use.total, unit)),
    ]


def _takes(request: PageRequest, use: RouteUse, meter: str, unit: str | None) -> Chart:
    times = request.filters.times
    layers = [
        Layer(key, [use.series[key].get(meter, {}).get(at_s, 0) for at_s in times]) for key in use.callers
    ]
    whole = use.whole.get(meter, {})
    rest = [
        max(0, whole.get(at_s, 0) - sum(layer.values[place] or 0 for layer in layers))
        for place, at_s in enumerate(times)
    ]
    layers += [Layer(OTHERS, rest)] if any(rest) or not layers else []
    largest = ", ".join(
        f"{key} {share_text(amount, use.total)}" for key, amount in list(use.callers.items())[:3]
    )
    about = f"{meter.capitalize()} of the route. Largest: {largest}." if largest else "Nothing was counted."
    return Chart(f"Use of the route: {meter}", about, times, layers, unit, is_stacked=True)


def _others_side(request: PageRequest, use: RouteUse, durations: Sequence[str]) -> list[Chart]:
    """Returns the mean duration of the requests of all others, and the errors that they got."""
    if not use.callers:
        return []
    largest, times = next(iter(use.callers)), request.filters.times
    requests = _without(use, "requests", largest)
    charts = []
    if durations and durations[0] in use.whole:
        taken = _without(use, durations[0], largest)
        means = [round(taken.get(at_s, 0) / requests[at_s]) if requests.get(at_s) else None for at_s in times]
        own = use.series[largest]
        own_s, counts = own.get(durations[0], {}), own.get("requests", {})
        of_largest = [
            round(own_s.get(at_s, 0) / counts[at_s]) if counts.get(at_s) else None for at_s in times
        ]
        layers = [Layer("all others", means), Layer(largest, of_largest, "usual")]
        about = f"How long a request takes: of all others, beside those of {largest}."
        charts.append(Chart("What the others wait", about, times, layers, "duration", is_half=True))
    if "errors" in use.whole:
        errors = _without(use, "errors", largest)
        values = [errors.get(at_s, 0) for at_s in times]
        about = f"Errors of all callers but {largest}: {sum(values):,}."
        charts.append(
            Chart("Errors of the others", about, times, [Layer("errors", values, "refused")], is_half=True)
        )
    return charts


def _without(use: RouteUse, meter: str, caller: str) -> dict[int, int]:
    own = use.series.get(caller, {}).get(meter, {})
    return {at_s: value - own.get(at_s, 0) for at_s, value in use.whole.get(meter, {}).items()}


def _takers(request: PageRequest, use: RouteUse, meter: str, unit: str | None) -> PageTable:
    locked, may_act = locked_callers(request.engine), request.visitor.may_act("operate")
    rows: list[Mapping[str, Any]] = []
    for key, amount in use.callers.items():
        requests = sum(use.series[key].get("requests", {}).values())
        form = ActForm("Lock", "/v1/locks/lock", {"caller": key}, [LENGTH], "Lock")
        rows.append(
            {"caller": key, "share": amount / use.total if use.total else 0, "value": Quantity(amount, unit),
             "each": Quantity(round(amount / requests), unit) if requests and meter != "requests" else None,
             "state": state_of(key, locked), "lock": form if may_act and key not in locked else None}
        )  # fmt: skip
    return PageTable(
        "takers", "Largest takers", TAKER_COLUMNS, rows, "No request for it was counted.", is_half=True
    )


def _routes(request: PageRequest, routes: Mapping[str, int], chosen: str, unit: str | None) -> PageTable:
    total = sum(routes.values())
    rows = [
        {"route": Link(route or "(none)", request.filters.address(PATH, resource=route)),
         "value": Quantity(amount, unit), "share": amount / total if total else 0}
        for route, amount in routes.items()
    ]  # fmt: skip
    return PageTable("routes", "Routes", ROUTE_COLUMNS, rows, NOT_COUNTED, is_half=True)


def _victims(request: PageRequest) -> PageTable:
    """Returns what locks of shares have said about all others, before and during."""
    policies = [
        policy.name
        for policy in (plan_in_force(request.engine) or Plan()).policies
        if policy_kind(policy).whole_sum is not None
    ]
    since_ms = (request.filters.now_s - request.filters.length_s) * 1000
    outcomes = list(lock_outcomes(request.engine, since_ms, policies)) if policies else []
    rows = [
        {"began": utc_text(outcome.began_ms / 1000), "key": outcome.at.key, "scope": outcome.at.scope,
         "resource": outcome.at.resource or "", "policy": outcome.at.policy, "detail": outcome.detail}
        for outcome in sorted(outcomes, key=lambda outcome: -outcome.began_ms)[:50]
    ]  # fmt: skip
    empty = "No share has locked a neighbour in this time." if policies else (
        "No policy judges shares: one of kind share names the neighbour, and what the others lose."
    )  # fmt: skip
    return PageTable("victims", "Neighbours that were locked", VICTIM_COLUMNS, rows, empty)
