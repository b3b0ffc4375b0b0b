"""The size of the demo's traffic and its waits, both by the speed of this machine."""

from __future__ import annotations

import time
from typing import NamedTuple

from analyzer.delays.delay_bound import FrontLimiter, LockDelay, overshoot_max

SPIN = 1_000_000  # turns of a loop
SPIN_S = 0.1  # their time on an idle machine on which the usual traffic takes half a core
SPEED_MIN = 0.02

# The usual traffic.
PROCESSES = 4  # of the application
LIMIT = 2_400  # with what limiters refuse, reached some 15 s after the flood begins, behind the restart
BURST, PERIOD_S = 20, 1.0  # the exact limiter in front of each process, which bounds the overshoot
CONNECTIONS = 24  # of the noisy caller at the same time
INTERVAL_S = 1.0  # between two requests of an ordinary caller, on average
PAUSE_AFTER_REFUSAL_S = 0.2
# The longest that each step from a request to a closed gate takes then; their sum is the delay of a lock.
DELAY = LockDelay(request_s=0.6, shipping_s=0.2, fetch_s=0.3, flush_s=0.3, commit_s=0.5, poll_s=1.0)


class TrafficSize(NamedTuple):
    """Traffic for a machine of a given speed; 1.0 makes the usual traffic.

    On a slow machine each step takes longer, and there are fewer requests, so that the counts do not fall
    behind.
    """

    speed: float

    @property
    def share(self) -> float:
        """Of the usual traffic. Less than the speed: gates and the analyzer also work without requests."""
        return float(self.speed**1.5)

    @property
    def processes(self) -> int:
        """Of the application. Their start takes longest."""
        return max(2, round(PROCESSES * self.speed))

    @property
    def limit(self) -> int:
        return max(100, round(LIMIT * self.share / 100) * 100)

    @property
    def limiter(self) -> FrontLimiter:
        return FrontLimiter(max(2, round(BURST * self.share)), PERIOD_S, self.processes)

    @property
    def connections(self) -> int:
        return max(self.processes, round(CONNECTIONS * self.share))

    @property
    def interval_s(self) -> float:
        return INTERVAL_S / self.share

    @property
    def pause_after_refusal_s(self) -> float:
        return PAUSE_AFTER_REFUSAL_S / self.share

    @property
    def delay_s(self) -> float:
        """The assumed delay of a lock."""
        return self.patience_s(DELAY.total_s)

    def patience_s(self, usual_s: float) -> float:
        """Returns how long to wait here for what takes at most `usual_s` on a machine of speed 1."""
        return usual_s / self.speed

    def overshoot_bound(self, delay_s: float) -> int:
        """Returns the most requests beyond the limit that limiters admit within `delay_s`."""
        return overshoot_max(self.limiter, delay_s, self.connections)


def size_for(spin_s: float) -> TrafficSize:
    """Returns the traffic for a machine on which `spin` took `spin_s`.

    >>> size_for(1.0).limit
    100
    """
    return TrafficSize(round(max(SPEED_MIN, min(1.0, SPIN_S / spin_s)), 2))


def spin() -> float:
    """Returns the seconds that a fixed loop takes now, with what other processes take of this machine."""
    began_s, total = time.perf_counter(), 0
    for number in range(SPIN):
        total += number * number % 7
    return time.perf_counter() - began_s
