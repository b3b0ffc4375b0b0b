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


# How long a fetch waits for more records, a commit takes on a busy disk, and a gate waits between two polls,
# with its jitter of a tenth.
FETCH_S, COMMIT_S, POLL_S = 0.1, 0.25, 0.44

# Of a window, so that the overshoot stays small compared with what the window admits.
DELAY_SHARE_MAX = 1 / 12


def own_delay(flush_s: float) -> LockDelay:
    """Returns the delays of Gatelock itself: from the record's arrival in the log to the last gate.

    With a flush every `flush_s` seconds and gates at their default pace. The request itself and the shipping
    of its log record come before and are not known in advance.

    >>> round(own_delay(0.1).total_s, 2)
    0.89
    """
    return LockDelay(0.0, 0.0, FETCH_S, flush_s, COMMIT_S, POLL_S)


def overshoot_max(front: FrontLimiter, delay_s: float, in_flight: int, *, weight: int = 1) -> int:
    """Returns the most that one caller is admitted beyond its limit before the last gate closes.

    A limiter that admits at most `limit` in any stretch of `period_s` admits at most `limit` per period begun
    within the delay, in each process. Requests that were admitted before the limit was reached and are still
    being answered are added. It holds while no delay exceeds its part of `delay_s`.

    >>> overshoot_max(FrontLimiter(20, 1.0, 8), 1.2, in_flight=0)
    320
    """
    periods = int(delay_s // front.period_s) + 1
    return (front.processes * front.limit * periods + in_flight) * weight
