"""Audits of closed days on the command line: one with everything, or all of them by their digests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from click.exceptions import Exit

from analyzer.billing.audit.audit_outcomes import store_outcome
from analyzer.billing.audit.examined_days import examine_day
from analyzer.billing.reports.day_status import day_statuses
from analyzer.faces.cli.billing_options import date_of, zone_of
from analyzer.faces.cli.exit_codes import FOUND
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.output import say
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.sentences import plural

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.audit.day_differences import AuditedDay
    from analyzer.billing.audit.examined_days import AuditedDigests
    from analyzer.billing.days.day_rows import Day
    from analyzer.billing.days.given_differences import GivenOutcome
    from analyzer.config.settings import Settings


GIVEN_MAX = 20  # differences that are printed


def digest_keys(settings: Settings) -> list[DigestKey]:
    """The key of the configuration, and those that it has replaced."""
    return [settings.billing.key, *settings.billing.earlier_keys]


def closed_day(
    engine: sa.Engine, settings: Settings, date: str, zone: str | None, *, is_closing_enough: bool = False
) -> Day:
    """The closed day of a date, or one that is frozen and not signed. Exits with 1 if it is not closed."""
    named = zone_of(settings, zone)
    named_day = date_of(engine, date, named)
    statuses = day_statuses(engine, named, date=named_day)
    states = ("closed", "closing") if is_closing_enough else ("closed",)
    if statuses and statuses[0].day.state in states:
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
        "given": [difference.what for difference in digests.given.differences],
        "given_remarks": list(digests.given.remarks),
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
    _say_given(digests.given)


def _say_given(given: GivenOutcome) -> None:
    if not (given.entries or given.differences):
        return
    verdict = "NOT EQUAL" if given.differences else "equal"
    say(f"chain of {given.entries:,} acts compared with what bills take as given: {verdict}")
    for difference in given.differences[:GIVEN_MAX]:
        say(f"{difference.what}: NOT EQUAL")
    if len(given.differences) > GIVEN_MAX:
        say(f"... and {len(given.differences) - GIVEN_MAX:,} more: NOT EQUAL")
    for remark in given.remarks:
        say(remark)
