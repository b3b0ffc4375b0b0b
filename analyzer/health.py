"""How the analyzer's loop fares: told by the loop, asked by the web application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.core.model import Gap, Lag, Partition
from analyzer.metrics import Metrics
from analyzer.pipeline import FlushResult
from gatekeeper.model import Change

# A turn takes a flush at most; the database's own time-outs bound that, a lost connection included.
LOOP_MAX_S = 30.0
# Idle partitions are heard of each second. After this long without a flush there is none, or all is stuck.
FLUSH_OVERDUE_S = 15.0
# Now and then another analyzer takes a partition over. So often within so long, two read the same ones.
LOSSES_MAX, LOSSES_WITHIN_S = 5, 30.0


@dataclass(slots=True)
class Health:
    """One thread writes, another reads. Each attribute is replaced whole and none is changed in place,
    so a reader may be a moment late but never sees half of anything."""

    metrics: Metrics
    uptime_s: Callable[[], float]
    assignment_grace_s: float = FLUSH_OVERDUE_S  # until partitions are assigned; 0 for files
    started_s: float = field(init=False)
    loop_completed_s: float | None = None
    flush_committed_s: float | None = None
    lags: Mapping[Partition, Lag] = field(default_factory=dict)
    assigned_s: tuple[float, float] | None = None  # since when partitions are held, and when they last were
    losses_s: tuple[float, ...] = ()  # when we learnt that another analyzer had counted what we had
    gaps: Mapping[Partition, Gap] = field(default_factory=dict)  # what waits for a person
    failures: Mapping[str, str] = field(default_factory=dict)  # what is away, and the last sentence about it
    on_feed_change: Callable[[], None] = lambda: None  # wakes waiting gates

    def __post_init__(self) -> None:
        self.started_s = self.uptime_s()

    # The loop tells:

    def loop_completed(self, holding: int = 0) -> None:
        """The loop went round once, whatever came of it, and holds so many partitions."""
        self.loop_completed_s = now_s = self.uptime_s()
        if holding:
            # After each failure they are let go for a moment.
            began_s, last_s = self.assigned_s or (now_s, now_s)
            self.assigned_s = (began_s if now_s - last_s < FLUSH_OVERDUE_S else now_s, now_s)

    def flush_committed(self, flushed: FlushResult) -> None:
        """A transaction was committed."""
        self.lags = flushed.lags
        self.flush_committed_s = self.uptime_s()
        self.metrics.record_flush(flushed.counted, flushed.changes, flushed.seconds)
        if flushed.changes:
            self.on_feed_change()

    def partition_lost(self) -> None:
        """Another analyzer had stored what we counted."""
        self.losses_s = (*self.losses_s, self.uptime_s())[-LOSSES_MAX:]
        self.metrics.record_failure("partition")

    def locks_ended(self, changes: Sequence[Change]) -> None:
        """The warden ended these locks."""
        self.metrics.record_lock_changes(changes)
        if changes:
            self.on_feed_change()

    def dependency_failed(self, what: str, sentence: str) -> None:
        """`what` ("database", ...) is away; it is tried again."""
        self.failures = {**self.failures, what: sentence}
        self.metrics.record_failure(what)

    def partitions_stopped(self, gaps: Mapping[Partition, Gap]) -> None:
        """These partitions wait for a person."""
        self.gaps = gaps

    def dependency_recovered(self, what: str) -> None:
        self.failures = {name: why for name, why in self.failures.items() if name != what}

    # The web application asks:

    @property
    def is_alive(self) -> bool:
        """Whether the loop turns. Before its first turn it has as long as for any other."""
        last_s = self.started_s if self.loop_completed_s is None else self.loop_completed_s
        return self.uptime_s() - last_s < LOOP_MAX_S

    @property
    def current_lags(self) -> Mapping[Partition, Lag]:
        """The partitions that this analyzer follows, and how far it is behind in each."""
        return self.lags if self.since_flush_s is not None and self.since_flush_s < FLUSH_OVERDUE_S else {}

    @property
    def is_assignment_settled(self) -> bool:
        """Whether partitions are held, or there was time enough to be given some."""
        return bool(self.current_lags) or self.uptime_s() - self.started_s >= self.assignment_grace_s

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the loop, by name."""
        now_s, found = self.uptime_s(), dict(self.failures)
        if not self.is_alive:
            found["loop"] = "the loop has not turned for a long time"
        if not self.is_assignment_settled:
            found["partitions"] = "no partition is assigned yet"
        if self.unflushed_s >= FLUSH_OVERDUE_S and not self.failures:
            found["flush"] = f"partitions are held, but nothing has been stored for {self.unflushed_s:.0f} s"
        if len(self.losses_s) == LOSSES_MAX and now_s - self.losses_s[0] < LOSSES_WITHIN_S:
            found["contention"] = (
                f"another analyzer has stored what we had counted, {LOSSES_MAX} times within "
                f"{LOSSES_WITHIN_S:.0f} s: two read the same partitions. Nothing is counted twice, but look "
                'for a second one with assign = "all", or with the same group_instance_id'
            )
        return found

    @property
    def unflushed_s(self) -> float:
        """How long partitions have been held without anything of them being stored; 0.0 when none is."""
        now_s = self.uptime_s()
        if self.assigned_s is None or now_s - self.assigned_s[1] >= FLUSH_OVERDUE_S:
            return 0.0
        return now_s - max(self.assigned_s[0], self.flush_committed_s or float("-inf"))

    @property
    def since_flush_s(self) -> float | None:
        return None if self.flush_committed_s is None else self.uptime_s() - self.flush_committed_s

    @property
    def since_loop_s(self) -> float | None:
        return None if self.loop_completed_s is None else self.uptime_s() - self.loop_completed_s
