"""The second count of a closed day on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.exceptions import Exit

from analyzer.billing.day_recount import recount
from analyzer.billing.recount.read_requests import Unsupported
from analyzer.build import name_digests
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
    topics = {source.topic: source.name for source in settings.sources if source.topic is not None}
    secrets = {one.fingerprint: one.secret for one in name_digests(settings) if isinstance(one.secret, bytes)}
    try:
        return recount(engine, day, topics, settings.kafka.client(), secrets)
    except (LogUnreadable, LogsUnknown) as error:
        say(f"{day} cannot be counted again: {error}", err=True)
        raise Exit(UNREACHABLE) from error
    except Unsupported as error:
        raise usage_error(f"{day} cannot be counted again: {error}") from error


def fields_of(day: Day, found: DayRecount) -> dict[str, object]:
    """The JSON object of a second count."""
    return {
        "day": day.date,
        "zone": day.zone,
        "equal": found.equal,
        "records": found.records,
        "series": found.series,
        "differing": found.differing,
        "differences": [one._asdict() for one in found.differences],
        "partitions": [one._asdict() for one in found.partitions],
        "given": list(found.given),
    }


def say_recount(day: Day, found: DayRecount) -> None:
    """Prints a second count: what was read, what was taken as given, what differs."""
    for one in found.partitions:
        plans = ", ".join(f"{plan['plan']} from {plan['start']}" for plan in one.plans)
        say(f"{one.partition}: read from {one.first:,} to {one.cut:,}; counted by the plan {plans}")
    for sentence in found.given:
        say(f"taken as given: {sentence}")
    for difference in found.differences:
        say(f"{difference}: NOT EQUAL")
    if found.differing > len(found.differences):
        say(f"... and {found.differing - len(found.differences):,} more")
    compared = f"{plural(found.records, 'record')} counted again, {found.series:,} series compared"
    verdict = "no difference" if found.equal else f"{plural(found.differing, 'difference')}: NOT EQUAL"
    say(f"{day}: {compared}: {verdict}")
