"""The warden: each second ends the locks that are due, each minute deletes what no longer matters.

Of all analyzers one holds the lease and works as the warden; the others find the lease taken and do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from analyzer.core.counting.meters import DAY_S, Meter
from gatekeeper.model import Change

LEASE = "warden"


class Upkeep(Protocol):
    """The store as the warden sees it. Each call is bounded and may be repeated.

    Every method raises StoreAway.
    """

    def hold(self, name: str) -> bool:
        """Acquires or extends the lease `name`; False while another analyzer holds it."""

    def release(self, name: str) -> None:
        """Releases the lease `name`, if this analyzer holds it."""

    def end_locks(self) -> Sequence[Change]:
        """Ends locks that are due and returns the changes, up to a bound."""

    def prune(self) -> int:
        """Deletes expired rows and returns how many, up to a bound."""

    def roll_up(self, minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old buckets into wider ones and returns how many rows that removed, up to a bound."""


@dataclass(slots=True)
class Warden:
    """Does the work that one analyzer does for all, under a lease in the database.

    Gates end a lock by their own clock. The warden only makes the table and the feed agree with that, so a
    late or missing warden refuses no caller.
    """

    upkeep: Upkeep
    uptime_s: Callable[[], float]
    interval_s: float = 1.0
    cleanup_interval_s: float = 60.0
    minutes_kept_s: int = 40 * DAY_S  # longer than the age at which a record is too late to be counted
    quarters_kept_s: int = 400 * DAY_S
    last_run_s: float = float("-inf")  # uptime
    last_cleanup_s: float = float("-inf")  # uptime when a clean-up last found nothing left to delete

    def run_once(self, meters: Collection[Meter]) -> Sequence[Change]:
        """Ends due locks and returns the changes; nothing before the interval has passed, or without the
        lease. Raises StoreAway."""
        now_s = self.uptime_s()
        if now_s - self.last_run_s < self.interval_s:
            return ()
        self.last_run_s = now_s
        if not self.upkeep.hold(LEASE):
            return ()
        changes = self.upkeep.end_locks()
        if now_s - self.last_cleanup_s >= self.cleanup_interval_s:
            deleted = self.upkeep.prune()
            deleted += self.upkeep.roll_up(self.minutes_kept_s, self.quarters_kept_s)
            # Each call is bounded, what is due is not: while rows are left, continue in the next second.
            if not deleted:
                self.last_cleanup_s = now_s
        return changes

    def skip_wait(self) -> None:
        """Makes the next `run_once` work at once, whether or not the interval has passed."""
        self.last_run_s = float("-inf")

    def close(self) -> None:
        """Releases the lease, so that another analyzer can work at once. Raises StoreAway."""
        self.upkeep.release(LEASE)
