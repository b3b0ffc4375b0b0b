"""Moments as the tables keep them: whole milliseconds since 1970 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def instant(time_ms: int) -> datetime:
    """The moment, exact."""
    return EPOCH + time_ms * MILLISECOND


def millis(time: datetime) -> int:
    """Whole milliseconds, rounded down."""
    return (time - EPOCH) // MILLISECOND
