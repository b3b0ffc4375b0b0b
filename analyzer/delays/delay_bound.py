"""The overshoot bound: how many requests pass between the limit and the closed gate, known in advance."""

from __future__ import annotations

from typing import NamedTuple


class FrontLimiter(NamedTuple):
    """The exact limiter in front of each gate: at most `limit` of one caller in any `period_s`."""

    limit: int
    period_s: float
    processes: int


class LockDelay(NamedTuple):
    """The longest delays, in seconds, from the start of a request to the last gate that applies the lock."""

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


# FETCH_S: how long a fetch waits for more records. COMMIT_S: how long a commit takes on a busy disk. POLL_S:
# the longest pause of a gate between two polls, with its jitter of a tenth.
FETCH_S, COMMIT_S, POLL_S = 0.1, 0.25, 0.44

# The greatest delay as a share of a window, so that the overshoot stays small compared with the limit.
DELAY_SHARE_MAX = 1 / 12
DELAY_SHARE_MAX_OF_SURGE = 1 / 3  # whose lock lasts much longer than its window


def own_delay(flush_s: float) -> LockDelay:
    """Returns the delays of Gatelock itself: from the record's arrival in the log to the last gate.

    Assumes a flush every `flush_s` seconds, and gates that poll at their default interval. The duration of
    the request and of the shipping of its log record is not known in advance and not included.

    >>> round(own_delay(0.1).total_s, 2)
    0.89
    """
    return LockDelay(0.0, 0.0, FETCH_S, flush_s, COMMIT_S, POLL_S)


def overshoot_max(front: FrontLimiter, delay_s: float, in_flight: int, *, weight: int = 1) -> int:
    """Returns the most that one caller is admitted beyond its limit before the last gate closes.

    `front` admits at most `limit` per process in each period that begins within `delay_s`. `in_flight` is the
    number of requests that were admitted before the limit was reached and are not answered yet; `weight` is
    the most that one request adds to the meter. The bound holds while the delay does not exceed `delay_s`.

    >>> overshoot_max(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0)
    320
    """
    periods = int(delay_s // front.period_s) + 1
    return (front.processes * front.limit * periods + in_flight) * weight
