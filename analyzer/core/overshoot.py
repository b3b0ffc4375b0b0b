"""How many requests may slip through between the limit and the closed gate: a bound, said beforehand."""

from __future__ import annotations

from typing import NamedTuple


class Front(NamedTuple):
    """The exact limiter in front of each gate: at most `limit` of one caller in any `period_s`."""

    limit: int
    period_s: float
    processes: int


class Delay(NamedTuple):
    """The waits between a request's end and the last gate that knows, each in seconds and at its worst."""

    request_s: float  # logs are written when a request ends
    shipping_s: float
    fetch_s: float
    flush_s: float
    commit_s: float
    poll_s: float  # with its jitter and time-out
    clocks_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self)


def slipped_at_most(front: Front, delay_s: float, in_flight: int, *, weight: int = 1) -> int:
    """The most that one caller is let through beyond its limit before the last gate closes.

    A limiter that admits at most `limit` in any stretch of `period_s` admits at most `limit` for each
    period begun in the delay, in each process. Requests that were admitted before the limit was
    reached and are still being answered come on top. It holds while no alarm is up.

    >>> slipped_at_most(Front(20, 1.0, 8), 1.2, in_flight=0)
    320
    """
    begun = int(delay_s // front.period_s) + 1
    return (front.processes * front.limit * begun + in_flight) * weight
