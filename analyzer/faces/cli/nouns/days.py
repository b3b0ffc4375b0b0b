"""`gatelock billing days`: days that are closed, what they wait for, corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.acting.foreseen import Foreseen
from analyzer.billing.audit.audit_outcomes import outcomes
from analyzer.billing.days.by_hand import (
    Correction,
    DayWithoutClosing,
    counted_so_far,
    day_to_close,
    leave_out,
    record_closing,
)
from analyzer.billing.days.by_hand import correct as correct_day
from analyzer.billing.days.closing import DayClosing
from analyzer.billing.days.targets import awaited_now, distinct_names
from analyzer.billing.hand_over.delivered_sums import read_delivered_sums
from analyzer.billing.hand_over.expiring_usage import expiring_usage
from analyzer.billing.reports.day_status import day_statuses, stored_positions
from analyzer.build import ends_of_logs, make_billing, wall_ms
from analyzer.faces.awaited_partitions import describe
from analyzer.faces.cli.audited_days import audit_day, digest_keys, say_differences
from analyzer.faces.cli.billing_options import ZoneOption, date_of, zone_of
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    caller_as_counted,
    load_settings,
    open_database,
    require_reason,
)
from analyzer.faces.cli.output import json_lines, outcome, say, table
from analyzer.faces.day_answers import (
    audit_fields,
    day_fields,
    delivery_fields,
    position_fields,
    replay_fields,
)
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.tables.billing_tables import DIFFERS
from analyzer.plan.meter_units import EXAMPLES, readings
from analyzer.replay.generations import correcting_replays

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.audit.audit_outcomes import AuditOutcome
    from analyzer.billing.days.day_rows import Day
    from analyzer.billing.days.targets import AwaitedPartition
    from analyzer.billing.hand_over.delivered_sums import DeliveredSums
    from analyzer.billing.reports.day_status import DayPosition, DayStatus
    from analyzer.config.settings import Settings
    from analyzer.kernel.model import Partition


SHOWN = 40  # days in a list, unless all are asked for
DELIVERY_COLUMNS = (
    *("destination", "by", "meter", "kind", "complete", "events", "amount", "left_out", "left_out_amount"),
    *("to_send", "of_day", "acknowledged"),
)

DateArgument = Annotated[str, Argument(metavar="DATE", help="The day: 2026-11-20, today or yesterday.")]


def list_(
    context: Context,
    zone: ZoneOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    every: Annotated[bool, Option("--all", help=f"Also days before the last {SHOWN}.")] = False,
) -> None:
    """Show which days are closed, what was booked since, and what billing services have acknowledged.

    A day is closed when all partitions are counted as far as they were logged when it was over, and audited
    at once. Exit code 1 if a day waits for a partition, an audit found a difference, or a delivery to a
    billing service is not complete, does not add up to what the day has, or is due within 5 days.

    Example: gatelock billing days list --zone Europe/Berlin
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        statuses = day_statuses(engine, zone, None if every else SHOWN)
        audited = {one.day: one for one in outcomes(engine)}
        waits = {status.day.id: _awaited(engine, settings, status.day) for status in statuses}
        sent = read_delivered_sums(engine, [status.day for status in statuses])
        expiring = expiring_usage(engine)
        if json:
            json_lines(
                day_fields(status)
                | audit_fields(audited.get(status.day.id))
                | {
                    "waits_for": [*map(str, waits[status.day.id])],
                    "deliveries": [*map(delivery_fields, sent[status.day.id])],
                    "expiring": [str(usage) for usage in expiring if usage.day.id == status.day.id],
                }
                for status in statuses
            )
        else:
            _print_days(statuses, audited, sent)
            for status in statuses:
                _say_awaited(engine, settings, status.day, waits[status.day.id])
                _say_sent(status.day, sent[status.day.id])
            for usage in expiring:
                say(str(usage))
                say(f"{usage.command}  # hand it over")
        differs = any(outcome.result == DIFFERS for outcome in audited.values())
        if any(waits.values()) or differs or expiring or not all(map(_is_sent, sent.values())):
            raise Exit(FOUND)


def _print_days(
    statuses: Sequence[DayStatus],
    audited: Mapping[int, AuditOutcome],
    sent: Mapping[int, Sequence[DeliveredSums]],
) -> None:
    columns = ["day", "zone", "state", "requests", "rows", "adjusted", "corrected", "closed", "audit", "sent"]
    if any(status.deleted_ms is not None for status in statuses):
        columns.append("deleted")
    fields = [
        day_fields(status)
        | audit_fields(audited.get(status.day.id))
        | {"sent": _sent_in_words(sent[status.day.id])}
        for status in statuses
    ]
    cells = [["" if one[name] is None else one[name] for name in columns] for one in fields]
    table(columns, cells, "no day is stored yet: analyzers store the first one within seconds")


def show(
    context: Context,
    date: DateArgument,
    zone: ZoneOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Shows cut, digest and audit of the day, and what it waits for. Exit code 1 if the day waits for a
    partition, is not stored, or the audit found a difference.
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        status = _find(engine, settings, date, zone)
        waits = _awaited(engine, settings, status.day)
        positions = stored_positions(engine, status.day)
        audit = next((outcome for outcome in outcomes(engine) if outcome.day == status.day.id), None)
        replays = correcting_replays(engine, status.day.id)
        fields = day_fields(status) | audit_fields(audit) | replay_fields(replays)
        sent = read_delivered_sums(engine, [status.day])[status.day.id]
        deliveries = [*map(delivery_fields, sent)]
        if json:
            waiting = {"waits_for": [*map(str, waits)], "deliveries": deliveries}
            json_lines([fields | waiting | {"partitions": [*map(position_fields, positions)]}])
        else:
            for name, value in fields.items():
                if isinstance(value, list):
                    for sentence in value:
                        say(f"{name}: {sentence}")
                    continue
                say(f"{name + ':':16}{'' if value is None else value}".rstrip())
            columns = ["partition", "target", "cut", "remark"]
            names = distinct_names(position.part for position in positions)
            rows = [
                [names[position.part], _cell(position.target), _cell(position.cut), _remark(position)]
                for position in positions
            ]
            gone = "the rows of the day were deleted after their retention, and its positions with them"
            no_target = "no partition has a target yet" if status.deleted_ms is None else gone
            table(columns, rows, no_target)
            if deliveries:
                cells = [[_cell(delivery[name]) for name in DELIVERY_COLUMNS] for delivery in deliveries]
                table([name.replace("_", " ") for name in DELIVERY_COLUMNS], cells, "")
            _say_awaited(engine, settings, status.day, waits)
            _say_sent(status.day, sent)
        if waits or (audit is not None and audit.result == DIFFERS) or not _is_sent(sent):
            raise Exit(FOUND)


def close(
    context: Context,
    date: DateArgument,
    reason: ReasonOption,
    zone: ZoneOption = None,
    without: Annotated[
        list[str] | None,
        Option(metavar="PARTITION", help="Do not wait for this one: 'access-log[3]'."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Close a day now, without waiting for its grace.

    For days that analyzers do not close: those of imported logs, before the first open day. An open day is
    closed if all partitions are counted as far as necessary, or are left out. Then it is audited. Asks first,
    because a closed day cannot be opened. Exit code 1 if it waits for a partition, or the audit found a
    difference.

    Example: gatelock billing days close 2026-11-20 --reason "import is done"
    """
    reason_text = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        closing = _closing(engine, settings)
        named = zone_of(settings, zone)
        day = _day_to_close(engine, settings, named, date, is_shown_only=True)
        if day.state == "open":
            excused = _excused(closing, day, without or [])
            if waits := [
                partition for partition in closing.find_awaited(day) if partition.part not in excused
            ]:
                _say_awaited(engine, settings, day, waits)
                raise Exit(FOUND)
        sentence = f"{day} was closed already"
        if day.state != "closed":
            if not is_confirmed(_foreseen(engine, day), yes=yes, dry_run=dry_run, as_json=json):
                return
            day = _day_to_close(engine, settings, named, date)
            if day.state == "open":
                for part in excused:
                    leave_out(engine, day, part, operator_name(), reason_text)
            record_closing(engine, day, operator_name(), reason_text)
            while not closing.close(day):
                pass  # flushes in flight: each attempt waits for them
            sentence = f"{day} is closed"
        status = _find(engine, settings, day.date, named)
        outcome(f"{sentence}: {status.day.requests:,} requests of callers", day_fields(status), as_json=json)
        if day.state != "closed":
            audited = audit_day(engine, status.day, digest_keys(settings))
            say_differences([audited])
            if not audited.equal:
                raise Exit(FOUND)


def correct(
    context: Context,
    date: DateArgument,
    amount: Annotated[
        str, Option("--amount", metavar="AMOUNT", help='What is added, or taken: +500, -500, "-2 GiB".')
    ],
    reason: ReasonOption,
    caller: Annotated[
        str | None, Option(metavar="NAME", help="The caller, with its kind: api_key:acme.")
    ] = None,
    key: Annotated[
        str | None, Option(metavar="NAME", help="The name in another grouping than caller.")
    ] = None,
    by: Annotated[str, Option(metavar="GROUPING", help="The grouping of the rows.")] = "caller",
    resource: Annotated[str, Option(metavar="ROUTE", help="The resource, in a grouping by it.")] = "",
    meter: Annotated[str, Option(metavar="NAME", help="The meter.")] = "requests",
    zone: ZoneOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add an amount to a closed day, or take it away.

    The day itself does not change. The amount is booked on the open day, and shown by
    `gatelock billing report corrections`.

    Example: gatelock billing days correct today --key a --amount -5 --reason Q
    """
    reason_text, name = require_reason(reason), caller or key
    if name is None:
        raise usage_error("--caller: write whose amount is corrected, or --key in another grouping")
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        name = caller_as_counted(engine, settings, name) if caller else name
        correction = Correction(by, name, resource, meter, _amount(settings, meter, amount))
        day = _find(engine, settings, date, zone).day
        made = correct_day(engine, day, correction, operator_name(), reason_text)
        sentence = (
            f"{day}: {name}: {made.before:,} {meter} become {made.after:,}; booked on {made.booked}, "
            f"correction {made.id}"
        )
        fields = {"correction": made.id, "day": day.date, "zone": day.zone, "booked": made.booked}
        outcome(sentence, fields | {"before": made.before, "after": made.after}, as_json=json)


def _amount(settings: Settings, meter: str, text: str) -> int:
    """The amount in the unit in which the meter is stored. Exits with 2 if the text is not one."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    unit = settings.units().get(meter)
    number = readings(digits.replace(",", "")).get(unit)
    if number is None or number != int(number) or not number:
        example = EXAMPLES.get(unit or "", "500")
        raise usage_error(f"--amount {text}: write an amount of {meter}, such as +{example} or -{example}")
    return sign * int(number)


def _find(engine: sa.Engine, settings: Settings, date: str, zone: str | None) -> DayStatus:
    """The stored day. Exits with 1 if it is not stored."""
    named = zone_of(settings, zone)
    day = date_of(engine, date, named)
    if statuses := day_statuses(engine, named, date=day):
        return statuses[0]
    say(f"{day} ({named}) was never closed; see `gatelock billing days close --help`", err=True)
    raise Exit(FOUND)


def _closing(engine: sa.Engine, settings: Settings) -> DayClosing:

    return DayClosing(engine, make_billing(settings), ends_of_logs(settings), new_mark, wall_ms)


def _awaited(engine: sa.Engine, settings: Settings, day: Day) -> list[AwaitedPartition]:
    """The partitions that an open day which is over waits for."""
    if day.state != "open" or wall_ms() < day.due_ms(settings.billing.grace):
        return []
    return awaited_now(engine, day)


def _say_awaited(engine: sa.Engine, settings: Settings, day: Day, waits: Sequence[AwaitedPartition]) -> None:
    described = [describe(engine, settings, day, partition) for partition in waits]
    for awaited in described:
        say(f"{day} waits for {awaited.sentence}")
    for awaited in [awaited for awaited in described if awaited.loses_nothing] or described[:1]:
        say(f"{awaited.command}  # {awaited.effect}")


def _day_to_close(
    engine: sa.Engine, settings: Settings, zone: str, date: str, *, is_shown_only: bool = False
) -> Day:
    """The day that a command closes. Exits with 2 for one that cannot be closed."""
    groupings = settings.billing.groupings
    day = day_to_close(engine, zone, date_of(engine, date, zone), groupings, is_shown_only=is_shown_only)
    if isinstance(day, DayWithoutClosing):
        raise usage_error(day.why)
    return day


def _foreseen(engine: sa.Engine, day: Day) -> Foreseen:

    counted = counted_so_far(engine, day)
    sentence = (
        f"closing {day} freezes {counted.requests:,} requests of {counted.callers:,} callers for good; what "
        "is counted of it later becomes an adjustment, booked on the open day"
    )
    return Foreseen([sentence], {"day": day.date, "zone": day.zone, **counted._asdict()})


def _excused(closing: DayClosing, day: Day, without: Sequence[str]) -> list[Partition]:
    """The partitions that a day need not wait for. Exits with 2 for a name that it does not wait for."""
    waits = {partition.name: partition.part for partition in closing.find_awaited(day)} if without else {}
    for name in without:
        if name not in waits:
            names = ", ".join(waits) or "none"
            raise usage_error(f"--without {name}: the day does not wait for it; it waits for: {names}")
    return [waits[name] for name in without]


def _is_sent(deliveries: Sequence[DeliveredSums]) -> bool:
    """Whether all deliveries that were begun are complete, and add up; live usage of an open day adds up."""
    return all(
        not sums.difference
        and (
            sums.stored.delivery.finished_ms is not None
            or (sums.stored.kind == "live" and sums.of_day is None)
        )
        for sums in deliveries
    )


def _sent_in_words(deliveries: Sequence[DeliveredSums]) -> str:
    if any(sums.difference for sums in deliveries):
        return "differs"
    if not deliveries:
        return ""
    if all(sums.stored.kind == "live" and sums.of_day is None for sums in deliveries):
        return "live"
    return "complete" if _is_sent(deliveries) else "not complete"


def _say_sent(day: Day, deliveries: Sequence[DeliveredSums]) -> None:
    for sums in deliveries:
        if sums.difference:
            say(f"{day}: {sums.difference}: NOT EQUAL")


def _remark(position: DayPosition) -> str:
    if position.left_out:
        return f"left out by {position.who}: {position.left_out}"
    return "the log did not exist any more" if position.is_gone else ""


def _cell(value: object) -> object:
    return "" if value is None else value
