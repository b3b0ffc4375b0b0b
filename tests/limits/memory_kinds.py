"""Each kind of limiter in memory, and the oracle that decides like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gatekeeper.limits import (
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Paced,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
)
from tests.limits.oracles import (
    BucketOracle,
    CounterOracle,
    LogOracle,
    PacedOracle,
    QueueOracle,
    StepClock,
    WindowOracle,
)


@dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[[int, int, Callable[[], int]], Any]  # limit, period_ns, clock
    oracle: Callable[[int, int], Any]
    exact: bool = True  # never more than the limit in any period

    def __repr__(self) -> str:
        return self.name


def seconds(period_ns: int) -> float:
    return period_ns / 1_000_000_000


KINDS = [
    Kind("SlidingLog", lambda n, t, clock: SlidingLog(n, seconds(t), clock=clock), LogOracle),
    Kind(
        "TokenBucket",
        lambda n, t, clock: TokenBucket(n, seconds(t), clock=clock),
        lambda n, t: BucketOracle(Fraction(n, t), n),
        exact=False,
    ),
    Kind(
        "TokenBucket, burst 2",
        lambda n, t, clock: TokenBucket(n, seconds(t), 2, clock=clock),
        lambda n, t: BucketOracle(Fraction(n, t), 2),
        exact=False,
    ),
    Kind(
        "TokenBucket.strict",
        lambda n, t, clock: TokenBucket.strict(n, seconds(t), clock=clock),
        lambda n, t: BucketOracle(Fraction(n + 1 - (n + 1) // 2, t), (n + 1) // 2),
    ),
    Kind(
        "FixedWindow", lambda n, t, clock: FixedWindow(n, seconds(t), clock=clock), WindowOracle, exact=False
    ),
    Kind(
        "FixedWindow, aligned",
        lambda n, t, clock: FixedWindow(n, seconds(t), aligned=True, clock=clock),
        lambda n, t: WindowOracle(n, t, aligned=True),
        exact=False,
    ),
    Kind(
        "SlidingCounter",
        lambda n, t, clock: SlidingCounter(n, seconds(t), clock=clock),
        CounterOracle,
        exact=False,
    ),
    Kind(
        "Paced",
        lambda n, t, clock: Paced(n, seconds(t), min(9, t), clock=clock),
        lambda n, t: PacedOracle(n, t, min(9, t)),
    ),
    Kind(
        "LeakyBucket",
        lambda n, t, clock: LeakyBucket(n, seconds(t), clock=clock),
        lambda n, t: BucketOracle(Fraction(n, t), n),
        exact=False,
    ),
    Kind("LeakyQueue", lambda n, t, clock: LeakyQueue(n, seconds(t), clock=clock), QueueOracle),
]

__all__ = ["KINDS", "Kind", "StepClock"]
