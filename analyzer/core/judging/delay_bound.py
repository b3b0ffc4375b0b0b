"""How many requests may slip through between the limit and the closed gate: a bound, said beforehand."""

from __future__ import annotations

from typing import NamedTuple


class FrontLimiter(NamedTuple):
    """The exact limiter in front of each gate: at most `limit` of one caller in any `period_s`."""

    limit: int
    period_s: float
    processes: int


class LockDelay(NamedTuple):
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


# How long a fetch waits for more, a commit takes on a busy disk, and a gate lets pass between two polls,
# give or take its tenth.
FETCH_S, COMMIT_S, POLL_S = 0.1, 0.25, 0.44

# Of a window, so that what slips through stays small beside what the window lets through.
DELAY_SHARE_MAX = 1 / 12


def own_delay(flush_s: float) -> LockDelay:
    """The waits that are ours, with a flush each `flush_s` seconds and gates at their usual pace: from the
    record's being in the log to the last gate's knowing. The request itself and the log's shipping come
    before, and nobody knows them beforehand.

    >>> round(own_delay(0.1).total_s, 2)
    0.89
    """
    return LockDelay(0.0, 0.0, FETCH_S, flush_s, COMMIT_S, POLL_S)


def slipped_at_most(front: FrontLimiter, delay_s: float, in_flight: int, *, weight: int = 1) -> int:
    """The most that one caller is let through beyond its limit before the last gate closes.

    A limiter that admits at most `limit` in any stretch of `period_s` admits at most `limit` for each
    period begun in the delay, in each process. Requests that were admitted before the limit was
    reached and are still being answered come on top. It holds while no alarm is up.

    >>> slipped_at_most(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0)
    320
    """
    begun = int(delay_s // front.period_s) + 1
    return (front.processes * front.limit * begun + in_flight) * weight
