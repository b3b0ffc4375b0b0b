"""Audits of closed days on the command line: one with everything, or all of them by their digests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from click.exceptions import Exit

from analyzer.billing.audit.audit_outcomes import store_outcome
from analyzer.billing.audit.examined_days import examine_day
from analyzer.billing.days.day_digest import DigestKey
from analyzer.billing.reports.day_status import day_statuses
from analyzer.faces.cli.billing_options import date_of, zone_of
from analyzer.faces.cli.exit_codes import FOUND, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.output import say
from analyzer.kernel.sentences import plural
from gatekeeper.identity import SECRET_BYTES_MIN

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.audit.day_differences import AuditedDay
    from analyzer.billing.audit.examined_days import AuditedDigests
    from analyzer.billing.days.day_rows import Day
    from analyzer.config.settings import Settings


def digest_keys(settings: Settings, earlier: Sequence[Path]) -> list[DigestKey]:
    """The key of the configuration, and earlier ones from files. Exits with 2 for a file without a key."""
    keys = [DigestKey(settings.billing.secret)]
    for file in earlier:
        try:
            secret = file.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise usage_error(f"--earlier-key {file}: cannot be read: {error.strerror}") from error
        if len(secret) < SECRET_BYTES_MIN:
            raise usage_error(f"--earlier-key {file}: a key has at least {SECRET_BYTES_MIN} bytes")
        keys.append(DigestKey(secret))
    return keys


def closed_day(engine: sa.Engine, settings: Settings, date: str, zone: str | None) -> Day:
    """The closed day of a date. Exits with 1 if it is not closed."""
    named = zone_of(settings, zone)
    named_day = date_of(engine, date, named)
    statuses = day_statuses(engine, named, date=named_day)
    if statuses and statuses[0].day.state == "closed":
        return statuses[0].day
    say(f"{named_day} ({named}) is not closed; see `gatelock billing days list`", err=True)
    raise Exit(FOUND)


def audit_day(engine: sa.Engine, day: Day, keys: Sequence[DigestKey]) -> AuditedDay:
    """Audits a day, and stores the outcome under the operator's name."""
    audited = examine_day(engine, day, keys)
    store_outcome(engine, audited, operator_name())
    return audited


def fields_of_day(audited: AuditedDay) -> dict[str, object]:
    """The JSON object of an audited day."""
    day = audited.day
    return {
        "day": day.date,
        "zone": day.zone,
        "requests": day.requests,
        "rows": day.rows,
        "digest": day.digest,
        "equal": audited.equal,
        "differences": [difference._asdict() for difference in audited.differences],
        "remarks": list(audited.remarks),
    }


def say_day(audited: AuditedDay) -> None:
    """Prints the outcome for a day."""
    day = audited.day
    verdict = "equal" if audited.equal else "NOT EQUAL"
    say(f"{day}: {day.requests:,} requests of callers in {plural(day.rows, 'row')}: {verdict}")
    say_differences([audited])
    for remark in audited.remarks:
        say(f"{day}: {remark}")


def say_differences(days: Iterable[AuditedDay]) -> None:
    """Prints the differences of days."""
    for audited in days:
        for difference in audited.differences:
            say(f"{audited.day}: {difference.what}: NOT EQUAL")


def fields_of_digests(digests: AuditedDigests) -> dict[str, object]:
    """The JSON object of the digests of all days."""
    return {
        "closed": digests.closed,
        "read": digests.read,
        "equal": digests.equal,
        "lost": digests.lost,
        "differing": [*map(fields_of_day, digests.days)],
    }


def say_digests(digests: AuditedDigests) -> None:
    """Prints what was found in the digests of all days; nothing before the first one is closed."""
    if digests.closed or digests.lost:
        verdict = "equal" if digests.equal else "NOT EQUAL"
        unread = digests.closed - digests.read
        rest = f"; of {unread:,} earlier ones the chain of digests alone, --all reads them" if unread else ""
        say(f"digests of {plural(digests.closed, 'closed day')} compared{rest}: {verdict}")
    say_differences(digests.days)
    for sentence in digests.lost:
        say(f"{sentence}: NOT EQUAL")
