"""`gatelock check`: validates a configuration, offline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Annotated, NamedTuple
from zoneinfo import ZoneInfo

from click import Context
from click.exceptions import Exit

from analyzer.callers.plan_members import members_by_plan, members_text
from analyzer.config.diagnostics.faults import ConfigInvalid
from analyzer.config.tables.actions import parse_rate
from analyzer.config.values import format_duration
from analyzer.counting.records.formats import FORMATS
from analyzer.delays.delay_bound import FrontLimiter
from analyzer.delays.delay_parts import PolicyOvershoot, delay_max_s, delay_parts
from analyzer.delays.living_delays import living_delays
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, JsonOption, config_file, load_to_run
from analyzer.faces.cli.output import json_lines, say
from analyzer.faces.signals.status import installation_status
from analyzer.gates.gate_health import living_gates
from analyzer.gates.gate_reports import reporting_gates
from analyzer.gates.unasked_values import unasked_values
from analyzer.judging.circumstances import Circumstances
from analyzer.judging.judge import lock_in
from analyzer.judging.kinds import policy_kind
from analyzer.judging.kinds.earned_locks import duration_text
from analyzer.judging.locks.lock_answers import describe_action
from analyzer.judging.rolling import Slot
from analyzer.judging.totals import Standing, TotalKey
from analyzer.kernel.database.engine import open_engine, require_file
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.secrets import masked
from analyzer.kernel.sentences import plural
from analyzer.plan.derived_meters import value_text
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meter_units import NOUNS, UNLIMITED, with_noun
from analyzer.plan.meters import BUCKET_S, REQUESTS
from analyzer.plan.policies import limits_by_plan
from analyzer.plan.windows import Calendar, window_at
from gatekeeper.model import WITHOUT_END

if TYPE_CHECKING:
    from analyzer.callers.plan_members import Members
    from analyzer.config.diagnostics.faults import ConfigFault
    from analyzer.config.settings import Settings
    from analyzer.config.tables.meters import MeterTable
    from analyzer.config.tables.policies import PolicyTable
    from analyzer.config.tables.sources import SourceTable
    from analyzer.config.values import ConditionValues
    from analyzer.delays.delay_parts import DelayParts
    from analyzer.delays.living_delays import LivingDelays
    from analyzer.gates.gate_health import GateHealth
    from analyzer.gates.unasked_values import UnaskedValue
    from analyzer.plan.mapping import Condition
    from analyzer.plan.meter_units import Unit
    from analyzer.plan.meters import Meter
    from analyzer.plan.policies import Policy


def check(
    context: Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    limiter: Annotated[
        str | None,
        Option(
            metavar="RATE",
            help="Limiter in front of each gate, such as 20/s: shows what it admits beyond a limit.",
        ),
    ] = None,
    processes: Annotated[
        int, Option(min=1, help="Processes of the application, each with a gate and this limiter.")
    ] = 1,
    shipping: Annotated[
        float | None,
        Option(
            min=0, help="Seconds from a request's start until its record is in the log; else as measured."
        ),
    ] = None,
    offline: Annotated[
        bool, Option("--offline", help="Do not ask the database what delays were measured.")
    ] = False,
) -> None:
    """Find every fault of the configuration.

    Prints each fault with its line and what to write instead; without faults, a summary of what is read,
    counted and limited, and for each policy which lock is set, from which amount on, and until when; and how
    late a lock is, by what the running analyzers and gates have measured. Needs neither database nor Kafka:
    if the database cannot be asked, the delay has defaults. Exit code 1 if there is a fault, or a policy that
    a living gate cannot enforce.

    Example: gatelock check --limiter 20/s --processes 8 --shipping 0.5
    """
    front = None if limiter is None else _parse_limiter(limiter, processes)
    with reporting_errors():
        file = config_file(context, config)
        shown = str(file) if file is not None else "no file"
        faults: tuple[ConfigFault, ...] = ()
        settings = None
        try:
            settings = load_to_run(file)
        except ConfigInvalid as invalid:
            faults = invalid.faults
        report = None
        if settings is not None and not faults and (settings.policies or json):
            report = delay_report(settings, front, shipping, is_offline=offline)
        _print(shown, faults, settings, report, as_json=json)
        if faults or (report is not None and report.unasked_values):
            raise Exit(FOUND)


def _parse_limiter(text: str, processes: int) -> FrontLimiter:
    """The limiter in `text`, in each of `processes`. Ends the command when `text` is not a rate."""
    try:
        rate = parse_rate(text)
    except ValueError as error:
        raise usage_error(f'--limiter {text} is not a rate: write "20/s" or "100/m"') from error
    return FrontLimiter(rate.limit, rate.period, processes)


class DelayReport(NamedTuple):
    """The delay of locks and the overshoot of each policy, and what is known of the installation."""

    parts: DelayParts
    overshoots: Sequence[PolicyOvershoot]  # of each policy
    too_short: Sequence[str]  # a sentence for each policy whose window is too short for the delay
    unasked: str  # why the installation was not asked; "": it was
    members: Sequence[str]  # a sentence for each policy with limits by plan: who is known of each
    unasked_values: Sequence[UnaskedValue]  # policies that living gates cannot enforce

    def fields(self) -> dict[str, object]:
        delay = self.parts.delay
        return {
            "delay_s": round(delay.total_s, 3),
            "delay": {
                name: {"seconds": getattr(delay, f"{name}_s"), "is": origin}
                for name, origin in self.parts.origins.items()
            },
            "overshoot": [
                {
                    "policy": overshoot.policy,
                    "amount": overshoot.amount,
                    "most": overshoot.most,
                    "is": overshoot.certainty,
                }
                for overshoot in self.overshoots
            ],
            "too_short": list(self.too_short),
            "not_asked": self.unasked,
            "known_by_plan": list(self.members),
            "not_enforceable": [unasked.text for unasked in self.unasked_values],
        }

    def lines(self) -> Iterator[str]:
        since = "a request is logged" if "shipping" in self.parts.origins else "the record is in the log"
        total_s = self.parts.delay.total_s
        yield f"delay       gates close within about {total_s:.1f} s after {since}: {self.parts}"
        if self.unasked:
            yield f"            the installation was not asked: {self.unasked}"
        for overshoot in self.overshoots:
            if overshoot.amount is not None:
                yield f"overshoot   {overshoot}"
        unknown = [estimate.policy for estimate in self.overshoots if estimate.amount is None]
        if unknown:
            yield (
                f"overshoot   {', '.join(unknown)}: unknown, as much as a caller sends in {total_s:.2f} s: "
                "no rate was measured in the last ten minutes, and --limiter names no limiter in front"
            )
        for sentence in self.members:
            yield f"plans       {sentence}"
        for sentence in self.too_short:
            yield f"warning     {sentence}"
        for unasked in self.unasked_values:
            yield f"fault       {unasked.text}"


def delay_report(
    settings: Settings, front: FrontLimiter | None, shipping_s: float | None, *, is_offline: bool
) -> DelayReport:
    """Returns the delay by what the living installation has measured, and by defaults where it has not."""
    policies = settings.plan().policies
    by_plan = [policy for policy in policies if limits_by_plan(policy)]
    asked = Installed(unasked="--offline") if is_offline else _living(settings, has_plans=bool(by_plan))
    living, members = asked.delays, asked.members
    measured, ages_s = ((), ()) if living is None else (living.measured, living.view_ages_s)
    parts = delay_parts(settings.analyzer.flush_every, measured, ages_s, shipping_s)
    delay_s = parts.delay.total_s
    overshoots, too_short = [], []
    for table in _periods(settings):
        policy = table.policy()
        rate = None if living is None else living.rates.get((policy.per, policy.meter))
        counts_requests = table.meter == REQUESTS.name
        overshoots.append(PolicyOvershoot(policy.name, delay_s, front if counts_requests else None, rate))
        most_s = delay_max_s(policy)
        if delay_s > most_s:
            too_short.append(
                f"{policy.name}: the window {table.window.phrase} is too short for this delay: locks should "
                f"come within {most_s:.3g} s, and take up to {delay_s:.3g} s"
            )
    sentences = [] if members is None else [members_text(policy, members) for policy in by_plan]
    values = unasked_values(policies, asked.gates)
    return DelayReport(parts, overshoots, too_short, asked.unasked, sentences, values)


class Installed(NamedTuple):
    """The answers of the installation; none, and the reason in `unasked`, if it was not asked."""

    delays: LivingDelays | None = None
    members: Members | None = (
        None  # None also where no policy has limits by plan: all callers are read for it
    )
    gates: Sequence[GateHealth] = ()
    unasked: str = ""


def _living(settings: Settings, *, has_plans: bool) -> Installed:
    """Returns what the installation has measured, who has which plan, and its gates. Waits some seconds."""
    totals = [(policy.per, policy.counted_meter) for policy in _periods(settings)]
    engine = None
    try:
        require_file(settings.database.address)
        engine = open_engine(settings.database.address)
        revision = installation_status(engine, head()).revision
        if problem := schema_problem(revision, settings.database.address):
            return Installed(unasked=str(problem))
        members = members_by_plan(engine) if has_plans else None
        return Installed(living_delays(engine, totals), members, living_gates(reporting_gates(engine)))
    except AnalyzerError as error:
        return Installed(unasked=masked(str(error)))
    finally:
        if engine is not None:
            engine.dispose()


def _periods(settings: Settings) -> Sequence[PolicyTable]:
    """Returns a table for each policy: one of several periods is that of each."""
    return [table for stated in settings.policies for table in stated.of_periods]


def _print(
    shown: str,
    faults: tuple[ConfigFault, ...],
    settings: Settings | None,
    report: DelayReport | None,
    *,
    as_json: bool,
) -> None:

    if as_json:
        summary = {} if faults or settings is None else _summary_fields(settings)
        if summary and report is not None:
            summary |= report.fields()
        json_lines([{"file": shown, "faults": [asdict(fault) for fault in faults], **summary}])
        return
    for fault in faults:
        say(str(fault))
    if faults:
        say(f"\n{shown}: {plural(len(faults), 'fault')}", err=True)
    elif settings is not None:
        say("\n".join([f"{shown}: nothing is wrong", "", *_summary_lines(settings)]))
        for line in () if report is None else report.lines():
            say(line)


def _summary_fields(settings: Settings) -> dict[str, object]:

    plan, units = settings.plan(), settings.units()
    return {
        "database": settings.database.shown,
        "sources": [
            {"name": source.name, "topic": source.topic, "file": source.file} for source in settings.sources
        ],
        "groupings": list(plan.groupings),
        "meters": [
            {
                "name": meter.name,
                "width_s": BUCKET_S if meter.joined.in_buckets else None,
                "unit": units.get(meter.name),
            }
            for meter in plan.meters
        ],
        "policies": [policy_kind(policy).describe(policy) for policy in plan.policies],
        "dry_run": [sentence for policy in plan.policies for sentence in dry_run(policy, time.time())],
        "remarks": list(remarks(settings)),
    }


def _are_users(source: SourceTable) -> bool:
    """Whether a field of the caller is read from the part `user`."""
    entries = source.fields.entries
    return any(entries[name].path == ("user",) for name in source.callers if name in entries)


def _summary_lines(settings: Settings) -> Iterator[str]:

    plan, units = settings.plan(), settings.units()
    mappings = settings.mappings()
    yield f"database    {settings.database.shown}"
    for source in settings.sources:
        place = f"topic {source.topic}" if source.topic else f"file {source.file}"
        callers = " or ".join(source.callers)
        weight = f"; a record stands for {source.weight} requests" if source.weight else ""
        if source.id:
            horizon = format_duration(source.id_horizon)
            weight += f"; each {source.id} of a caller counts once within {horizon}"
        has_time = mappings[source.name].time is not None
        time_of = "" if has_time else "; no time is mapped: a request is of its time in Kafka"
        yield (
            f"source      {source.name}: {place}, {source.format}; the caller is {callers}"
            f"{_counted_if(source)}{weight}{time_of}"
        )
    yield f"counted by  {', '.join(plan.groupings)}"
    for meter in plan.meters:
        yield f"meter       {describe_meter(meter, units.get(meter.name))}"
    for policy in plan.policies:
        yield f"policy      {policy_kind(policy).describe(policy)}"
        for sentence in dry_run(policy, time.time()):
            yield f"dry run     {sentence}"
    yield from _alert_lines(settings)
    for remark in remarks(settings):
        yield f"remark      {remark}"
    if not plan.policies:
        yield "policy      none: requests are counted, no caller is locked"


def _alert_lines(settings: Settings) -> Iterator[str]:
    """Yields a line for each destination of alerts: what is sent where, and when."""
    if not settings.alerts:
        return
    from analyzer.config.alert_destinations import AlertDestinations

    for destination in AlertDestinations(settings, lambda _policy: 0).configured():
        route, wait_s = destination.route, destination.gathering.wait_s
        kinds = "all events" if route.kinds == ("*",) else " and ".join(route.kinds)
        least = "" if route.severity == "info" else f" that are {route.severity} or worse"
        pace = f"gathered for {format_duration(wait_s)}" if wait_s else "each by itself"
        quiet = "" if destination.quiet is None else "; quiet times"
        yield f"alerts      {destination.name}: {kinds}{least} to {destination.channel.shown}; {pace}{quiet}"


def dry_run(policy: Policy, now_s: float) -> Iterator[str]:
    """Yields a sentence for each threshold of a policy: which lock a total of this size earns at `now_s`.

    >>> from analyzer.plan.policies import Quota, RollingQuota
    >>> from analyzer.plan.windows import Calendar, Rolling
    >>> list(dry_run(Quota("daily", 100_000, Calendar("day", "Europe/Berlin")), 1_763_596_800))
    ['daily: from 100,000 requests on, deny 429 for each caller until 2025-11-21T00:00:00+01:00']
    >>> list(dry_run(RollingQuota("hourly", 50, Rolling(3_600)), 1_763_596_800.25))
    ['hourly: from 50 requests on, deny 429 for each caller for 1h5m']
    >>> list(dry_run(RollingQuota("noticed", 50, Rolling(3_600), notify=(500,)), 1_763_596_800.25))
    ['noticed: from 50 requests on, deny 429 for each caller for 1h5m']
    """
    kind = policy_kind(policy)
    judged = kind.judged_sum(policy)
    if kind.whole_sum is not None:
        return  # no amount alone earns a lock: `describe` says when
    total = TotalKey(judged, "", "", window_at(judged.window, int(now_s)))
    circumstances = Circumstances(datetime.fromtimestamp(now_s, UTC))
    for threshold in kind.thresholds(policy):
        if threshold >= UNLIMITED:
            continue
        standing = Standing(total, threshold, [Slot(int(now_s), threshold)])
        lock = lock_in(kind.judge(policy, standing, None, circumstances))
        if lock is None:
            continue
        amount = with_noun(threshold, policy.meter_unit, policy.meter)
        phrase = parse_grouping(policy.per).phrase
        if lock.until >= WITHOUT_END:
            ends = "until its limit is another one"
        elif isinstance(judged.window, Calendar):
            until = lock.until.astimezone(ZoneInfo(judged.window.zone)).isoformat().replace("+00:00", "Z")
            ends = f"until {until}"
        else:
            ends = f"for {duration_text(ceil((lock.until - circumstances.now).total_seconds()))}"
        yield f"{policy.name}: from {amount} on, {describe_action(lock)} for {phrase} {ends}"


def remarks(settings: Settings) -> Iterator[str]:
    """Yields sentences about settings that are valid and may not be meant."""
    for source in settings.sources:
        is_unsure = not source.count_if and not source.authenticated
        if is_unsure and FORMATS[source.format].has_claimed_users and _are_users(source):
            yield (
                f"{source.name}: the caller is the user of a {source.format} line, where servers write what "
                "a client says, also of a login that failed: any client may use up the limit of another; "
                'write caller = ["address"], unless the server refuses such requests before it logs them'
            )
        elif is_unsure and "status" in source.fields.names and set(source.callers) != {"address"}:
            yield (
                f"{source.name}: any client may use up the limit of another: a request with a wrong secret "
                'counts under the name that it gives; write count_if = { status = { not = ["401", "403"] } '
                "}, or authenticated = true if the log has only names that were checked"
            )
        if "address" not in source.fields.names:
            missing = " and ".join(source.callers)
            yield (
                f"{source.name}: all records without {missing} count under one caller, unnamed:; map the "
                'address of the client, under which they count then: address = "address" in [sources.fields]'
            )
        if source.id and _is_of_clients(source.fields.plain[source.id].path):
            yield (
                f"{source.name}: the id is a header that a client may send: one that repeats it pays for one "
                "request; let the server make the id, or overwrite the header"
            )
        values = source.deny_if.get("status")
        if values is None or len(source.deny_if) > 1:
            continue
        listed = _values(values)
        yield (
            f"{source.name}: deny_if takes every response with the status {listed} for a denial of a gate, "
            'those of the application too; a field with the header "Gatelock" tells them apart'
        )
        for policy in settings.policies:
            status = str(policy.action.status or policy.status)
            denies = policy.action.does in ("deny", "slow") and not policy.soft
            if denies and (status in values.values) is values.is_not:
                yield f"{source.name}: deny_if has no {status}: what {policy.name} denies is counted as usage"

    yield from _remarks_of_meters(settings.meters)
    yield from _remarks_of_policies(_periods(settings))
    if settings.billing.key.fingerprint and settings.billing.witness is None:
        yield (
            "billing: without a witness nothing finds that the last acts and days were cut off, or that an "
            "older database was restored; set witness to a file beside the key, or to a topic if analyzers "
            "run on several hosts"
        )


def _remarks_of_meters(meters: Iterable[MeterTable]) -> Iterator[str]:
    for meter in meters:
        if meter.sum_of == "status":
            yield (
                f"{meter.name}: the sum of status adds up numbers such as 200 and 404; to count requests by "
                'their status, write count = true, and where = { status = "400-499" }'
            )


def _remarks_of_policies(policies: Iterable[PolicyTable]) -> Iterator[str]:

    for policy in policies:
        yield from policy.remarks()
        if policy.limit.is_open:
            others = "other routes have no limit"
            if policy.limit.by_plan:
                others = "who has another plan, or none, has no limit"
            yield f"{policy.name}: the table of limits has no default: {others}"
        if policy.per == "everyone" and policy.action.does in ("deny", "slow") and not policy.soft:
            yield (
                f"{policy.name}: its lock is for all callers at once, the quiet ones too; for a limit of "
                'each caller, write per = "caller"'
            )


def describe_meter(meter: Meter, unit: Unit | None) -> str:
    """Describes a meter in one line: its value, its conditions, the width of its buckets."""
    if not meter.joined.in_buckets:
        kept = "kept for policies only, in no report"
        return f"{meter.name}: {meter.joined.phrase} {meter.field}{_conditions(meter.where)}; {kept}"
    value = f"{meter.joined.phrase} {meter.field}" if meter.field else "one for each request"
    measured = f", measured in {NOUNS[unit]}" if unit else ""
    return f"{meter.name}: {value}{measured}{_conditions(meter.where)}; kept in buckets of {BUCKET_S} s"


def _conditions(where: tuple[Condition, ...]) -> str:
    conditions = [f"{condition.field} is {_values(condition)}" for condition in where]
    return f" where {' and '.join(conditions)}" if conditions else ""


def _values(condition: Condition | ConditionValues) -> str:
    values = " or ".join(map(value_text, condition.values))
    return f"{'not ' if condition.is_not else ''}{values}"


def _counted_if(source: SourceTable) -> str:
    conditions = [f"{name} is {_values(values)}" for name, values in source.count_if.items()]
    return f" if {' and '.join(conditions)}, else the address" if conditions else ""


def _is_of_clients(path: Sequence[str]) -> bool:
    """Whether a field is by its name a header that clients send, such as request_X-Request-Id."""
    name = path[-1].lower().replace("_", "-")
    return name.endswith(("x-request-id", "x-correlation-id", "idempotency-key"))
