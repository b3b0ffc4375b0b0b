"""Checks of days: those that wait for a partition, and closed ones that were found to differ."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.billing.audit.audit_outcomes import differing_in_words
from analyzer.billing.days.targets import awaited_now
from analyzer.billing.reports.day_status import open_days
from analyzer.faces.signals.doctor.observations import Installation, Observation

LATE_MS = 600_000  # after the grace of a day: usually it is closed within seconds


def waiting_days(installation: Installation) -> Iterator[Observation]:
    """Yields the partitions that days wait for which should be closed by now."""
    billing = installation.settings.billing
    for day in open_days(installation.engine):
        late_ms = day.due_ms(billing.grace) + LATE_MS
        if day.zone not in billing.zones or installation.database.now_ms < late_ms:
            continue
        for awaited in awaited_now(installation.engine, day):
            cure = (
                f"`gatelock upkeep gaps list`, or `gatelock billing days close {day.date} --zone {day.zone} "
                "--without PARTITION --reason TEXT`"
            )
            yield Observation("wrong", f"{day} waits for {awaited}", cure)


def differing_days(installation: Installation) -> Iterator[Observation]:
    """Yields the closed days in which the last audit found a difference."""
    for sentence in differing_in_words(installation.engine).values():
        yield Observation(
            "wrong", sentence, "`gatelock billing audit --day DATE` compares it again and names all"
        )
