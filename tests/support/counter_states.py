"""Counter states in memory, kept and joined as the database does it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from analyzer.kernel.model import CounterState, DrainedCounts, IdState, NamedCallers, Partition


@dataclass
class CounterStates:
    """The states that a counter has drained, by partition, for the counter that continues."""

    stored: dict[Partition, CounterState] = field(default_factory=dict)

    def store(self, counted: DrainedCounts) -> None:
        for progress in counted.parts:
            if progress.state is not None:
                self.stored[progress.part] = joined(self.of(progress.part), progress.state)

    def of(self, part: Partition) -> CounterState:
        return self.stored.get(part, CounterState())


def joined(before: CounterState, now: CounterState) -> CounterState:
    """Returns `now` with the stored names of the hours that did not begin since."""
    names = [named for named in before.named if now.kept is None or named.hour in now.kept]
    return now._replace(named=[*names, *now.named], kept=None, ids=joined_ids(before.ids, now.ids))


def joined_ids(before: IdState | None, now: IdState | None) -> IdState | None:
    """Returns `now` with the stored ids of the generations that are not forgotten."""
    if before is None or now is None:
        return now or before
    first = now.forgotten_to or 0
    kept = {blob[:2]: blob for blob in (*before.blobs, *now.blobs) if blob.generation >= first}
    return now._replace(blobs=list(kept.values()), forgotten_to=None)


def names_of(named: Iterable[NamedCallers], hour: int) -> dict[str, list[str]]:
    """Returns the callers that are counted by name in `hour`, by the rule that named them."""
    found: dict[str, list[str]] = {}
    for callers in named:
        if callers.hour == hour:
            found.setdefault(callers.how, []).extend(callers.callers)
    return {how: sorted(callers) for how, callers in found.items()}
