"""Schedules of jobs, and runs: values that the scheduler and the store share."""

from __future__ import annotations

from typing import Literal, NamedTuple

DAY_S = 86_400

# "running": at present, or its process has died and no other one has taken the job over yet.
# "stopped": its process ended in good order before the job was done.
# "lost": its process died, or lost its lease; another one has begun since.
RunOutcome = Literal["running", "done", "failed", "stopped", "lost"]


class Schedule(NamedTuple):
    """Moments that are `every_s` seconds apart; one of them is `at_s` seconds after midnight, UTC.

    With `shared_lease` the moments are so close that a process keeps the lease between them, for all jobs
    that share it: one run of the job continues until the process ends, loses the lease or fails.
    """

    every_s: int
    at_s: int = 0
    shared_lease: str = ""  # its name; "": each run takes a lease of the job alone, and releases it

    def lease(self, job: str) -> str:
        """Returns the name of the lease under which a job of this schedule runs."""
        return self.shared_lease or f"job {job}"

    def latest_ms(self, now_ms: int) -> int:
        """Returns the last moment that is not after `now_ms`.

        >>> Schedule(60).latest_ms(125_000), Schedule(86_400, 3_600).latest_ms(3_599_999)
        (120000, -82800000)
        """
        every_ms, at_ms = self.every_s * 1000, self.at_s * 1000
        return (now_ms - at_ms) // every_ms * every_ms + at_ms

    def next_ms(self, now_ms: int) -> int:
        """Returns the first moment after `now_ms`."""
        return self.latest_ms(now_ms) + self.every_s * 1000

    def __str__(self) -> str:
        """
        >>> print(Schedule(10), Schedule(60), Schedule(300), Schedule(86_400, 11_400), sep=", ")
        every 10 seconds, every minute, every 5 minutes, daily at 03:10 UTC
        """
        if self.every_s == DAY_S:
            hours, minutes = divmod(self.at_s // 60, 60)
            return f"daily at {hours:02}:{minutes:02} UTC"
        for unit_s, unit in ((3_600, "hour"), (60, "minute"), (1, "second")):
            number, remainder = divmod(self.every_s, unit_s)
            if not remainder:
                return f"every {unit}" if number == 1 else f"every {number} {unit}s"
        raise AssertionError(self.every_s)


class BegunRun(NamedTuple):
    """A run of a job that has begun, under the job's lease."""

    job: str
    number: int  # counts the runs of the job
    scheduled_ms: int  # the moment that it is done for, or the first of them
    shared_lease: str = ""  # of its schedule

    @property
    def lease(self) -> str:
        """The name of the lease under which it runs."""
        return Schedule(0, shared_lease=self.shared_lease).lease(self.job)


class NotBegun(NamedTuple):
    """The reason for which a job does not run now."""

    wait_s: float  # until it may be due here
    holder: str = ""  # the process that runs it at the moment; "": none
    is_elsewhere: bool = False  # another process did the last run, or does it
