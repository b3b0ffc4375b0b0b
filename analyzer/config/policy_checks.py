"""Checks of policies and overrides: their meters, their units, and windows that can be judged in time."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.config.diagnostics.faults import KeyFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.grouping_checks import undefined_faults, unmapped_fields
from analyzer.config.kind_checks import KIND_CHECKS, limit_unit_faults
from analyzer.config.parsed_tables import ParsedTables, listed, map_it
from analyzer.config.tables.analyzer import AnalyzerTable
from analyzer.config.tables.limit_overrides import OverrideTable
from analyzer.config.tables.meters import MeterTable
from analyzer.config.tables.policies import PolicyTable
from analyzer.config.tables.sources import SourceTable
from analyzer.config.values import format_duration, suggestion
from analyzer.delays.delay_bound import own_delay
from analyzer.delays.delay_parts import delay_max_s
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import SHOWN, parse_grouping
from analyzer.plan.meters import JOINS, REQUESTS
from analyzer.plan.windows import HOUR_S, Calendar

YEAR_S = Calendar("year").longest_s


def policy_faults(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of a policy: its meter, its kind, and windows that are too short."""
    yield from _meter_of_policy(path, policy, tables)
    if policy.window.per == "year" and tables.retention.quarters < YEAR_S:
        problem = "is shorter than a year, of which a policy has its window"
        yield KeyFault(("retention", "quarters"), problem, 'write quarters = "400d"')
    yield from _status_of_policy(path, policy)
    yield from _series_of_policy(path, policy, tables)
    grouping = parse_grouping(policy.per)
    has_own = {"caller": grouping.is_of_callers, "tenant": grouping.scope == "tenant"}
    for whose in policy.window.whose:
        if not has_own[whose]:
            problem = f"a window of each {whose} needs series of {whose}s, and {quote(policy.per)} has others"
            cure = f"write per = {quote(whose)}, or remove zone and anchor"
            yield KeyFault((*path, "window"), problem, cure)
    if policy.soft and "action" in policy.model_fields_set and policy.action.does != "notify":
        yield KeyFault((*path, "soft"), "sets no lock, so the action has no effect", "remove one of the two")
    yield from KIND_CHECKS[policy.kind].faults(path, policy, tables)
    if policy.is_complete:
        yield from _delay(path, policy, tables.analyzer)


def _status_of_policy(path: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """A fault of a status without a refusal that has it."""
    denies = policy.action.does not in ("tag", "notify") and not policy.soft
    if "status" in policy.model_fields_set and (policy.action.status or not denies):
        does = "soft" if policy.soft else quote(policy.action.does)
        problem = f"has no effect: {does} does not deny requests"
        if denies:
            problem = "is set here and in the action"
        yield KeyFault((*path, "status"), problem, "remove it")


def _series_of_policy(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of `per`: a grouping that is not defined, or by fields that sources do not map."""
    yield from undefined_faults((*path, "per"), policy.per, tables, SHOWN)
    lacking: dict[str, list[SourceTable]] = {}
    for source in tables.sources.values():
        for field in unmapped_fields(policy.per, source, tables):
            lacking.setdefault(field, []).append(source)
    for field, sources in lacking.items():
        problem = f"{quote(policy.per)} needs the field {field} in {listed(sources)}"
        yield KeyFault((*path, "per"), problem, map_it(field))


def mode_faults(path: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of the mode, of the brake, and of a candidate those that its policy does not have."""
    for key in ("mode", "candidate", "brake"):
        if key in policy.model_fields_set and policy.sets_no_lock:
            yield KeyFault((*path, key), "has no effect: the policy sets no lock", "remove it")
            return
    candidate_path = (*path, "candidate")
    of_policy = {(fault.at[len(path) :], fault.what) for fault in policy_faults(path, policy, tables)}
    for candidate in policy.with_candidate[1:]:
        assert policy.candidate is not None  # noqa: S101 - it has one
        fields_set = policy.candidate.model_fields_set
        if all(getattr(candidate, key) == getattr(policy, key) for key in fields_set):
            yield KeyFault(candidate_path, "is equal to its policy", "change a value of it, or remove it")
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
        yield from KIND_CHECKS[policy.kind].unit_faults(path, policy, None)
    else:
        fields = [source.fields for source in tables.sources.values()]
        meter = meters[policy.meter]
        if meter.field is None or any(meter.field in mapped.plain for mapped in fields):
            yield from KIND_CHECKS[policy.kind].unit_faults(path, policy, meter.unit(fields))


def _distinct_of_policy(path: KeyPath, policy: PolicyTable, meter: MeterTable) -> Iterator[KeyFault]:
    """Faults of a policy on a meter of distinct values, which has no unit."""
    kind = KIND_CHECKS[policy.kind]
    if not kind.limits_distinct:
        problem = f"{quote(policy.meter)} counts distinct values, which cannot be divided"
        yield KeyFault((*path, "meter"), problem, "name a meter that counts or sums")
        return
    if policy.window.whose:
        problem = f"{quote(policy.meter)} counts distinct values, which cannot be moved to another window"
        yield KeyFault((*path, "window"), problem, "name one zone, and remove anchor")
    if policy.window.per == "lifetime" or policy.window.from_ is not None:
        problem = f"{quote(policy.meter)} counts distinct values, which are kept for a year at most"
        yield KeyFault((*path, "window"), problem, 'write a calendar period: window = { per = "month" }')
    if policy.window.rolling is not None and policy.window.rolling > HOUR_S:
        problem = (
            f"{quote(policy.meter)} counts distinct values, which are kept for rolling windows of at most 1h"
        )
        cure = 'write window = { rolling = "1h" } or less, or a calendar period: window = { per = "day" }'
        yield KeyFault((*path, "window"), problem, cure)
    if (
        kind.compares_addresses
        and parse_grouping(policy.per).scope == "range"
        and meter.distinct != "address"
    ):
        # Of other values it is not known from how many addresses of the network they come.
        problem = f"{quote(policy.per)} would be locked for what one of its addresses does"
        yield KeyFault((*path, "per"), problem, 'write per = "address", or limit distinct = "address"')
    yield from kind.unit_faults(path, policy, None)


def override_faults(path: KeyPath, override: OverrideTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """A fault if there is no such policy, or the limit is not written in the unit of its meter."""
    policies = {policy.name: policy for table in tables.policies.values() for policy in table.of_periods}
    policy = policies.get(override.policy)
    if policy is None:
        periods = [name for name in policies if name.startswith(f"{override.policy}/")]
        if periods:
            problem = f"{quote(override.policy)} has a limit for each of several periods"
            yield KeyFault((*path, "policy"), problem, f"name one: {' or '.join(map(quote, periods))}")
            return
        problem = f"{quote(override.policy)} is not the name of a policy"
        yield KeyFault(
            (*path, "policy"), problem, suggestion(override.policy, policies, "name a policy of this file")
        )
        return
    meter = next((meter for meter in tables.meters.values() if meter.name == policy.meter), None)
    if not policy.has_caller_limits:
        problem = f"{quote(policy.name)} is a {policy.kind}, which has no limits of single callers"
        yield KeyFault((*path, "policy"), problem, "name another policy, or write [[exempt]]")
        return
    fields = [source.fields for source in tables.sources.values()]
    yield from limit_unit_faults(
        path, policy.meter, [override.limit], None if meter is None else meter.unit(fields)
    )


def _delay(path: KeyPath, policy: PolicyTable, analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    """A fault if gates close too late in the window to limit anything."""
    bound_s = delay_max_s(policy.policy())
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
