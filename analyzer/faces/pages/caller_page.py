"""One caller: its state and what can be done, its use of each policy, when it is busy, why it was locked."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from analyzer.callers.caller_standing import PolicyUse
from analyzer.callers.explained_caller import ExplainedCaller, explained_caller
from analyzer.counting.traffic import TrafficQuery, traffic
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.counting.usage_windows import counted_meters
from analyzer.faces.api.endpoints import NotThere
from analyzer.faces.pages.caller_exceptions import exceptions_table
from analyzer.faces.pages.lock_blocks import HOLD_OFF, LENGTH
from analyzer.faces.pages.page_content import (
    ActForm,
    Banner,
    Block,
    Chart,
    Chip,
    Column,
    Content,
    HeatMap,
    Input,
    Layer,
    Link,
    Mood,
    PageTable,
    Quantity,
    Tile,
)
from analyzer.faces.pages.page_filters import POINTS_MAX, STEPS_S
from analyzer.faces.pages.page_request import PageRequest
from analyzer.faces.pages.traffic_blocks import NOTHING, REFUSED
from analyzer.kernel.number_texts import share_text
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import UNLIMITED, rounded_text
from gatekeeper.model import WITHOUT_END

PATH = "/caller"
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAP_S = 28 * 86_400
HOUR_S = 3_600
STATEMENTS = 3  # months
HISTORY_S = 40 * 86_400  # as long as the history of locks is kept
USE_CHARTS = 4  # those nearest to their limit
BRIGHT = (
    0.95  # the part of the hours that are paler than the brightest: one hot hour must not bleach the rest
)

BEYOND = "Beyond limit: what was admitted after the limit was reached and before its gates closed."

POLICY_COLUMNS = (
    Column("policy", "Policy", "policy", 1), Column("resource", "Route", "route"),
    Column("mode", "Mode", "state"),
    Column("used", "Used", "amount"),
    Column("limit", "Limit", "amount"), Column("left", "Left", "amount"),
    Column("part", "Of the limit", "bar"),
    Column("reached", "Reached at this pace", "time"), Column("until", "Window ends", "time"),
    Column("state", "State", "state"),
)  # fmt: skip
HISTORY_COLUMNS = (
    Column("began", "Locked", "time", 1), Column("ended", "Until", "time"),
    Column("policy", "Policy", "policy"),
    Column("action", "Action", "state"), Column("overshoot", "Beyond limit", "amount"),
    Column("detail", "Why", rank=3),
)  # fmt: skip
RESOURCE_COLUMNS = (
    Column("resource", "Route", "route", 1), Column("requests", "Requests", "count"),
    Column("share", "Share", "share"),
    Column("denied", "Refused", "count"),
)  # fmt: skip
METER_COLUMNS = (
    Column("meter", "Meter", rank=1), Column("value", "Used", "amount"),
    Column("each", "A request", "amount"),
    Column("denied", "Refused", "amount"),
)  # fmt: skip


def caller(request: PageRequest) -> Content:
    """Returns everything about a caller. Raises NotThere without one."""
    filters = request.filters
    if not filters.caller:
        raise NotThere("a page about a caller needs its name: choose one from the list of callers")
    name = request.context.settings.counted_name(filters.caller)
    explained = explained_caller(request.engine, name, filters.now_s - HISTORY_S)
    may_act = request.visitor.may_act("operate")
    if explained.is_unknown:
        return _unknown(request, explained)
    uses = explained.standing.uses
    blocks: list[Block] = [_policies(explained), *_use_charts(request, uses, name), _chart(request, name)]
    blocks += [exceptions_table(request, explained.standing, name)]
    blocks += [
        _routes(request, explained), _meters(request, name), _history(request, explained),
        _busy_hours(request, name), _statements(request, name),
    ]  # fmt: skip
    return Content(
        filters.caller,
        _about(explained),
        banner=_banner(explained),
        forms=_forms(request, explained) if may_act else (),
        tiles=_tiles(explained),
        blocks=blocks,
    )


def _unknown(request: PageRequest, explained: ExplainedCaller) -> Content:
    """Returns the page of a name that was never seen, with those that are like it."""
    near = list(explained.absence.near) if explained.absence else []
    rows = [{"caller": name} for name in near]
    table = PageTable(
        "near", "Names like it", (Column("caller", "Caller", "caller", 1),), rows,
        "No counted name is like it. A caller's name has its kind in front: api_key:acme.",
    )  # fmt: skip
    text = "Never seen: nothing was counted, locked or stated under this name."
    banner = Banner(text, "plain", "Search for a part of it", request.filters.address("/callers"))
    return Content(request.filters.caller, banner=banner, blocks=[table])


def _about(explained: ExplainedCaller) -> str:
    standing = explained.standing
    facts = (("plan", standing.plan), ("tenant", standing.tenant))
    return ", ".join(f"{name} {value}" for name, value in facts if value)


def _banner(explained: ExplainedCaller) -> Banner:
    enforced = [lock for lock in explained.standing.locks if lock.action != "shadow"]
    if enforced:
        lock = enforced[0]
        until = format_second(int(lock.until.timestamp()))
        end = "without an end" if lock.until >= WITHOUT_END else f"until {until}"
        policy = "by hand" if lock.policy.startswith(":") else f"by {lock.policy}"
        more = f" And {len(enforced) - 1} more." if len(enforced) > 1 else ""
        return Banner(f"Locked {policy} {end}: {lock.detail}{more}", "bad")
    if explained.standing.held_off:
        held_off = explained.standing.held_off[0]
        until = format_second(held_off.until_ms // 1000)
        return Banner(f"Unlocked by {held_off.who} until {until}: {held_off.reason}", "watch")
    if explained.absence is not None:
        sentence = str(explained.absence)
        return Banner(f"Not locked, but {sentence}{'' if sentence.endswith('?') else '.'}", "watch")
    return Banner("Not locked.", "good")


def part_of(use: PolicyUse) -> float:
    """Returns which part of its limit is used: nothing of none, and all where nothing is allowed."""
    if use.is_unlimited:
        return 0.0
    return round(use.used / use.limit, 4) if use.limit else 1.0


def _policies(explained: ExplainedCaller) -> PageTable:
    standing, rows = explained.standing, []
    for use in standing.uses:
        until = None if use.until_s is None else format_second(use.until_s)
        brake = standing.braked.get(use.policy.name)
        state = Chip("exempt") if use.is_exempt else Chip("braked", "watch") if brake else None
        rows.append(
            {
                "policy": use.policy.name, "resource": use.resource,
                "mode": Chip("shadow" if use.policy.is_shadow else "enforce"),
                "used": Quantity(use.used, use.unit),
                "limit": Quantity(None if use.is_unlimited else use.limit, use.unit),
                "left": None if use.is_unlimited else Quantity(max(0, use.limit - use.used), use.unit),
                "part": None if use.is_unlimited else part_of(use),
                "reached": None if use.reached_s is None or use.is_exempt else format_second(use.reached_s),
                "until": until or "rolling", "state": state,
            }
        )  # fmt: skip
    return PageTable("policies", "Use of each policy", POLICY_COLUMNS, rows, "No policy judges it.")


def _tiles(explained: ExplainedCaller) -> list[Tile]:
    tiles = []
    judged = [use for use in explained.standing.uses if not (use.is_unlimited or use.is_exempt)]
    nearest = max(judged, key=part_of, default=None)
    if nearest is not None:
        part, name = part_of(nearest), nearest.policy.name
        mood: Mood = "bad" if part >= 1 else "watch" if part >= 0.8 else "plain"
        left = rounded_text(max(0, nearest.limit - nearest.used), nearest.unit)
        tiles += [
            Tile(
                "of the nearest limit",
                share_text(nearest.used, nearest.limit) if nearest.limit else "100 %",
                name,
                mood,
            ),
            Tile("left", left, f"of {rounded_text(nearest.limit, nearest.unit)}"),
        ]
    requests = sum(row[1] for row in explained.resources)
    denied = sum(row[2] for row in explained.resources)
    if requests or denied:
        tiles.append(Tile("refused", share_text(denied, requests + denied), "busiest routes, last day"))
    tiles.append(Tile("locks in 40 days", f"{len(explained.history):,}", "all policies"))
    return tiles


def _use_charts(request: PageRequest, uses: Any, name: str) -> list[Chart]:
    """Returns the use of windows of the calendar so far, with the limit, and where it leads at this pace."""
    drawn = [
        use for use in uses
        if use.until_s is not None and use.key == name and not use.resource and not use.is_unlimited
        and use.until_s < WITHOUT_END.timestamp() and parse_grouping(use.policy.per).is_of_callers
    ]  # fmt: skip
    nearest = sorted(drawn, key=part_of, reverse=True)[:USE_CHARTS]
    charts = [_use_chart(request, use, name) for use in nearest]
    halves = len(charts) - len(charts) % 2  # an odd one takes the whole width
    return [chart._replace(is_half=place < halves) for place, chart in enumerate(charts)]


def _use_chart(request: PageRequest, use: PolicyUse, name: str) -> Chart:
    until_s = use.until_s or 0  # of a calendar, which has one
    begin_s, now_s = until_s - use.window_s, request.filters.now_s
    step_s = next((step_s for step_s in STEPS_S if use.window_s / step_s <= POINTS_MAX), STEPS_S[-1])
    counted: defaultdict[int, int] = defaultdict(int)
    query = UsageQuery("caller", step_s, begin_s, now_s + 1, key=name, meter=use.policy.meter)
    for row in usage_rows(request.engine, query):
        counted[row.bucket_s] += row.value
    times = [*range(begin_s - begin_s % step_s, until_s, step_s), until_s]
    so_far, sums = 0, []
    for at_s in times:
        so_far += counted[at_s]
        sums.append(so_far)
    # Buckets are not what is judged: their shape is drawn, up to the total that is.
    scale = use.used / so_far if so_far else 0.0
    shown = [round(value * scale) if at_s <= now_s else None for at_s, value in zip(times, sums, strict=True)]
    elapsed_s = max(1, now_s - begin_s)
    pace = [
        round(use.used * max(0, at_s - begin_s) / elapsed_s) if at_s + step_s > now_s else None
        for at_s in times
    ]
    limit, until = rounded_text(use.limit, use.unit), format_second(until_s)
    about = f"{share_text(use.used, use.limit)} of {limit} used; the window ends {until}."
    if use.reached_s is not None and not use.is_exempt:
        about += f" Reached at {format_second(use.reached_s)} at this pace."
    layers = [Layer("at this pace", pace, "forecast"), Layer("used", shown)]
    return Chart(f"Use of {use.policy.name}", about, times, layers, use.unit, limit=use.limit)


def _chart(request: PageRequest, name: str) -> Chart:
    filters = request.filters
    query = TrafficQuery("caller", filters.from_s, filters.now_s + 1, filters.step_s, 1, keys=[name])
    series, times = traffic(request.engine, query).series.get(name, {}), filters.times
    denied = [series.get(at_s, NOTHING).denied for at_s in times]
    layers = [Layer("admitted", [series.get(at_s, NOTHING).value for at_s in times])]
    layers += [Layer(REFUSED, denied, "refused")] if any(denied) else []
    whole = sum(amount.whole for amount in series.values())
    about = f"{whole:,} requests in {filters.time_text}, {share_text(sum(denied), whole)} refused."
    return Chart("Requests", about, times, layers, is_stacked=True)


def _routes(request: PageRequest, explained: ExplainedCaller) -> PageTable:
    whole = sum(requests + denied for _, requests, denied in explained.resources)
    rows = [
        {"resource": resource, "requests": requests, "denied": denied,
         "share": (requests + denied) / whole if whole else 0}
        for resource, requests, denied in explained.resources
    ]  # fmt: skip
    return PageTable(
        "resources", "Busiest routes of the last day", RESOURCE_COLUMNS, rows,
        "Resources are not counted: add caller+resource to groupings in [[sources]].", is_half=True,
    )  # fmt: skip


def _meters(request: PageRequest, name: str) -> PageTable:
    """Returns what it used of each meter: statuses and errors, where meters count them."""
    filters, rows = request.filters, []
    requests = 0
    for meter in sorted(counted_meters(request.engine), key=lambda meter: (meter != "requests", meter)):
        query = TrafficQuery(
            "caller", filters.from_s, filters.now_s + 1, filters.step_s, 1, meter, keys=[name]
        )
        amount, unit = traffic(request.engine, query).keys.get(name, NOTHING), request.unit(meter)
        requests = amount.value if meter == "requests" else requests
        per_request = Quantity(round(amount.value / requests), unit) if requests and unit else None
        rows.append(
            {
                "meter": meter,
                "value": Quantity(amount.value, unit),
                "denied": Quantity(amount.denied, unit),
                "each": per_request,
            }
        )
    return PageTable(
        "meters", f"What was counted in {filters.time_text}", METER_COLUMNS, rows, "Nothing was counted.",
        is_half=True,
    )  # fmt: skip


def _history(request: PageRequest, explained: ExplainedCaller) -> PageTable:
    units = {use.policy.name: use.unit for use in explained.standing.uses}
    rows = [
        {
            "began": format_second(lock.began_ms // 1000),
            "ended": "in force" if lock.ended_ms is None else format_second(lock.ended_ms // 1000),
            "policy": lock.at.policy, "detail": lock.detail,
            "action": Chip(lock.action, "bad" if lock.action == "deny" else "plain"),
            "overshoot": None if lock.overshoot is None
            else Quantity(lock.overshoot, units.get(lock.at.policy)),
        }
        for lock in explained.past
    ]  # fmt: skip
    return PageTable(
        "history", "Locks of the last 40 days", HISTORY_COLUMNS, rows, "It was never locked.",
        BEYOND if rows else "",
    )  # fmt: skip


def _busy_hours(request: PageRequest, name: str) -> HeatMap:
    """Returns the mean of each hour of the week, of the last four weeks."""
    now_s, zone = request.filters.now_s, ZoneInfo(request.filters.zone)
    query = UsageQuery("caller", HOUR_S, now_s - MAP_S, now_s + 1, key=name, meter="requests")
    sums: defaultdict[tuple[int, int], int] = defaultdict(int)
    first_s = now_s
    for row in usage_rows(request.engine, query):
        begin = datetime.fromtimestamp(row.bucket_s, zone)
        sums[begin.weekday(), begin.hour] += row.value + row.denied
        first_s = min(first_s, row.bucket_s)
    weeks = max(1, -(-(now_s - first_s) // (7 * 86_400)))
    ranked = sorted(value for value in sums.values() if value)
    most = ranked[min(len(ranked) - 1, int(BRIGHT * len(ranked)))] if ranked else 1
    rows = [
        (
            day,
            [
                (
                    min(1.0, sums[number, hour] / most),
                    f"{day} {hour:02}:00: {sums[number, hour] / weeks:,.0f} requests",
                )
                for hour in range(24)
            ],
        )
        for number, day in enumerate(DAYS)
    ]
    about = f"Mean requests of each hour of the week, of {plural(weeks, 'week')}, {request.filters.zone}."
    return HeatMap("Busy hours", about, rows, is_half=True)


def _statements(request: PageRequest, name: str) -> PageTable:
    """Returns the statements of the last months, one for each zone that days are closed in."""
    day, rows = datetime.fromtimestamp(request.filters.now_s, UTC).date(), []
    for _ in range(STATEMENTS):
        month = f"{day:%Y-%m}"
        rows += [
            {"month": Link(month, "/statement?" + urlencode({"caller": name, "month": month, "zone": zone})),
             "zone": zone}
            for zone in request.context.settings.billing.zones
        ]  # fmt: skip
        day = day.replace(day=1) - timedelta(days=1)
    columns = (Column("month", "Begins in", "link", 1), Column("zone", "Days of"))
    return PageTable(
        "statements", "Statements", columns, rows, "No zone is in [billing] zones.", is_half=True
    )


def _forms(request: PageRequest, explained: ExplainedCaller) -> list[ActForm]:
    of_caller = {"caller": request.filters.caller}
    forms = []
    if any(lock.scope == "caller" and lock.action != "shadow" for lock in explained.standing.locks):
        forms.append(ActForm("Unlock", "/v1/locks/unlock", of_caller, [HOLD_OFF], "Unlock"))
        forms.append(ActForm("Lock for longer", "/v1/locks/extend", of_caller, [LENGTH], "Extend"))
    else:
        forms.append(ActForm("Lock", "/v1/locks/lock", of_caller, [LENGTH], "Lock"))
    judged = [use for use in explained.standing.uses if not use.is_exempt and use.limit < UNLIMITED]
    judged.sort(key=lambda use: (use.policy.is_shadow, -part_of(use)))  # the one that locks is chosen
    names = list(dict.fromkeys(use.policy.name for use in judged))
    if names:
        choice = Input("policy", "Policy", names[0], choices=names, required=True)
        ends = Input("for", "For", "1d", hint="30m, 2h or 7d")
        amount = Input("amount", "New limit", required=True, hint="150_000 or 2 GiB")
        more = Input("amount", "More", "+", required=True, hint="+5_000")
        forms.append(
            ActForm("Raise its limit", "/v1/callers/limit", of_caller, [choice, amount, ends], "Raise")
        )
        forms.append(ActForm("Grant more", "/v1/callers/limit", of_caller, [choice, more, ends], "Grant"))
    ends = Input("for", "For", "7d", hint="30m, 2h or 7d")
    forms.append(ActForm("Exempt", "/v1/callers/allow", of_caller, [ends], "Exempt"))
    return forms
