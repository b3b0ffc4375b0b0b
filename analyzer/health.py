"""How the analyzer's loop fares: told by the loop, asked by the web application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.core.model import Gap, Lag, Partition
from analyzer.metrics import Metrics
from analyzer.pipeline import FlushResult
from gatekeeper.model import Change

# A turn takes a flush at most; the database's own time-outs bound that, a lost connection included.
TURN_MAX_S = 30.0
# Idle partitions are heard of each second. After this long without a flush there is none, or all is stuck.
HELD_S = 15.0
# Now and then another analyzer takes a partition over. So often within so long, two read the same ones.
LOSSES_MAX, LOSSES_WITHIN_S = 5, 30.0


@dataclass(slots=True)
class Health:
    """One thread writes, another reads. Each attribute is replaced whole and none is changed in place,
    so a reader may be a moment late but never sees half of anything."""

    metrics: Metrics
    uptime_s: Callable[[], float]
    settle_s: float = HELD_S  # how long it may take until partitions are assigned; files need no time
    began_s: float = field(init=False)
    turned_s: float | None = None
    flushed_s: float | None = None
    lags: Mapping[Partition, Lag] = field(default_factory=dict)
    holding_s: tuple[float, float] | None = None  # since when partitions are held, and when they last were
    losses_s: tuple[float, ...] = ()  # when we learnt that another analyzer had counted what we had
    gaps: Mapping[Partition, Gap] = field(default_factory=dict)  # what waits for a person
    failures: Mapping[str, str] = field(default_factory=dict)  # what is away, and the last sentence about it
    on_news: Callable[[], None] = lambda: None  # the feed has a new version: gates that wait are told at once

    def __post_init__(self) -> None:
        self.began_s = self.uptime_s()

    # The loop tells:

    def turned(self, holding: int = 0) -> None:
        """The loop went round once, whatever came of it, and holds so many partitions."""
        self.turned_s = now_s = self.uptime_s()
        if holding:
            # After each failure they are let go for a moment.
            began_s, last_s = self.holding_s or (now_s, now_s)
            self.holding_s = (began_s if now_s - last_s < HELD_S else now_s, now_s)

    def flushed(self, flushed: FlushResult) -> None:
        """A transaction was committed."""
        self.lags = flushed.lags
        self.flushed_s = self.uptime_s()
        self.metrics.flushed(flushed.counted, flushed.changes, flushed.seconds)
        if flushed.changes:
            self.on_news()

    def lost(self) -> None:
        """Another analyzer had stored what we counted."""
        self.losses_s = (*self.losses_s, self.uptime_s())[-LOSSES_MAX:]
        self.metrics.failed("partition")

    def ended(self, changes: Sequence[Change]) -> None:
        """The warden ended these locks."""
        self.metrics.changed(changes)
        if changes:
            self.on_news()

    def failed(self, what: str, sentence: str) -> None:
        """`what` ("database", ...) is away; it is tried again."""
        self.failures = {**self.failures, what: sentence}
        self.metrics.failed(what)

    def stopped(self, gaps: Mapping[Partition, Gap]) -> None:
        """These partitions wait for a person."""
        self.gaps = gaps

    def recovered(self, what: str) -> None:
        self.failures = {name: why for name, why in self.failures.items() if name != what}

    # The web application asks:

    @property
    def alive(self) -> bool:
        """Whether the loop turns. Before its first turn it has as long as for any other."""
        return self.uptime_s() - (self.began_s if self.turned_s is None else self.turned_s) < TURN_MAX_S

    @property
    def held(self) -> Mapping[Partition, Lag]:
        """The partitions that this analyzer follows, and how far it is behind in each."""
        return self.lags if self.since_flush_s is not None and self.since_flush_s < HELD_S else {}

    @property
    def settled(self) -> bool:
        """Whether partitions are held, or there was time enough to be given some."""
        return bool(self.held) or self.uptime_s() - self.began_s >= self.settle_s

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the loop, by name."""
        now_s, found = self.uptime_s(), dict(self.failures)
        if not self.alive:
            found["loop"] = "the loop has not turned for a long time"
        if not self.settled:
            found["partitions"] = "no partition is assigned yet"
        if self.unstored_s >= HELD_S and not self.failures:
            found["flush"] = f"partitions are held, but nothing has been stored for {self.unstored_s:.0f} s"
        if len(self.losses_s) == LOSSES_MAX and now_s - self.losses_s[0] < LOSSES_WITHIN_S:
            found["contention"] = (
                f"another analyzer has stored what we had counted, {LOSSES_MAX} times within "
                f"{LOSSES_WITHIN_S:.0f} s: two read the same partitions. Nothing is counted twice, but look "
                'for a second one with assign = "all", or with the same group_instance_id'
            )
        return found

    @property
    def unstored_s(self) -> float:
        """How long partitions have been held without anything of them being stored; 0.0 when none is."""
        now_s = self.uptime_s()
        if self.holding_s is None or now_s - self.holding_s[1] >= HELD_S:
            return 0.0
        return now_s - max(self.holding_s[0], self.flushed_s or float("-inf"))

    @property
    def since_flush_s(self) -> float | None:
        return None if self.flushed_s is None else self.uptime_s() - self.flushed_s

    @property
    def since_turn_s(self) -> float | None:
        return None if self.turned_s is None else self.uptime_s() - self.turned_s
