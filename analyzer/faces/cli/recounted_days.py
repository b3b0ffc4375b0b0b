"""The second count of a closed day on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.exceptions import Exit

from analyzer.billing.recount.read_requests import Unsupported
from analyzer.build import second_count
from analyzer.faces.cli.exit_codes import UNREACHABLE, usage_error
from analyzer.faces.cli.output import say
from analyzer.kernel.errors import LogsUnknown, LogUnreadable
from analyzer.kernel.sentences import plural

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.day_recount import DayRecount
    from analyzer.billing.days.day_rows import Day
    from analyzer.config.settings import Settings


def recount_day(engine: sa.Engine, settings: Settings, day: Day) -> DayRecount:
    """The second count of a day. Exits with 3 if a log cannot be read, with 2 for an unknown plan."""
    try:
        return second_count(settings, engine, day)
    except (LogUnreadable, LogsUnknown) as error:
        say(f"{day} cannot be counted again: {error}", err=True)
        raise Exit(UNREACHABLE) from error
    except Unsupported as error:
        raise usage_error(f"{day} cannot be counted again: {error}") from error


def fields_of(day: Day, recount: DayRecount) -> dict[str, object]:
    """The JSON object of a second count."""
    return {
        "day": day.date,
        "zone": day.zone,
        "equal": recount.equal,
        "records": recount.records,
        "series": recount.series,
        "differing": recount.differing,
        "differences": [entry._asdict() for entry in recount.differences],
        "partitions": [entry._asdict() for entry in recount.partitions],
        "given": list(recount.given),
    }


def say_recount(day: Day, recount: DayRecount) -> None:
    """Prints a second count: what was read, what was taken as given, what differs."""
    for log in recount.partitions:
        plans = ", ".join(f"{plan['plan']} from {plan['start']}" for plan in log.plans)
        say(f"{log.partition}: read from {log.first:,} to {log.cut:,}; counted by the plan {plans}")
    for sentence in recount.given:
        say(f"taken as given: {sentence}")
    for difference in recount.differences:
        say(f"{difference}: NOT EQUAL")
    if recount.differing > len(recount.differences):
        say(f"... and {recount.differing - len(recount.differences):,} more")
    compared = f"{plural(recount.records, 'record')} counted again, {recount.series:,} series compared"
    verdict = "no difference" if recount.equal else f"{plural(recount.differing, 'difference')}: NOT EQUAL"
    say(f"{day}: {compared}: {verdict}")
