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
