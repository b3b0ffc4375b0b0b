"""Amounts of a closed day, and their events."""

from __future__ import annotations

from analyzer.billing.days.day_rows import Day
from analyzer.billing.hand_over.usage_events import Customers, EventMaker, UsageEvent
from analyzer.billing.reports.usage_amounts import AmountKind, UsageAmount, UsagePart

SECRET = b"a secret of the installation"
DAY = Day(1, "Europe/Berlin", "2026-03-29", 1_774_738_800, 1_774_821_600, "closed", ("caller",))  # 23 hours


def amount(value: int = 5, name: str | None = "api_key:acme", **other: object) -> UsageAmount:
    found = UsageAmount("2026-03-29", "0f3c", name, "", value, 0, 0, ("0f3c", ""))
    return found._replace(**other)  # type: ignore[arg-type]  # fields by name


def part(kind: AmountKind = "frozen", **other: object) -> UsagePart:
    return UsagePart(DAY, "caller", "requests", "sum", kind)._replace(**other)  # type: ignore[arg-type]  # as above


def event(
    of: UsageAmount | None = None, whole: UsagePart | None = None, secret: bytes = SECRET
) -> UsageEvent:
    maker = EventMaker(secret, whole or part(), Customers(), "api_requests", "")
    return maker.event(of or amount(), "acme")
