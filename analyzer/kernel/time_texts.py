"""Times in answers: RFC 3339, UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


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
