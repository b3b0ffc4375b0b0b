"""Policies: what each has locked, who is near to its limit, and what another limit would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, cast

from analyzer.callers.near_limits import TENTHS, LimitUse, limit_use
from analyzer.config.amounts import parsed_amount
from analyzer.faces.api.endpoints import NotThere
from analyzer.faces.pages.lock_blocks import lock_columns, lock_row
from analyzer.faces.pages.page_content import (
    ActForm,
    Banner,
    Bar,
    Block,
    Chip,
    Column,
    Content,
    Histogram,
    Mood,
    PageTable,
    Quantity,
    Tile,
)
from analyzer.faces.pages.page_request import ROWS, PageRequest
from analyzer.forecast.simulation.comparison import compare
from analyzer.forecast.simulation.policy_locks import ChangeName, PolicyLocks, changes
from analyzer.forecast.simulation.policy_simulation import Simulation
from analyzer.judging.locks.stored_locks import LockSearch, count_by_policy, count_locks, locks_in_force
from analyzer.judging.policy_answers import HISTORY_COLUMNS, listed_policies, plan_history, shown_policies
from analyzer.judging.sql.plans import plan_in_force
from analyzer.kernel.number_texts import length_text, share_text
from analyzer.kernel.sentences import plural
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import amount_text
from analyzer.plan.plan import Plan
from analyzer.plan.policies import Policy, base_name, with_limit

PATH = "/policy"
PLANS = 20
CHANGES = 50  # rows of a simulation's difference
MOODS: Mapping[ChangeName, Mood] = {
    "newly locked": "bad", "longer": "watch", "no longer locked": "good", "shorter": "good",
    "as before": "plain",
}  # fmt: skip
SIMULATED_MAX_S = 31 * 86_400
RANGE = "\N{EN DASH}"
STEPS = (0.5, 0.8, 1.0)  # of a limit, that tiles count

POLICY_COLUMNS = (
    Column("name", "Policy", "policy", 1), Column("mode", "Mode", "state"), Column("locks", "Locks", "count"),
    Column("shadow", "In shadow", "count"), Column("brake", "Brake", "state"), Column("what", "Rule", rank=3),
)  # fmt: skip
NEAR_COLUMNS = (
    Column("key", "Who", "caller", 1), Column("resource", "Route", "route"),
    Column("part", "Of its limit", "bar"),
    Column("used", "Used", "amount"), Column("limit", "Limit", "amount"), Column("state", "State", "state"),
)  # fmt: skip


def policies(request: PageRequest) -> Content:
    """Returns the policies in force with their locks, and the plans before."""
    engine, filters = request.engine, request.filters
    counts = count_by_policy(engine)
    rows = [
        row | {
            "locks": sum(number for name, (number, _) in counts.items() if name == row["name"]),
            "shadow": sum(number for name, (_, number) in counts.items() if name == row["name"]),
            "mode": Chip(str(row["mode"])),
            "brake": Chip(str(row["brake"]), "watch") if row["brake"] else None,
        }
        for row in listed_policies(engine)
        if filters.mode in ("", row["mode"]) and filters.policy.lower() in str(row["name"]).lower()
        and filters.meter in ("requests", row["meter"])
    ]  # fmt: skip
    history = [dict(zip(HISTORY_COLUMNS, row, strict=True)) for row in islice(plan_history(engine), PLANS)]
    plans = (
        Column("at", "In force since", "time", 1), Column("plan", "Plan"), Column("who", "By"),
        Column("difference", "What changed", rank=3),
    )  # fmt: skip
    return Content(
        "Policies",
        blocks=[
            PageTable("policies", "In force", POLICY_COLUMNS, rows,
                      "No policy is in force: add one to [[policies]]."),
            PageTable("plans", "Plans that came in force", plans, history, "No plan came in force yet.",
                      f"The newest {PLANS}; Audit log has all." if len(history) == PLANS else ""),
        ],
    )  # fmt: skip


def policy(request: PageRequest) -> Content:
    """Returns a policy, its candidate, and what both have done. Raises NotThere for an unknown one."""
    engine, name = request.engine, base_name(request.filters.policy)
    plan = plan_in_force(engine) or Plan()
    shown = plan.family(name)
    if not shown:
        raise NotThere("no such policy is in force")
    fields = shown_policies(engine, shown, request.filters.now_s - request.filters.length_s)
    is_held = shown[0].is_shadow or len(shown) > 1 or bool(fields[0]["brake"])
    enforce = ActForm("Enforce it", "/v1/policies/enforce", {"policy": name}, [], "Enforce")
    uses = [(judged, use) for judged in shown if (use := limit_use(engine, plan, judged)) is not None]
    blocks: list[Block] = []
    if request.filters.limit:
        blocks += _simulated(request, plan, shown[0])
    for judged, use in uses:
        blocks += _near(use, judged, len(uses) > 1)
    search = LockSearch(policy=name)
    locks = [lock_row(lock) for lock in islice(locks_in_force(engine, search=search), ROWS)]
    total = count_locks(engine, search)
    following = request.filters.address("/locks", policy=name) if total > len(locks) else ""
    blocks += [
        _outcomes(request, fields, shown),
        PageTable("locks", "Locks in force", lock_columns(request), locks, "It locks no caller at this time.",
                  total=total, next=following),
    ]  # fmt: skip
    return Content(
        name,
        "; ".join(str(answer["what"]) for answer in fields),
        banner=_banner(fields),
        forms=[enforce] if is_held and request.visitor.may_act("admin") else [],
        tiles=_tiles(request, uses, fields, total),
        blocks=blocks,
    )


def _banner(fields: Sequence[Mapping[str, Any]]) -> Banner | None:
    if fields[0]["brake"]:
        return Banner(f"Its brake acts: {fields[0]['brake']}", "watch")
    if fields[0]["mode"] == "shadow":
        return Banner("In shadow: it is judged, and no gate gets its locks.", "plain")
    return None


def _tiles(
    request: PageRequest,
    uses: Sequence[tuple[Policy, LimitUse]],
    fields: Sequence[Mapping[str, Any]],
    total: int,
) -> list[Tile]:
    name = base_name(request.filters.policy)
    in_shadow = count_locks(request.engine, LockSearch(policy=name, in_shadow=True))
    tiles = [Tile(f"mode of {answer['name']}", str(answer["mode"])) for answer in fields]
    tiles += [
        Tile("locks in force", f"{total:,}", "", "bad" if total else "plain"),
        Tile("locks in shadow", f"{in_shadow:,}"),
    ]
    for judged, use in uses[:1]:
        for step in STEPS:
            count = sum(series.part >= step for series in use.near)
            mood: Mood = "bad" if step == 1 and count else "plain"
            tiles.append(Tile(f"at {share_text(step)} of {judged.name}", f"{count:,}", _series(judged), mood))
    return tiles


def _series(judged: Policy) -> str:
    return {"caller": "callers", "tenant": "tenants"}.get(parse_grouping(judged.per).scope, "series")


def _near(use: LimitUse, judged: Policy, is_named: bool) -> list[Block]:
    """Returns a histogram of use to limit, and the series that are near to it."""
    labels = [
        f"{10 * tenth}{RANGE + str(10 * tenth + 10) if tenth < TENTHS - 1 else '+'} %"
        for tenth in range(TENTHS)
    ]
    moods = [
        "watch" if tenth in (8, 9) else "bad" if tenth == TENTHS - 1 else "plain" for tenth in range(TENTHS)
    ]
    bars = [
        Bar(label, count, f"{count:,}", cast("Any", mood))
        for label, count, mood in zip(labels, use.tenths, moods, strict=True)
    ]
    cut = " of more: the first by name" if use.is_cut else ""
    limit = amount_text(judged.limit, judged.meter_unit)
    about = (
        f"{use.series:,} {_series(judged)}{cut}, by what they have used of {limit} in the present window. "
        "Those with another limit are listed by theirs."
    )
    scope = parse_grouping(judged.per).scope
    of_policy = f" of {judged.name}" if is_named else ""
    rows = [
        {"key": series.key, "resource": series.resource, "scope": scope, "part": series.part,
         "used": Quantity(series.used, judged.meter_unit), "limit": Quantity(series.limit, judged.meter_unit),
         "state": _nearness(series.part)}
        for series in use.near
    ]  # fmt: skip
    return [
        Histogram(f"Use of the limit{of_policy}", about, bars),
        PageTable("near" + f"-{judged.name.replace('/', '-')}" * is_named, f"Near to their limit{of_policy}",
                  NEAR_COLUMNS, rows[:ROWS],
                  "None has used half of its limit.", "Half of it and more, the nearest first.",
                  total=len(rows), all_rows=lambda: rows),
    ]  # fmt: skip


def _nearness(part: float) -> Chip | None:
    return Chip("over", "bad") if part >= 1 else Chip("near", "watch") if part >= 0.8 else None


def _outcomes(
    request: PageRequest, fields: Sequence[Mapping[str, Any]], shown: Sequence[Policy]
) -> PageTable:
    """Returns what the policy and its candidate did, enforced and in shadow."""
    unit = shown[0].meter_unit
    rows = [
        {"policy": answer["name"], "action": Chip(str(outcome["action"])), "locks": outcome["locks"],
         "series": outcome["series"], "in_force": outcome["in_force"],
         "used": Quantity(outcome["used"], unit)}
        for answer in fields
        for outcome in answer["outcomes"]
    ]  # fmt: skip
    columns = (
        Column("policy", "Policy", "text", 1), Column("action", "Action", "state"),
        Column("locks", "Locks", "count"),
        Column("series", _series(shown[0]).capitalize(), "count"), Column("in_force", "In force", "count"),
        Column("used", "Came meanwhile", "amount"),
    )  # fmt: skip
    heading = f"Shadow against real, in {request.filters.time_text}"
    return PageTable("outcomes", heading, columns, rows, "It has set no lock in this time.")


def _simulated(request: PageRequest, plan: Plan, judged: Policy) -> list[Block]:
    """Returns whom the policy would have locked with another limit, beside its present one."""
    filters = request.filters
    columns = (
        Column("change", "Change", "state"), Column("key", "Who", "caller", 1),
        Column("resource", "Route", "route"),
        Column("then", "Locked now for"), Column("now", "Locked then for"),
        Column("requests", "Requests meanwhile", "count"),
    )  # fmt: skip
    heading = f"With the limit {filters.limit}"
    try:
        tried = with_limit(judged, parsed_amount(judged, filters.limit))
    except ValueError as error:
        return [PageTable("simulated", heading, columns, [], f"The limit {error}.")]
    if filters.length_s > SIMULATED_MAX_S:
        text = (
            f"A page tries at most {length_text(SIMULATED_MAX_S)}: `gatelock policies simulate` has no bound."
        )
        return [PageTable("simulated", heading, columns, [], text)]
    from_s = filters.now_s - filters.length_s
    comparison = compare(request.engine, tried, plan.meters, plan, from_s, lambda _done, _all: None)
    simulation, proposed, present = comparison.simulation, comparison.proposed, comparison.before
    if simulation is None or proposed is None:
        return [
            PageTable("simulated", heading, columns, [], f"It cannot be simulated: {comparison.refusal}.")
        ]
    before = present or PolicyLocks({}, Counter())
    scope = parse_grouping(judged.per).scope
    rows = [
        {"change": Chip(change.change, MOODS[change.change]), "key": change.of.key or "everyone",
         "scope": scope, "resource": change.of.resource,
         "then": length_text(change.then.locked_s) if change.then else "not",
         "now": length_text(change.now.locked_s) if change.now else "not",
         "requests": change.now.requests if change.now else 0}
        for change in changes(proposed, before)
        if change.change != "as before"
    ]  # fmt: skip
    limit = amount_text(judged.limit, judged.meter_unit)
    note = (
        f"In {filters.time_text} it would have locked {_sentence(judged, proposed, simulation)}; at the "
        f"present limit {limit}: {_sentence(judged, before, simulation)}."
    )
    return [
        PageTable("simulated", heading, columns, rows[:CHANGES], f"{note} No lock would differ.", note,
                  total=len(rows), all_rows=lambda: rows)
    ]  # fmt: skip


def _sentence(judged: Policy, locks: PolicyLocks, simulation: Simulation) -> str:
    share = share_text(locks.requests, simulation.requests)
    of_all = f"{locks.keys:,} of {simulation.keys:,} {_series(judged)}"
    return f"{of_all} {plural(locks.locks, 'time')}, {share} of the requests"
