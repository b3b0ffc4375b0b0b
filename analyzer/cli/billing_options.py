"""Days and zones on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import usage_error
from analyzer.cli.options import parse_time

if TYPE_CHECKING:
    from analyzer.config.settings import Settings

ZoneOption = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="The time zone of the day; default: that of [billing], if it is one."),
]


def zone_of(settings: Settings, zone: str | None) -> str:
    """The zone of days. Exits with 2 without one, and for one that days are not closed in."""
    zones = settings.billing.zones
    if zone is None and len(zones) == 1:
        return zones[0]
    if zone not in zones:
        known = ", ".join(zones) or "there is none"
        raise usage_error(f"--zone {zone or ''}: write one of [billing] zones: {known}")
    return zone


def date_of(text: str, zone: str) -> str:
    """The date of a time in the zone: of `today`, of a date, of a moment. Exits with 2 if it is none."""
    from zoneinfo import ZoneInfo

    from analyzer.store.transaction.cut_days.day_rows import day_at

    at_s = parse_time(text, ZoneInfo(zone))
    if at_s is None:
        raise ValueError("no time was given")
    return day_at(zone, at_s)[0]
