"""Checks of policies and overrides: their meters, their units, and windows that can be judged in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.parsed_tables import ParsedTables, listed, map_it
from analyzer.config.share_checks import SHARE_KEYS, rate_faults, share_faults, surge_share_faults
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.limit_overrides import OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import SURGE_S_MAX, LimitReadings, PolicyTable
from analyzer.config.tables.shares import PART
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import format_duration, suggestion
from analyzer.delays.delay_bound import own_delay
from analyzer.delays.delay_parts import delay_max_s
from analyzer.judging.kinds import policy_kind
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import CALLER, parse_grouping
from analyzer.plan.meter_units import EXAMPLES, NOUNS, Unit
from analyzer.plan.meters import JOINS, REQUESTS
from analyzer.plan.windows import HOUR_S, Calendar

YEAR_S = Calendar("year").longest_s


def policy_faults(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of a policy: its meter, its kind, and windows that are too short."""
    if policy.kind != "share" and not policy.limit.stated:
        yield KeyFault((*path, "limit"), "is missing", "write limit = 100_000")
    yield from _meter_of_policy(path, policy, tables)
    if policy.window.per == "year" and tables.retention.quarters < YEAR_S:
        problem = "is shorter than a year, of which a policy has its window"
        yield KeyFault(("retention", "quarters"), problem, 'write quarters = "400d"')
    if policy.kind == "surge":
        meters = {meter.name: meter for meter in tables.meters.values()}
        fields = [source.fields for source in tables.sources.values()]
        yield from surge_share_faults(path, policy, meters, fields)
    denies = policy.action.does not in ("tag", "notify") and not policy.soft
    if "status" in policy.model_fields_set and (policy.action.status or not denies):
        does = "soft" if policy.soft else quote(policy.action.does)
        problem = f"has no effect: {does} does not deny requests"
        if denies:
            problem = "is set here and in the action"
        yield KeyFault((*path, "status"), problem, "remove it")
    for dimension in parse_grouping(policy.per).dimensions:
        lacking = [source for source in tables.sources.values() if dimension.field not in source.fields.names]
        if dimension != CALLER and lacking:
            yield KeyFault(
                (*path, "per"),
                f"{quote(policy.per)} needs the field {dimension.field} in {listed(lacking)}",
                map_it(dimension.field),
            )
    yield from _kind(path, policy)
    yield from _notices(path, policy)
    shares = list(_share(path, policy, tables.sources)) if policy.kind == "share" else []
    yield from shares
    if not shares:
        yield from _delay(path, policy, tables.analyzer)


def mode_faults(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of the mode, of the brake, and of a candidate those that its policy does not have."""
    for key in ("mode", "candidate", "brake"):
        if key in policy.model_fields_set and (policy.soft or policy.action.does == "notify"):
            yield KeyFault((*path, key), "has no effect: the policy sets no lock", "remove it")
            return
    candidate_path = (*path, "candidate")
    of_policy = {(fault.at[len(path) :], fault.what) for fault in policy_faults(path, policy, tables)}
    for candidate in policy.with_candidate[1:]:
        assert policy.candidate is not None  # noqa: S101 - it has one
        fields_set, readings = policy.candidate.model_fields_set, policy.candidate.limit.stated
        if all(getattr(candidate, key) == getattr(policy, key) for key in fields_set):
            yield KeyFault(candidate_path, "is equal to its policy", "change a value of it, or remove it")
            return
        if readings and (PART in readings) is not (policy.kind == "share"):
            problem = f"is not written as the limit of a {policy.kind} is"
            yield KeyFault(
                (*candidate_path, "limit"), problem, "write it as the limit of the policy is written"
            )
            return
        for fault in policy_faults(candidate_path, candidate, tables):
            subpath = fault.at[len(candidate_path) :]
            if (subpath, fault.what) not in of_policy:
                yield fault if subpath and subpath[0] in fields_set else fault._replace(at=candidate_path)


def _meter_of_policy(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of a meter that policies cannot judge, and of a limit without the unit of its meter."""
    meters = {meter.name: meter for meter in tables.meters.values()}
    if policy.meter in meters and not JOINS[meters[policy.meter].join].in_buckets:
        yield from _distinct_of_policy(path, policy, meters[policy.meter])
    elif (
        policy.meter in meters
        and not JOINS[meters[policy.meter].join].adds_up
        and policy.window.rolling is not None
    ):
        join = JOINS[meters[policy.meter].join]
        yield KeyFault(
            (*path, "meter"),
            f"{quote(policy.meter)} keeps the {join.phrase} values, which a rolling window cannot add up",
            'write a calendar period, window = { per = "day" }, or name a meter that counts or sums',
        )
    elif policy.meter != REQUESTS.name and policy.meter not in meters:
        cure = suggestion(
            policy.meter, [REQUESTS.name, *meters], f"add [[meters]] with name = {quote(policy.meter)}"
        )
        yield KeyFault((*path, "meter"), f"no meter is named {quote(policy.meter)}", cure)
    elif policy.meter == REQUESTS.name:
        yield from _amount_units(path, policy, None)
    else:
        fields = [source.fields for source in tables.sources.values()]
        meter = meters[policy.meter]
        if meter.field is None or any(meter.field in mapped.plain for mapped in fields):
            yield from _amount_units(path, policy, meter.unit(fields))


def _distinct_of_policy(path: KeyPath, policy: PolicyTable, meter: MeterTable) -> Iterator[KeyFault]:
    """Faults of a policy on a meter of distinct values, which has no unit."""
    if policy.kind == "share":
        problem = f"{quote(policy.meter)} counts distinct values, which cannot be divided"
        yield KeyFault((*path, "meter"), problem, "name a meter that counts or sums")
        return
    if policy.window.is_by_caller:
        problem = f"{quote(policy.meter)} counts distinct values, which cannot be moved to another window"
        yield KeyFault((*path, "window"), problem, "name one zone, and remove anchor")
    if policy.window.rolling is not None and policy.window.rolling > HOUR_S:
        problem = (
            f"{quote(policy.meter)} counts distinct values, which are kept for rolling windows of at most 1h"
        )
        cure = 'write window = { rolling = "1h" } or less, or a calendar period: window = { per = "day" }'
        yield KeyFault((*path, "window"), problem, cure)
    if policy.kind == "surge" and parse_grouping(policy.per).scope == "range" and meter.distinct != "address":
        # Of other values it is not known from how many addresses of the network they come.
        problem = f"{quote(policy.per)} would be locked for what one of its addresses does"
        yield KeyFault((*path, "per"), problem, 'write per = "address", or limit distinct = "address"')
    yield from _amount_units(path, policy, None)


def override_faults(path: KeyPath, override: OverrideTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """A fault if there is no such policy, or the limit is not written in the unit of its meter."""
    policies = {policy.name: policy for policy in tables.policies.values()}
    policy = policies.get(override.policy)
    if policy is None:
        problem = f"{quote(override.policy)} is not the name of a policy"
        yield KeyFault(
            (*path, "policy"), problem, suggestion(override.policy, policies, "name a policy of this file")
        )
        return
    meter = next((meter for meter in tables.meters.values() if meter.name == policy.meter), None)
    if policy.kind == "share":
        problem = f"{quote(policy.name)} is a share, which has no limits of single callers"
        yield KeyFault((*path, "policy"), problem, "name another policy, or write [[exempt]]")
        return
    fields = [source.fields for source in tables.sources.values()]
    yield from _unit(path, policy.meter, [override.limit], None if meter is None else meter.unit(fields))


def _unit(
    path: KeyPath, meter: str, readings: Iterable[LimitReadings], unit: Unit | None
) -> Iterator[KeyFault]:
    """A fault if a limit is not written in the unit of its meter."""
    written = next((reading for reading in readings if unit not in reading), None)
    if written is None:
        return
    if unit is None:
        problem = f"{quote(meter)} has no unit"
        yield KeyFault((*path, "limit"), problem, "write digits: 100_000; or give the meter's field a unit")
        return
    problem = f"{quote(meter)} is measured in {NOUNS[unit]}"
    cure = f"write the limit with its unit: limit = {quote(EXAMPLES[unit])}"
    if None in written and unit != "bytes":
        problem += f", and {written[None]} has none"
    yield KeyFault((*path, "limit"), problem, cure)


def _amount_units(path: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    if policy.kind == "share":
        yield from rate_faults(path, policy, unit)
    elif policy.limit.stated:
        readings = [policy.limit.stated, *policy.limit.by_plan.values()]
        yield from _unit(path, policy.meter, readings, unit)


def _share(path: KeyPath, policy: PolicyTable, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """Faults of the keys of a share."""
    yield from share_faults(path, policy)
    lacking = [source for source in sources.values() if "resource" not in source.fields.names]
    if policy.of == "resource" and lacking:
        problem = f"{quote(policy.of)} needs the field resource in {listed(lacking)}"
        yield KeyFault((*path, "of"), problem, map_it("resource"))


def _delay(path: KeyPath, policy: PolicyTable, analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    """A fault if gates close too late in the window to limit anything."""
    judged = policy.policy()
    # A surge has one lock for many windows: it must only come while the window is not over.
    bound_s = delay_max_s(
        policy_kind(judged).judged_sum(judged).window.shortest_s, is_surge=policy.kind != "quota"
    )
    delay_s = own_delay(analyzer.flush_every).total_s
    if delay_s > bound_s:
        flush_s = bound_s - own_delay(0.0).total_s
        shorter = f'write flush_every = "{int(flush_s)}s" or less in [analyzer], or ' if flush_s >= 1 else ""
        yield KeyFault(
            (*path, "window"),
            f"a window {policy.window.phrase} is too short: with flush_every = "
            f'"{format_duration(analyzer.flush_every)}" a caller is denied up to {delay_s:.1f} s late',
            f"{shorter}choose a longer window",
        )


def _kind(path: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of keys that the policy's kind does not have."""
    if policy.window.is_by_caller and not parse_grouping(policy.per).is_of_callers:
        problem = f"a window of each caller needs series of callers, and {quote(policy.per)} has others"
        yield KeyFault((*path, "window"), problem, 'write per = "caller", or remove zone and anchor')
    for key in SHARE_KEYS:
        if key in policy.model_fields_set and policy.kind != "share":
            yield KeyFault((*path, key), "applies to shares", 'remove it, or write kind = "share"')
    for key in ("share", "share_of"):
        if key in policy.model_fields_set and policy.kind != "surge":
            yield KeyFault((*path, key), "applies to surges", 'remove it, or write kind = "surge"')
    if policy.kind == "surge":
        longest = format_duration(SURGE_S_MAX)
        if policy.window.rolling is None or policy.window.rolling > SURGE_S_MAX:
            yield KeyFault(
                (*path, "window"),
                f"a surge needs a rolling window of at most {longest}",
                'write window = { rolling = "60s" }',
            )
        return
    for key in ("lock_for", "forget_after"):
        if key in policy.model_fields_set:
            ends = "by its share" if policy.kind == "share" else "with its window"
            problem = f"applies to surges: the lock of a {policy.kind} ends {ends}"
            yield KeyFault((*path, key), problem, 'remove it, or write kind = "surge"')


def _notices(path: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of policies that set no lock, and of thresholds and graces, which quotas have."""
    notifies = policy.soft or policy.action.does == "notify"
    if policy.soft and "action" in policy.model_fields_set and policy.action.does != "notify":
        yield KeyFault((*path, "soft"), "sets no lock, so the action has no effect", "remove one of the two")
    if notifies and policy.grace is not None:
        yield KeyFault((*path, "grace"), "has no effect: the policy sets no lock", "remove it")
    if policy.kind != "quota":
        for key in ("notify", "grace"):
            if key in policy.model_fields_set:
                problem = f"applies to quotas: a {policy.kind} has no thresholds"
                yield KeyFault((*path, key), problem, 'remove it, or write kind = "quota"')
        return
    if policy.grace is None:
        return
    windows = policy.window.windows
    if isinstance(windows, Calendar) and policy.grace.time_s >= windows.shortest_s:
        problem = f"the window {policy.window.phrase} may be over before the grace is"
        yield KeyFault((*path, "grace"), problem, "write a shorter one")
    if policy.grace.amount and policy.limit.stated.keys() - {None, "bytes"}:
        problem = f"{policy.grace.amount} has no unit, and the limit has one"
        yield KeyFault((*path, "grace"), problem, 'write a percentage: grace = "10%"')
