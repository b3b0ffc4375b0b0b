"""One at a time, each second: opens the gates whose time is over. Each minute: keeps the tables small."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from analyzer.core.counting.meters import DAY_S, Meter
from gatekeeper.model import Change

LEASE = "warden"


class Upkeep(Protocol):
    """What the warden asks of the store: each call bounded, safe to repeat. Raises StoreAway."""

    def hold(self, name: str) -> bool: ...
    def release(self, name: str) -> None: ...
    def end_locks(self) -> Sequence[Change]: ...
    def prune(self) -> int: ...
    def roll_up(self, meters: Collection[Meter], minutes_kept_s: int, quarters_kept_s: int) -> int: ...


@dataclass(slots=True)
class Warden:
    """Does what one analyzer does for all, under a lease in the database.

    A gate ends its locks by its own clock; the warden only makes the table and the feed agree, so its
    being late or away refuses nobody.
    """

    upkeep: Upkeep
    uptime_s: Callable[[], float]
    interval_s: float = 1.0
    cleanup_interval_s: float = 60.0
    minutes_kept_s: int = 40 * DAY_S  # beyond the oldest record that is still counted
    quarters_kept_s: int = 400 * DAY_S
    last_run_s: float = float("-inf")
    last_cleanup_s: float = float("-inf")

    def run_once(self, meters: Collection[Meter]) -> Sequence[Change]:
        """The locks that were ended, if it is time to look and the lease is ours. Raises StoreAway."""
        now_s = self.uptime_s()
        if now_s - self.last_run_s < self.interval_s:
            return ()
        self.last_run_s = now_s
        if not self.upkeep.hold(LEASE):
            return ()
        changes = self.upkeep.end_locks()
        if now_s - self.last_cleanup_s >= self.cleanup_interval_s:
            went = self.upkeep.prune()
            went += self.upkeep.roll_up(meters, self.minutes_kept_s, self.quarters_kept_s)
            if not went:  # otherwise the rest goes in the next second: a call is bounded, what is due is not
                self.last_cleanup_s = now_s
        return changes

    def skip_wait(self) -> None:
        """Have the next `run_once` look, however soon it comes."""
        self.last_run_s = float("-inf")

    def close(self) -> None:
        """Hand the work over. Raises StoreAway."""
        self.upkeep.release(LEASE)
