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
from analyzer.judging.kinds import kind_of
from analyzer.kernel.refused_values import quote
from analyzer.plan.groupings import CALLER, grouping_of
from analyzer.plan.meter_units import EXAMPLES, NOUNS, Unit, amount_text
from analyzer.plan.meters import DISTINCT, JOINS, REQUESTS
from analyzer.plan.windows import HOUR_S, Calendar

YEAR_S = Calendar("year").longest_s


def policy_faults(at: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of a policy: its meter, its kind, and windows that are too short."""
    if policy.kind != "share" and not policy.limit.stated:
        yield KeyFault((*at, "limit"), "is missing", "write limit = 100_000")
    yield from _meter_of_policy(at, policy, tables)
    if policy.window.per == "year" and tables.retention.quarters < YEAR_S:
        what = "is shorter than a year, of which a policy has its window"
        yield KeyFault(("retention", "quarters"), what, 'write quarters = "400d"')
    if policy.kind == "surge":
        meters = {meter.name: meter for meter in tables.meters.values()}
        fields = [source.fields for source in tables.sources.values()]
        yield from surge_share_faults(at, policy, meters, fields)
    denies = policy.action.does not in ("tag", "notify") and not policy.soft
    if "status" in policy.model_fields_set and (policy.action.status or not denies):
        does = "soft" if policy.soft else quote(policy.action.does)
        what = f"has no effect: {does} does not deny requests"
        if denies:
            what = "is set here and in the action"
        yield KeyFault((*at, "status"), what, "remove it")
    for dimension in grouping_of(policy.per).dimensions:
        lacking = [source for source in tables.sources.values() if dimension.field not in source.fields.names]
        if dimension != CALLER and lacking:
            yield KeyFault(
                (*at, "per"),
                f"{quote(policy.per)} needs the field {dimension.field} in {listed(lacking)}",
                map_it(dimension.field),
            )
    yield from _kind(at, policy)
    yield from _notices(at, policy)
    shares = list(_share(at, policy, tables.sources)) if policy.kind == "share" else []
    yield from shares
    if not shares:
        yield from _delay(at, policy, tables.analyzer)


def mode_faults(at: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Yields the faults of the mode, of the brake, and of a candidate those that its policy does not have."""
    for key in ("mode", "candidate", "brake"):
        if key in policy.model_fields_set and (policy.soft or policy.action.does == "notify"):
            yield KeyFault((*at, key), "has no effect: the policy sets no lock", "remove it")
            return
    here = (*at, "candidate")
    of_policy = {(fault.at[len(at) :], fault.what) for fault in policy_faults(at, policy, tables)}
    for candidate in policy.with_candidate[1:]:
        assert policy.candidate is not None  # noqa: S101 - it has one
        stated, readings = policy.candidate.model_fields_set, policy.candidate.limit.stated
        if all(getattr(candidate, key) == getattr(policy, key) for key in stated):
            yield KeyFault(here, "is equal to its policy", "change a value of it, or remove it")
            return
        if readings and (PART in readings) is not (policy.kind == "share"):
            what = f"is not written as the limit of a {policy.kind} is"
            yield KeyFault((*here, "limit"), what, "write it as the limit of the policy is written")
            return
        for fault in policy_faults(here, candidate, tables):
            rest = fault.at[len(here) :]
            if (rest, fault.what) not in of_policy:
                yield fault if rest and rest[0] in stated else fault._replace(at=here)


def _meter_of_policy(at: KeyPath, policy: PolicyTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """Faults of a meter that policies cannot judge, and of a limit without the unit of its meter."""
    meters = {meter.name: meter for meter in tables.meters.values()}
    if policy.meter in meters and meters[policy.meter].join == DISTINCT:
        yield from _distinct_of_policy(at, policy, meters[policy.meter])
    elif (
        policy.meter in meters
        and not JOINS[meters[policy.meter].join].adds_up
        and policy.window.rolling is not None
    ):
        join = JOINS[meters[policy.meter].join]
        yield KeyFault(
            (*at, "meter"),
            f"{quote(policy.meter)} keeps the {join.phrase} values, which a rolling window cannot add up",
            'write a calendar period, window = { per = "day" }, or name a meter that counts or sums',
        )
    elif policy.meter != REQUESTS.name and policy.meter not in meters:
        cure = suggestion(
            policy.meter, [REQUESTS.name, *meters], f"add [[meters]] with name = {quote(policy.meter)}"
        )
        yield KeyFault((*at, "meter"), f"no meter is named {quote(policy.meter)}", cure)
    elif policy.meter == REQUESTS.name:
        yield from _unit_of(at, policy, None)
    else:
        fields = [source.fields for source in tables.sources.values()]
        meter = meters[policy.meter]
        if meter.field is None or any(meter.field in mapped.plain for mapped in fields):
            yield from _unit_of(at, policy, meter.unit(fields))


def _distinct_of_policy(at: KeyPath, policy: PolicyTable, meter: MeterTable) -> Iterator[KeyFault]:
    """Faults of a policy on a meter of distinct values, which has no unit."""
    if policy.kind == "share":
        what = f"{quote(policy.meter)} counts distinct values, which cannot be divided"
        yield KeyFault((*at, "meter"), what, "name a meter that counts or sums")
        return
    if policy.window.is_by_caller:
        what = f"{quote(policy.meter)} counts distinct values, which cannot be moved to another window"
        yield KeyFault((*at, "window"), what, "name one zone, and remove anchor")
    if policy.window.rolling is not None and policy.window.rolling > HOUR_S:
        what = (
            f"{quote(policy.meter)} counts distinct values, which are kept for rolling windows of at most 1h"
        )
        cure = 'write window = { rolling = "1h" } or less, or a calendar period: window = { per = "day" }'
        yield KeyFault((*at, "window"), what, cure)
    if policy.kind == "surge" and grouping_of(policy.per).scope == "range" and meter.distinct != "address":
        # Of other values it is not known from how many addresses of the network they come.
        what = f"{quote(policy.per)} would be locked for what one of its addresses does"
        yield KeyFault((*at, "per"), what, 'write per = "address", or limit distinct = "address"')
    yield from _unit_of(at, policy, None)


def override_faults(at: KeyPath, override: OverrideTable, tables: ParsedTables) -> Iterator[KeyFault]:
    """A fault if there is no such policy, or the limit is not written in the unit of its meter."""
    policies = {policy.name: policy for policy in tables.policies.values()}
    policy = policies.get(override.policy)
    if policy is None:
        what = f"{quote(override.policy)} is not the name of a policy"
        yield KeyFault(
            (*at, "policy"), what, suggestion(override.policy, policies, "name a policy of this file")
        )
        return
    meter = next((one for one in tables.meters.values() if one.name == policy.meter), None)
    if policy.kind == "share":
        what = f"{quote(policy.name)} is a share, which has no limits of single callers"
        yield KeyFault((*at, "policy"), what, "name another policy, or write [[exempt]]")
        return
    fields = [source.fields for source in tables.sources.values()]
    yield from _unit(at, policy.meter, [override.limit], None if meter is None else meter.unit(fields))


def _unit(
    at: KeyPath, meter: str, readings: Iterable[LimitReadings], unit: Unit | None
) -> Iterator[KeyFault]:
    """A fault if a limit is not written in the unit of its meter."""
    written = next((one for one in readings if unit not in one), None)
    if written is None:
        return
    if unit is None:
        what = f"{quote(meter)} has no unit"
        yield KeyFault((*at, "limit"), what, "write digits: 100_000; or give the meter's field a unit")
        return
    what = f"{quote(meter)} is measured in {NOUNS[unit]}"
    cure = f"write the limit with its unit: limit = {quote(EXAMPLES[unit])}"
    if None in written and unit != "bytes":
        # Earlier versions read such a number as what is stored.
        stored = amount_text(written[None], unit).replace(",", "")
        what += f", and {written[None]} has none"
        cure += f"; earlier versions took it for {quote(stored)}"
    yield KeyFault((*at, "limit"), what, cure)


def _unit_of(at: KeyPath, policy: PolicyTable, unit: Unit | None) -> Iterator[KeyFault]:
    if policy.kind == "share":
        yield from rate_faults(at, policy, unit)
    elif policy.limit.stated:
        readings = [policy.limit.stated, *policy.limit.by_plan.values()]
        yield from _unit(at, policy.meter, readings, unit)


def _share(at: KeyPath, policy: PolicyTable, sources: Mapping[int, SourceTable]) -> Iterator[KeyFault]:
    """Faults of the keys of a share."""
    yield from share_faults(at, policy)
    lacking = [source for source in sources.values() if "resource" not in source.fields.names]
    if policy.of == "resource" and lacking:
        what = f"{quote(policy.of)} needs the field resource in {listed(lacking)}"
        yield KeyFault((*at, "of"), what, map_it("resource"))


def _delay(at: KeyPath, policy: PolicyTable, analyzer: AnalyzerTable) -> Iterator[KeyFault]:
    """A fault if gates close too late in the window to limit anything."""
    judged = policy.policy()
    # A surge has one lock for many windows: it must only come while the window is not over.
    bound_s = delay_max_s(kind_of(judged).sum_of(judged).window.shortest_s, is_surge=policy.kind != "quota")
    delay_s = own_delay(analyzer.flush_every).total_s
    if delay_s > bound_s:
        flush_s = bound_s - own_delay(0.0).total_s
        shorter = f'write flush_every = "{int(flush_s)}s" or less in [analyzer], or ' if flush_s >= 1 else ""
        yield KeyFault(
            (*at, "window"),
            f"a window {policy.window.phrase} is too short: with flush_every = "
            f'"{format_duration(analyzer.flush_every)}" a caller is denied up to {delay_s:.1f} s late',
            f"{shorter}choose a longer window",
        )


def _kind(at: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of keys that the policy's kind does not have."""
    if policy.window.is_by_caller and not grouping_of(policy.per).is_of_callers:
        what = f"a window of each caller needs series of callers, and {quote(policy.per)} has others"
        yield KeyFault((*at, "window"), what, 'write per = "caller", or remove zone and anchor')
    for key in SHARE_KEYS:
        if key in policy.model_fields_set and policy.kind != "share":
            yield KeyFault((*at, key), "applies to shares", 'remove it, or write kind = "share"')
    for key in ("share", "share_of"):
        if key in policy.model_fields_set and policy.kind != "surge":
            yield KeyFault((*at, key), "applies to surges", 'remove it, or write kind = "surge"')
    if policy.kind == "surge":
        longest = format_duration(SURGE_S_MAX)
        if policy.window.rolling is None or policy.window.rolling > SURGE_S_MAX:
            yield KeyFault(
                (*at, "window"),
                f"a surge needs a rolling window of at most {longest}",
                'write window = { rolling = "60s" }',
            )
        return
    for key in ("lock_for", "forget_after"):
        if key in policy.model_fields_set:
            ends = "by its share" if policy.kind == "share" else "with its window"
            what = f"applies to surges: the lock of a {policy.kind} ends {ends}"
            yield KeyFault((*at, key), what, 'remove it, or write kind = "surge"')


def _notices(at: KeyPath, policy: PolicyTable) -> Iterator[KeyFault]:
    """Faults of policies that set no lock, and of thresholds and graces, which quotas have."""
    notifies = policy.soft or policy.action.does == "notify"
    if policy.soft and "action" in policy.model_fields_set and policy.action.does != "notify":
        yield KeyFault((*at, "soft"), "sets no lock, so the action has no effect", "remove one of the two")
    if notifies and policy.grace is not None:
        yield KeyFault((*at, "grace"), "has no effect: the policy sets no lock", "remove it")
    if policy.kind != "quota":
        for key in ("notify", "grace"):
            if key in policy.model_fields_set:
                what = f"applies to quotas: a {policy.kind} has no thresholds"
                yield KeyFault((*at, key), what, 'remove it, or write kind = "quota"')
        return
    if policy.grace is None:
        return
    windows = policy.window.windows
    if isinstance(windows, Calendar) and policy.grace.time_s >= windows.shortest_s:
        what = f"the window {policy.window.phrase} may be over before the grace is"
        yield KeyFault((*at, "grace"), what, "write a shorter one")
    if policy.grace.amount and policy.limit.stated.keys() - {None, "bytes"}:
        what = f"{policy.grace.amount} has no unit, and the limit has one"
        yield KeyFault((*at, "grace"), what, 'write a percentage: grace = "10%"')
