"""Where records come from: what the pipeline asks of a source, and a source of the store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from analyzer.core.model import Gap, Lag, Partition, Position, SourceItem


class LogId(NamedTuple):
    """Which log it was that a name stood for."""

    cluster: str
    topic_id: str


class PositionStore(Protocol):
    """Where partitions go on: the store, as a source sees it. Everything raises StoreAway when the
    database cannot be reached, within a few seconds: it is also asked while a group is rebalancing."""

    def positions(self, parts: Collection[Partition]) -> Mapping[Partition, Position]:
        """How far `parts` are counted, and what stands in their way; those that were never heard of are left
        out."""

    def begin(self, part: Partition, offset: int, resume_token: str = "") -> Position:
        """Where `part` begins: `offset`, unless somebody began it before."""

    def finish(self, parts: Collection[Partition]) -> None:
        """Nobody follows these any more: they were read to their end."""

    def logs(self, source: str, topic: str) -> Collection[LogId]:
        """Every log that was begun for this source under this name, of a topic or a path."""


class Source(Protocol):
    """Gives what was logged, each partition in order, from the stored position on.

    One thread calls it. What it gave and what was not stored is given again after `rewind()`, or to
    whoever holds the partition next. Partitions that are not held are ignored wherever they are named.
    """

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        """What there is, waiting at most `timeout_s` for it: bounded in bytes, perhaps nothing.

        `Lost` comes before anything that was read after the loss. What is left when the iterator is
        dropped comes first the next time. Raises StoreAway; calling again is safe then.
        """

    def lags(self) -> Mapping[Partition, Lag]:
        """How far each partition held now is behind its end. No I/O."""

    def positions(self) -> Mapping[Partition, int]:
        """The offset that will be taken next, of each partition held now; of one that is stopped, what is
        stored. No I/O."""

    def problems(self) -> Mapping[str, str]:
        """What keeps records from coming: a sentence for each thing that is wrong, by its name. No I/O;
        any thread may ask."""

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        """Forget what was taken and not stored; go on from the stored positions, of all or of some.
        No I/O: the positions are asked for by the next `take()`."""

    def stop(self, part: Partition, gap: Gap) -> None:
        """Take nothing more of this partition until it is rewound: it cannot be read on. A source may try
        once more by itself before it believes that, and then gives what follows the last offset counted."""

    def stopped(self) -> Mapping[Partition, Gap]:
        """The partitions that wait for a person, and for what. No I/O; any thread may ask."""

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        """These next offsets are stored. Advice to others, and leave to forget; never raises."""

    def close(self) -> None:
        """Let everything go; what was taken and not acknowledged is not lost."""


class CombinedSource:
    """Many sources as one, each asked in turn."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        share_s = timeout_s / max(1, len(self._sources))
        for source in self._sources:
            yield from source.take(share_s)

    def lags(self) -> dict[Partition, Lag]:
        return {part: lag for source in self._sources for part, lag in source.lags().items()}

    def positions(self) -> dict[Partition, int]:
        return {part: offset for source in self._sources for part, offset in source.positions().items()}

    def problems(self) -> dict[str, str]:
        return {name: why for source in self._sources for name, why in source.problems().items()}

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        for source in self._sources:
            source.rewind(parts)

    def stop(self, part: Partition, gap: Gap) -> None:
        for source in self._sources:
            source.stop(part, gap)

    def stopped(self) -> dict[Partition, Gap]:
        return {part: gap for source in self._sources for part, gap in source.stopped().items()}

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        for source in self._sources:
            source.acknowledge(stored)

    def close(self) -> None:
        for source in self._sources:
            source.close()
