"""Checks of events' ids: who sends records twice, and whether ids are remembered for the whole horizon."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.config.values import format_duration
from analyzer.counting.repeated_records import kept_ids, repeated_records
from analyzer.faces.signals.doctor.observations import LISTED_MAX, Installation, Observation


def duplicates(installation: Installation) -> Iterator[Observation]:
    """Yields the callers whose records often come twice, and the partitions with a shorter horizon."""
    for repeated in repeated_records(installation.engine):
        yield Observation("wrong", str(repeated), "look at what writes these records: it repeats them")
    wanted_s = {source.name: source.id_horizon for source in installation.settings.sources if source.id}
    short = [
        kept
        for kept in kept_ids(installation.engine)
        if kept.source in wanted_s and kept.kept_ms < wanted_s[kept.source] * 1000
    ]
    for kept in short[:LISTED_MAX]:
        yield Observation(
            "wrong",
            f"{kept}: ids are remembered for {kept.kept_ms / 1000:,.0f} s, instead of "
            f"{format_duration(wanted_s[kept.source])}: there are more than ids_max",
            "raise ids_max of the source, or lower its id_horizon",
        )
    if len(short) > LISTED_MAX:
        yield Observation(
            "wrong", f"{len(short) - LISTED_MAX} more partitions keep ids for a shorter time", ""
        )
