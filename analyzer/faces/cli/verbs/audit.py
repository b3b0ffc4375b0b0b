"""`gatelock billing audit`: compares ledgers, buckets, totals and locks with each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from click import Context
from click.exceptions import Exit

from analyzer.billing.audit.examined_days import examine_digests, given_differences
from analyzer.billing.reports.day_report import days_between
from analyzer.billing.reports.file_audit import FileUnreadable, audit_file
from analyzer.billing.reports.manifest import MANIFEST
from analyzer.faces.cli import audited_days, recounted_days
from analyzer.faces.cli.audited_days import digest_keys, fields_of_digests, say_digests
from analyzer.faces.cli.billing_options import ZoneOption, dates_of, zone_of
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, reporting_errors, usage_error
from analyzer.faces.cli.nouns.gaps import fields_of
from analyzer.faces.cli.options import (
    ConfigOption,
    JsonOption,
    load_settings,
    open_database,
)
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_second
from analyzer.maintenance.audit import audit as compare
from analyzer.plan.sums import sum_text
from analyzer.sources.files.file_reader import CLUSTER
from analyzer.sources.kafka.probes.record_counts import count_records
from gatekeeper.feed.feed_json import time_text

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.config.settings import Settings
    from analyzer.counting.gaps import RecordedGap
    from analyzer.counting.grouping_differences import GroupingDifference
    from analyzer.kernel.digest_key import DigestKey
    from analyzer.maintenance.audit import Audit, PartitionLedger

NOT_SHOWN = (
    "not compared with the log: a record that is missing among the holes shows in "
    "`gatelock billing audit --kafka` only, which reads the topics again; one that counts under the name of "
    "another caller, of a closed day, in `gatelock billing audit --day DATE --against-kafka`"
)
MONTH = re.compile(r"\d{4}-\d{2}")
SKIPPED_MAX = 10  # skipped ranges printed below the table
SUMS = (
    "buckets",
    "counted",
    "overflow",
    "duplicates_in_buckets",
    "days_read",
    "days_proved",
    "days_deleted",
    "equal",
)
COLUMNS = ("topic", "partition", "next", "seen", "counted", "duplicate", "dead", "late", "skipped")


EveryDayOption = Annotated[
    bool,
    Option("--all", help="Read the buckets of every day, also of those proved earlier."),
]
KafkaOption = Annotated[bool, Option("--kafka", help="Read the topics again, and count their records.")]
DayOption = Annotated[
    str | None, Option("--day", metavar="DATE", help="Only this closed day, with everything about it.")
]
DaysOption = Annotated[
    str | None,
    Option("--days", metavar="FROM..TO", help="Each closed day of these dates, or of a month."),
]
RecountOption = Annotated[
    bool,
    Option("--against-kafka", help="Count the log of the day again, by a second counter."),
]
ReportOption = Annotated[
    Path | None,
    Option(
        "--report", metavar="FILE", help="Only this file of `gatelock billing report`, or all in a folder."
    ),
]


def audit(
    context: Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    every_day: EveryDayOption = False,
    kafka: KafkaOption = False,
    day: DayOption = None,
    days: DaysOption = None,
    zone: ZoneOption = None,
    against_kafka: RecountOption = False,
    report: ReportOption = None,
) -> None:
    """Compare everything that was counted with itself.

    For each partition: seen = counted + duplicate + dead (unreadable, or from the future) + late (too old),
    and no more records were seen than there are offsets. Over all partitions: counted equals the requests in
    the buckets, day by day (UTC), and duplicates their meter. Of each day that is read, the counts of one
    grouping add up to those of the others. The totals of open windows equal the buckets, and the locks are
    those that they earn. A past day whose buckets were found equal is not read again until something is
    counted in it; --all reads it. Rows of closed days fit their digests and what was handed over (of the
    newest days, up to a million rows; --all: of every one), and each digest continues the one before. All
    that bills take as given is in the chain of acts, and the chain has what its witness has seen. Exit
    code 1 if anything differs.

    --day compares a closed day with its digest, with the buckets and what was booked later, and its names
    with their references. The outcome is stored, and shown by `gatelock billing days list`. --days does that
    for each closed day of a stretch, one after the other, and an analyzer for each day once a week. With
    --against-kafka a second counter, which shares no code with the first, counts its log again, and shows
    the differences by caller, and what it took as given. --report compares a file of a report and its
    manifest with the tables, or all of a folder: so kept files show what a restored database has lost.

    With --kafka the topics are read again up to the stored offsets: the number of their records must be that
    of the records seen. Where retention has deleted the first ones, the numbers are shown and not compared.
    Exit code 3 if Kafka does not answer.

    Example: gatelock billing audit --day yesterday
    """
    if any(one is not None for one in (day, days, report)) and (kafka or every_day):
        raise usage_error("--day, --days and --report stand alone: leave --kafka and --all out")
    if against_kafka and day is None:
        raise usage_error("--against-kafka counts one day again: write --day DATE")
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        keys = digest_keys(settings)
        if day is not None and against_kafka:
            is_equal = _recount_day(engine, settings, day, zone, keys, as_json=json)
        elif days is not None:
            is_equal = _audit_days(engine, settings, days, zone, keys, as_json=json)
        elif day is not None:
            is_equal = _audit_day(engine, settings, day, zone, keys, as_json=json)
        elif report is not None:
            is_equal = _audit_reports(engine, settings, report, as_json=json)
        else:
            is_equal = _audit_all(engine, settings, keys, every_day=every_day, kafka=kafka, as_json=json)
        if not is_equal:
            raise Exit(FOUND)


def _audit_all(
    engine: sa.Engine,
    settings: Settings,
    keys: Sequence[DigestKey],
    *,
    every_day: bool,
    kafka: bool,
    as_json: bool,
) -> bool:
    """Prints what was found in all tables; returns whether everything is equal."""
    audit = compare(engine, every_day=every_day)
    digests = examine_digests(engine, keys, every_day=every_day)
    logs = _in_kafka(audit, settings) if kafka else []
    if as_json:
        of_logs = {"kafka": [log._asdict() for log in logs]} if kafka else {}
        json_lines([_fields(audit) | {"closed_days": fields_of_digests(digests)} | of_logs])
    else:
        _print(audit, logs)
        say_digests(digests)
        if audit.partitions and not logs:
            say(NOT_SHOWN)
    return audit.equal and digests.equal and all(log.equal is not False for log in logs)


def _audit_day(
    engine: sa.Engine,
    settings: Settings,
    date: str,
    zone: str | None,
    keys: Sequence[DigestKey],
    *,
    as_json: bool,
) -> bool:
    """Prints what was found in a closed day; returns whether everything is equal."""
    audited = audited_days.audit_day(engine, audited_days.closed_day(engine, settings, date, zone), keys)
    if as_json:
        json_lines([audited_days.fields_of_day(audited)])
    else:
        audited_days.say_day(audited)
    return audited.equal


def _audit_days(
    engine: sa.Engine,
    settings: Settings,
    text: str,
    zone: str | None,
    keys: Sequence[DigestKey],
    *,
    as_json: bool,
) -> bool:
    """Prints what was found in each closed day of some dates; returns whether everything is equal."""
    named = zone_of(settings, zone)
    period = ("month", text) if MONTH.fullmatch(text) else (text, "")
    first, last = dates_of(engine, *period, named)
    is_equal, still_open = True, []
    for date, day in days_between(engine, named, first, last):
        if day is None:
            still_open.append(date)
            continue
        audited = audited_days.audit_day(engine, day, keys)
        is_equal = is_equal and audited.equal
        if as_json:
            json_lines([audited_days.fields_of_day(audited)])
        else:
            audited_days.say_day(audited)
    if still_open:
        say(f"not closed, and not audited: {', '.join(still_open)}", err=True)
    return is_equal


def _recount_day(
    engine: sa.Engine,
    settings: Settings,
    date: str,
    zone: str | None,
    keys: Sequence[DigestKey],
    *,
    as_json: bool,
) -> bool:
    """Prints what a second counter found in the log of a closed day; returns whether it is equal."""
    day = audited_days.closed_day(engine, settings, date, zone, is_closing_enough=True)
    # It counts by the plans in the tables: they must be those that acts have put in force.
    forged = given_differences(engine, day, keys)
    recount = recounted_days.recount_day(engine, settings, day)
    if as_json:
        json_lines([recounted_days.fields_of(day, recount) | {"not_in_chain": forged}])
    else:
        for sentence in forged:
            say(f"{day}: {sentence}: NOT EQUAL")
        recounted_days.say_recount(day, recount)
    return recount.equal and not forged


def _audit_reports(engine: sa.Engine, settings: Settings, place: Path, *, as_json: bool) -> bool:
    """Prints what was found in a file, or in each file of a folder; returns whether everything is equal."""
    if not place.is_dir():
        return _audit_report(engine, settings, place, as_json=as_json)
    manifests = sorted(place.rglob(f"*{MANIFEST}"))
    if not manifests:
        raise usage_error(f"--report {place}: no file in it has a name with {MANIFEST} at its end")
    found = [_audit_report(engine, settings, file, as_json=as_json) for file in manifests]
    return all(found)


def _audit_report(engine: sa.Engine, settings: Settings, file: Path, *, as_json: bool) -> bool:
    """Prints what was found in a file of a report; returns whether everything is equal."""
    try:
        audited = audit_file(engine, file, settings.units())
    except FileUnreadable as error:
        raise usage_error(f"--report {file}: {error}") from error
    if as_json:
        json_lines([audited._asdict() | {"equal": audited.equal}])
    else:
        verdict = "equal" if audited.equal else "NOT EQUAL"
        say(f"{audited.file}: {plural(audited.lines, 'line')}, {audited.manifest}: {verdict}")
        for sentence in audited.differences:
            say(f"{sentence}: NOT EQUAL")
        for remark in audited.remarks:
            say(remark)
    return audited.equal


class ReadLog(NamedTuple):
    """The records of a partition in Kafka, beside those that analyzers have seen.

    Attributes:
        first: The first offset that Kafka still has, or at which counting began.
        next: The stored offset, up to which they were read.
        records: How many Kafka has.
        seen: How many analyzers have seen.
        equal: Whether the numbers are equal; None where they cannot be compared, because of retention or of
            a log that was cut off and written again.
    """

    topic: str
    partition: int
    first: int
    next: int
    records: int
    seen: int
    equal: bool | None


def _in_kafka(audit: Audit, settings: Settings) -> list[ReadLog]:
    """Reads the log of each partition of the configured topics. Exits with 3 if Kafka does not answer."""
    topics = {source.topic for source in settings.sources if source.topic}
    read = []
    for ledger in audit.partitions:
        if _holes(ledger) is None or ledger.topic not in topics:
            continue
        part = Partition(ledger.cluster, ledger.topic_id, ledger.partition, ledger.source, ledger.topic)
        skipped = [
            (gap.gap.start, gap.accepted_to)
            for gap in audit.skipped
            if gap.part == part and gap.skipped and gap.accepted_to is not None
        ]
        try:
            first, records = count_records(part, ledger.begin, ledger.next, skipped, settings.kafka.client())
        except LogUnreadable as error:
            say(f"cannot read the log: {error}", err=True)
            raise Exit(UNREACHABLE) from error
        is_whole = first == ledger.begin and not ledger.recounted
        equal = records == ledger.seen if is_whole else None
        read.append(ReadLog(part.topic, part.number, first, ledger.next, records, ledger.seen, equal))
    return read


def _print_log(log: ReadLog) -> None:
    verdict = {True: "equal", False: "NOT EQUAL", None: "not comparable: the log has lost records since"}
    say(
        f"{log.topic}[{log.partition}]: {log.records:,} records in Kafka from offset {log.first:,} to "
        f"{log.next:,}, {log.seen:,} seen: {verdict[log.equal]}"
    )


def _print(audit: Audit, logs: Sequence[ReadLog]) -> None:

    _print_ledgers(audit)
    verdict = "equal" if audit.counted == audit.buckets else "NOT EQUAL"
    say(f"{audit.counted:,} counted, {audit.buckets:,} in buckets: {verdict}")
    say(
        f"{plural(audit.days_read, 'day')} read, {audit.days_proved:,} proved before, "
        f"{audit.days_deleted:,} deleted after their retention"
    )
    for day in audit.differing[:SKIPPED_MAX]:
        when = format_second(day.day_s)
        say(f"{when}: {day.counted:,} counted, {day.in_buckets:,} in buckets: NOT EQUAL")
    _print_other(audit)
    for gap in audit.skipped[:SKIPPED_MAX]:
        say(f"skipped: {gap.part} {skipped_range(gap)}")
    if len(audit.skipped) > SKIPPED_MAX:
        say(f"... and {len(audit.skipped) - SKIPPED_MAX} more: `gatelock upkeep sources list --gaps --all`")
    if renamed := sum(ledger.renamed for ledger in audit.partitions):
        say(f"{renamed:,} of these count under another name of their request: its name could not be used")
    if audit.overflow:
        say(f"{audit.overflow:,} of these are in overflow: not counted under the name of their caller")
    if audit.duplicates_in_buckets is not None and audit.duplicates_in_buckets != audit.duplicate:
        say(f"{audit.duplicate:,} duplicates, {audit.duplicates_in_buckets:,} in buckets: NOT EQUAL")
    for log in logs:
        _print_log(log)


def _print_ledgers(audit: Audit) -> None:

    has_duplicates = any(ledger.duplicate for ledger in audit.partitions)
    columns = [name for name in COLUMNS if name != "duplicate" or has_duplicates]
    rows = []
    for ledger in audit.partitions:
        holes = "" if (number := _holes(ledger)) is None else number
        verdict = "=" if ledger.equal else "differs"
        rows.append([*(getattr(ledger, name) for name in columns), holes, verdict])
    table([*columns, "holes", ""], rows, "nothing was read yet")
    for ledger in audit.partitions:
        if ledger.holes < 0:
            where = f"{ledger.topic}[{ledger.partition}]"
            more = plural(-ledger.holes, "record")
            say(f"{where}: {more} more were seen than it has offsets up to {ledger.next}: NOT EQUAL")


def _fields(audit: Audit) -> dict[str, object]:
    """Returns what --json prints."""
    return {
        "partitions": [
            {**ledger._asdict(), "holes": _holes(ledger), "equal": ledger.equal}
            for ledger in audit.partitions
        ],
        **{name: getattr(audit, name) for name in SUMS},
        "differing": [
            {"day": format_second(day.day_s), "counted": day.counted, "in_buckets": day.in_buckets}
            for day in audit.differing
        ],
        "groupings": list(map(_grouping_fields, audit.groupings)),
        "totals": [
            {"sum": sum_text(of.sum), "window": format_second(of.window.start_s), **one._asdict()}
            for of, one in audit.totals
        ],
        "locks": [one._asdict() for one in audit.locks],
        "gaps": [fields_of(gap) for gap in audit.skipped],
    }


def _grouping_fields(difference: GroupingDifference) -> dict[str, object]:

    fields = difference._asdict()
    return {"day": format_second(fields.pop("day_s")), **fields}


def _holes(ledger: PartitionLedger) -> int | None:
    """Returns the offsets without a record; None for a file, whose offsets are bytes."""
    return None if ledger.cluster == CLUSTER else ledger.holes


def _print_other(audit: Audit) -> None:
    """Prints what differs besides the requests of a day."""
    for pair in audit.groupings:
        key = f" of {pair.key}" if pair.key else ""
        say(
            f"{format_second(pair.day_s)}: {pair.meter}{key}: {pair.in_coarse:,} by {pair.coarse}, "
            f"{pair.in_fine:,} by {pair.fine}: NOT EQUAL"
        )
    for of_sum, total in audit.totals:
        say(
            f"total of {sum_text(of_sum.sum)} since {format_second(of_sum.window.start_s)}: "
            f"{_series(total.key, total.resource)}: {total.used:,}, "
            f"and {total.counted:,} in buckets: NOT EQUAL"
        )
    for lock in audit.locks:
        used = "without a total" if lock.used is None else f"at {lock.used:,}"
        state = "is locked, and must not be" if lock.is_locked else "must be locked, and is not"
        say(f"{lock.policy}: {_series(lock.key, lock.resource)} {state}, {used}: NOT EQUAL")
    if audit.totals_compared:
        say(f"totals of {plural(audit.totals_compared, 'sum')} compared with the buckets")


def _series(key: str, resource: str) -> str:
    return " ".join(part for part in (key or "everyone", resource) if part)


def skipped_range(gap: RecordedGap) -> str:
    """The offsets of an accepted gap, with the operator, the time and the reason."""
    when = "" if gap.accepted is None else time_text(gap.accepted)
    return f"[{gap.gap.start}, {gap.accepted_to}), {gap.gap.kind}: {gap.accepted_by}, {when}: {gap.reason}"
