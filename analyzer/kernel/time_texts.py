"""Times as text: RFC 3339 in UTC in answers, and in the zone of a viewer on what people read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

# A time in a sentence that was made before its reader's zone was known, with or without a fraction.
INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(?:Z|\+00:00)")


@lru_cache(maxsize=4096)  # a report has many rows of each bucket
def format_second(second: int) -> str:
    """RFC 3339, UTC.

    >>> format_second(1763596800)
    '2025-11-20T00:00:00Z'
    """
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_span(seconds: float) -> str:
    """Returns a duration in the largest unit of which there are at least two.

    >>> format_span(90), format_span(7200), format_span(200_000)
    ('90 s', '2 h', '2 days')
    """
    for unit_s, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def local_text(at: datetime, zone: str) -> str:
    """Returns a time on the clocks of a zone, for a page that names its zone.

    >>> local_text(datetime(2026, 11, 26, 23, 0, tzinfo=UTC), "Europe/Berlin")
    '2026-11-27 00:00:00'
    """
    return at.astimezone(_zone(zone)).strftime("%Y-%m-%d %H:%M:%S")


def zone_text(at: datetime, zone: str) -> str:
    """Returns the name of a zone's clock at a time, which stands beside times that leave a page.

    >>> zone_text(datetime(2026, 7, 1, tzinfo=UTC), "Europe/Berlin")
    'CEST'
    >>> zone_text(datetime(2026, 7, 1, tzinfo=UTC), "America/Sao_Paulo")
    'UTC-03:00'
    """
    name = at.astimezone(_zone(zone)).tzname() or ""
    return name if name.isalpha() else f"UTC{name[:3]}:{name[3:] or '00'}"


def offset_text(at: datetime, zone: str) -> str:
    """RFC 3339 with the offset of a zone, for files.

    >>> offset_text(datetime(2026, 11, 26, 23, 0, tzinfo=UTC), "Europe/Berlin")
    '2026-11-27T00:00:00+01:00'
    """
    return at.astimezone(_zone(zone)).isoformat(timespec="seconds")


def with_local_times(sentence: str, zone: str) -> str:
    """Returns a sentence with its RFC 3339 times as those of a zone.

    >>> with_local_times("until 2026-11-26T23:00:00.25Z: INC-1", "Europe/Berlin")
    'until 2026-11-27 00:00:00: INC-1'
    """

    def local(match: re.Match[str]) -> str:
        try:
            return local_text(datetime.fromisoformat(match[1]).replace(tzinfo=UTC), zone)
        except (ValueError, OverflowError):  # a name that looks like a time
            return match[0]

    return INSTANT.sub(local, sentence)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
