"""The protocols between pipeline, sources and store, and a source that combines several."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from analyzer.kernel.model import Gap, Lag, Partition, Position, SourceItem


class LogId(NamedTuple):
    """Identity of the log behind a topic's name or a path."""

    cluster: str
    topic_id: str


class PositionStore(Protocol):
    """The stored positions, as a source uses them.

    Every method raises StoreAway within a few seconds when the database cannot be reached: it is also
    called while a consumer group rebalances. Those that read or write positions wait for a flush in flight
    first, for some seconds at most.
    """

    def positions(self, parts: Collection[Partition]) -> Mapping[Partition, Position]:
        """Returns the positions of `parts` and the gaps that block them; unknown ones are left out."""

    def begin(self, part: Partition, offset: int, resume_token: str = "") -> Position:
        """Stores `offset` as the position of a new partition; returns the stored one."""

    def finish(self, parts: Collection[Partition]) -> None:
        """Marks partitions that were read to their end as followed by no analyzer."""

    def wait_for_flush(self, timeout_s: float) -> None:
        """Returns when no flush is in flight, at the latest after `timeout_s`. Never raises; any thread."""

    def logs(self, source: str, topic: str) -> Collection[LogId]:
        """Returns every log that was begun for this source under this topic's name or path."""


class Source(Protocol):
    """Reads a log, each partition in order, from the stored position on.

    Called by one thread. Records that were taken and not stored come again after `rewind()`, here or in the
    analyzer that gets the partition next. Partitions that are not assigned are ignored in all arguments.
    """

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        """Yields the records that are there, waiting at most `timeout_s`: bounded in bytes, perhaps none.

        `PartitionRevoked` comes before anything read after the revocation. Items that are left when the
        iterator is dropped come first the next time. Raises StoreAway; calling again is safe then.
        """

    def lags(self) -> Mapping[Partition, Lag]:
        """Returns how far each assigned partition is behind its end. No I/O."""

    def positions(self) -> Mapping[Partition, int]:
        """Returns the offset to take next of each assigned partition; of a stopped one, the stored offset.

        No I/O.
        """

    def problems(self) -> Mapping[str, str]:
        """Returns the problems that keep records from coming: a sentence by name. No I/O; any thread."""

    def rewind(self, parts: Collection[Partition] | None = None) -> None:
        """Drops what was taken and not stored, of all partitions or of some, to continue as stored.

        No I/O: the next `take()` reads the positions.
        """

    def stop(self, part: Partition, gap: Gap) -> None:
        """Takes nothing more of this partition until it is rewound, because it cannot be read further.

        A source may first retry on its own, and then yields the records behind the last one counted.
        """

    def stopped(self) -> Mapping[Partition, Gap]:
        """Returns the partitions that wait for an operator, and their gaps. No I/O; any thread."""

    def acknowledge(self, stored: Mapping[Partition, int]) -> None:
        """Notes that these next offsets are stored: publishes them as advice, frees memory. Never raises."""

    def close(self) -> None:
        """Releases all partitions and connections; records that were not acknowledged are not lost."""


SHORT_S = 0.005  # waiting for a source while another one has records; enough for Kafka's group


class CombinedSource:
    """Several sources as one, polled in turn.

    Sources that had records are polled first, and the others are waited for only when none has any: an idle
    file must not make the records of a topic wait.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._first = 0  # index of the source that is polled first
        self._busy: set[int] = set()  # indexes of the sources that had records
        self._was_cut = False  # whether the iterator was dropped: then the others come first, busy or not

    def take(self, timeout_s: float) -> Iterator[SourceItem]:
        number = len(self._sources)
        share_s = timeout_s / max(1, number)
        in_turn = [(self._first + place) % number for place in range(number)]
        if not self._was_cut:
            in_turn.sort(key=lambda place: place not in self._busy)
        self._was_cut, has_taken = True, False
        for place in in_turn:
            self._first = (place + 1) % number
            self._busy.discard(place)
            for item in self._sources[place].take(min(share_s, SHORT_S) if has_taken else share_s):
                has_taken = True
                self._busy.add(place)
                yield item
        self._was_cut = False

    def lags(self) -> dict[Partition, Lag]:
        return {part: lag for source in self._sources for part, lag in source.lags().items()}

    def positions(self) -> dict[Partition, int]:
        return {part: offset for source in self._sources for part, offset in source.positions().items()}

    def problems(self) -> dict[str, str]:
        return {name: reason for source in self._sources for name, reason in source.problems().items()}

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
