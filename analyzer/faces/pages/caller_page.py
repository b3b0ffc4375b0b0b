"""One caller: its use of each policy, when it is busy, why it was locked, and what can be done."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from analyzer.callers.explained_caller import ExplainedCaller, explained_caller
from analyzer.counting.traffic import TrafficAmount, TrafficQuery, traffic
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.faces.api.endpoints import NotThere
from analyzer.faces.pages.page_content import (
    ActForm,
    Banner,
    Chart,
    Column,
    Content,
    HeatMap,
    Input,
    Mood,
    PageTable,
    Tile,
)
from analyzer.faces.pages.page_request import PageRequest, short_number
from analyzer.kernel.time_texts import format_second
from gatekeeper.model import WITHOUT_END

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MAP_S = 28 * 86_400
HOUR_S = 3_600
STATEMENTS = 3  # months
HISTORY_S = 40 * 86_400  # as long as the history of locks is kept

POLICY_COLUMNS = (
    Column("policy", "Policy", "policy"), Column("mode", "Mode"), Column("used", "Used", "count"),
    Column("limit", "Limit", "count"), Column("part", "Of the limit", "bar"),
    Column("reached", "Reached at this pace", "time"), Column("until", "Window ends", "time"),
    Column("state", "State", "state"),
)  # fmt: skip
HISTORY_COLUMNS = (
    Column("began", "Locked", "time"), Column("ended", "Until", "time"), Column("policy", "Policy", "policy"),
    Column("action", "Action"), Column("detail", "Why"), Column("overshoot", "Admitted beyond", "count"),
)  # fmt: skip
STATEMENT_COLUMNS = (
    Column("month", "Begins in"), Column("zone", "Days of"), Column("address", "Statement"),
)  # fmt: skip
RESOURCE_COLUMNS = (
    Column("resource", "Resource"), Column("requests", "Requests", "count"),
    Column("denied", "Denied", "count"),
)  # fmt: skip


def caller(request: PageRequest) -> Content:
    """Returns everything about a caller. Raises NotThere without one."""
    if not request.filters.caller:
        raise NotThere("a page about a caller needs its name: choose one from the list of callers")
    name = request.context.settings.counted_name(request.filters.caller)
    now_s = request.filters.now_s
    explained = explained_caller(request.engine, name, now_s - HISTORY_S)
    fields = cast("dict[str, Any]", explained.as_object())
    policies = [
        answer | {
            "part": _part(answer["used"], answer["limit"]),
            "limit": "unlimited" if answer["limit"] is None else answer["limit"],
            "state": "exempt" if answer["exempt"] else answer["brake"] or "",
        }
        for answer in fields["policies"]
    ]  # fmt: skip
    tables = [
        PageTable("policies", "Use of each policy", POLICY_COLUMNS, policies, "No policy judges it."),
        PageTable("resources", "Busiest resources of the last day", RESOURCE_COLUMNS, fields["resources"],
              "Resources are not counted: add caller+resource to groupings in [[sources]]."),
        _statements(request, name),
        PageTable("history", "Locks of the last 40 days", HISTORY_COLUMNS, fields["history"],
              "It was never locked."),
    ]  # fmt: skip
    return Content(
        request.filters.caller,
        _about(fields),
        banner=_banner(explained),
        tiles=_tiles(policies, fields),
        charts=[_chart(request, name)],
        cells=[_busy_hours(request, name)],
        forms=_forms(request, explained, policies) if request.visitor.may_act("operate") else (),
        tables=tables,
    )


def _statements(request: PageRequest, name: str) -> PageTable:
    """Returns the statements of the last months, one for each zone that days are closed in."""
    day, rows = datetime.fromtimestamp(request.filters.now_s, UTC).date(), []
    for _ in range(STATEMENTS):
        month = f"{day:%Y-%m}"
        rows += [
            {"month": month, "zone": zone,
             "address": "/statement?" + urlencode({"caller": name, "month": month, "zone": zone})}
            for zone in request.context.settings.billing.zones
        ]  # fmt: skip
        day = day.replace(day=1) - timedelta(days=1)
    return PageTable("statements", "Statements", STATEMENT_COLUMNS, rows, "No zone is in [billing] zones.")


def _part(used: int, limit: int | None) -> float:
    """Returns which part of a limit is used: nothing of none, and all where nothing is allowed."""
    if limit is None:
        return 0.0
    return round(used / limit, 4) if limit else 1.0


def _about(fields: dict[str, Any]) -> str:
    facts = [f"{name} {fields[name]}" for name in ("plan", "tenant") if fields[name]]
    return ", ".join(facts)


def _banner(explained: ExplainedCaller) -> Banner:
    enforced = [lock for lock in explained.standing.locks if lock.action != "shadow"]
    if enforced:
        lock = enforced[0]
        until = format_second(int(lock.until.timestamp()))
        end = "without an end" if lock.until >= WITHOUT_END else f"until {until}"
        return Banner(f"Locked by {lock.policy} {end}: {lock.detail}", "bad")
    if explained.standing.held_off:
        held_off = explained.standing.held_off[0]
        return Banner(
            f"Unlocked by {held_off.who} until {format_second(held_off.until_ms // 1000)}: {held_off.reason}",
            "watch",
        )
    if explained.absence is not None:
        sentence = str(explained.absence)
        return Banner(f"Not locked, but {sentence}{'' if sentence.endswith('?') else '.'}", "watch")
    return Banner("Not locked.", "good")


def _tiles(policies: list[dict[str, Any]], fields: dict[str, Any]) -> list[Tile]:
    nearest = max(policies, key=lambda policy: float(policy["part"]), default=None)
    tiles = []
    if nearest is not None and nearest["limit"] != "unlimited":
        left = max(0, nearest["limit"] - nearest["used"])
        mood: Mood = "bad" if nearest["part"] >= 1 else "watch" if nearest["part"] >= 0.8 else "good"
        tiles += [
            Tile("of the nearest limit", f"{100 * nearest['part']:.0f} %", nearest["policy"], mood),
            Tile("remaining", short_number(left), nearest["policy"]),
        ]
    tiles.append(Tile("locks in 40 days", f"{len(fields['history']):,}", "all policies"))
    return tiles


def _chart(request: PageRequest, name: str) -> Chart:
    filters = request.filters
    query = TrafficQuery("caller", filters.from_s, filters.now_s + 1, filters.step_s, 1, keys=[name])
    series = traffic(request.engine, query).series.get(name, {})
    times = list(range(filters.from_s, filters.now_s + 1, filters.step_s))
    none = TrafficAmount()
    layers = [
        ("admitted", [series.get(at_s, none).value for at_s in times]),
        ("denied", [series.get(at_s, none).denied for at_s in times]),
    ]
    whole = sum(amount.whole for amount in series.values())
    return Chart(
        f"Requests in the last {filters.span}",
        f"Stacked: admitted and denied, {whole:,} in all.",
        times,
        layers,
    )


def _busy_hours(request: PageRequest, name: str) -> HeatMap:
    """Returns the mean of each hour of the week, of the last four weeks."""
    now_s, zone = request.filters.now_s, ZoneInfo(request.filters.zone)
    query = UsageQuery("caller", HOUR_S, now_s - MAP_S, now_s + 1, key=name, meter="requests")
    sums: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in usage_rows(request.engine, query):
        begin = datetime.fromtimestamp(row.bucket_s, zone)
        sums[begin.weekday(), begin.hour] += row.value + row.denied
    most = max(sums.values(), default=0)
    rows = [
        (
            day,
            [
                (
                    sums[number, hour] / most if most else 0.0,
                    f"{day} {hour:02}:00: {sums[number, hour]:,} requests",
                )
                for hour in range(24)
            ],
        )
        for number, day in enumerate(DAYS)
    ]
    return HeatMap(
        "Busy hours", f"Requests by hour and weekday, last four weeks, {request.filters.zone}.", rows
    )


def _forms(request: PageRequest, explained: ExplainedCaller, policies: list[dict[str, Any]]) -> list[ActForm]:
    of_caller = {"caller": request.filters.caller}
    length = Input("for", "For", "1h", required=True, hint="30m, 2h or 7d")
    forms = []
    if any(lock.scope == "caller" and lock.action != "shadow" for lock in explained.standing.locks):
        held = Input("hold_off", "Not again before", "1h", hint="30m, 2h, 7d or none")
        forms.append(ActForm("Unlock", "/v1/locks/unlock", of_caller, [held], "Unlock"))
        forms.append(ActForm("Lock for longer", "/v1/locks/extend", of_caller, [length], "Extend"))
    else:
        forms.append(ActForm("Lock", "/v1/locks/lock", of_caller, [length], "Lock"))
    names = [policy["policy"] for policy in policies if not policy["exempt"]]
    if names:
        choice = Input("policy", "Policy", names[0], choices=names, required=True)
        amount = Input("amount", "New limit", required=True, hint="150_000 or 2 GiB")
        ends = Input("for", "For", "1d", hint="30m, 2h or 7d")
        forms.append(
            ActForm("Raise its limit", "/v1/callers/limit", of_caller, [choice, amount, ends], "Raise")
        )
    return forms
