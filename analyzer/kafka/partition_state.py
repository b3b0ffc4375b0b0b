"""A partition that we read: where we are in it, and how far that is from its end."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.core.model import Gap, Lag, Partition

DAY_S = 86_400.0
NO_EPOCH = -1


def resume_token_of(epoch: int) -> str:
    """What is stored beside an offset: the epoch of the leader that wrote the records before it. A log that
    was cut off has another one from there on, which tells the place from one with the same offset."""
    return "" if epoch == NO_EPOCH else str(epoch)


def epoch_of(resume_token: str) -> int:
    return int(resume_token) if resume_token.isdecimal() else NO_EPOCH


def gap_sentence(gap: Gap) -> str:
    """What stopped a partition, for whoever has to see to it."""
    if gap.kind == "too-many-rejected":
        return gap.why  # says it already
    return f"{gap.why}; `gatelock gaps list` says what to do"


@dataclass(slots=True)
class PartitionState:
    """A partition that we read."""

    part: Partition
    next: int  # the offset that will be given next
    fetched: int  # ... and the one that will be fetched next
    stored: int
    seen_ms: int  # Kafka time of the last record given; before the first, when we began
    stopped: Gap | None = None
    level_s: float | None = None  # uptime when we last had all that we knew of

    def lag(self, end: int, wall_s: float, uptime_s: float) -> Lag:
        """How far `end`, the offset after the last record, is ahead of us."""
        records = max(0, end - self.next)
        if not records and self.stopped is None:
            self.level_s = uptime_s
            return Lag(0, 0.0)
        return Lag(records, self._behind_s(wall_s - self.seen_ms / 1000, uptime_s))

    def measured(self, gap: Gap, end: int) -> None:
        """Where reading can go on behind `gap` was found out. Any thread."""
        if self.stopped == gap:
            self.stopped = gap._replace(end=end, why=f"{gap.why}; it can be read on at {end}")

    def _behind_s(self, told_s: float, uptime_s: float) -> float:
        """The age of the last record given, by its Kafka time, which mostly is its producer's. A producer may
        not know what year it is; what we lack was written after we last had everything."""
        if self.level_s is None:
            return max(0.0, told_s)
        since_level_s = uptime_s - self.level_s
        return told_s if 0.0 <= told_s <= since_level_s + DAY_S else since_level_s
