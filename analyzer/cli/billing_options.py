"""Days and zones on the command line."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from analyzer.cli.exit_codes import usage_error

if TYPE_CHECKING:
    from analyzer.config.settings import Settings


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
    """The date that the text means in the zone. Exits with 2 if it is none."""
    from zoneinfo import ZoneInfo

    if text in ("today", "yesterday"):
        today = datetime.now(UTC).astimezone(ZoneInfo(zone)).date()
        return str(today - timedelta(days=text == "yesterday"))
    try:
        return str(date.fromisoformat(text))
    except ValueError as error:
        raise usage_error(f"{text}: write a date such as 2026-11-20, today or yesterday") from error
