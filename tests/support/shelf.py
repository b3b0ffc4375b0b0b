"""What the database keeps of a partition beside its offset, without a database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from analyzer.core.model import CounterState, DrainedCounts, NamedCallers, Partition


@dataclass
class Shelf:
    """Where counters leave what they know of partitions, and others find it."""

    kept: dict[Partition, CounterState] = field(default_factory=dict)

    def put(self, counted: DrainedCounts) -> None:
        for progress in counted.parts:
            if progress.state is not None:
                self.kept[progress.part] = joined(self.of(progress.part), progress.state)

    def of(self, part: Partition) -> CounterState:
        return self.kept.get(part, CounterState())


def joined(before: CounterState, now: CounterState) -> CounterState:
    names = [each for each in before.named if now.kept is None or each.hour in now.kept]
    return now._replace(named=[*names, *now.named], kept=None)


def names_of(named: Iterable[NamedCallers], hour: int) -> dict[str, list[str]]:
    """Who is counted by name in `hour`, by how they came to it."""
    found: dict[str, list[str]] = {}
    for each in named:
        if each.hour == hour:
            found.setdefault(each.how, []).extend(each.callers)
    return {how: sorted(callers) for how, callers in found.items()}
