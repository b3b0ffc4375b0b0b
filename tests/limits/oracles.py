"""A clock moved by hand, and the slow, obvious answer for each limiter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class HandClock:
    """Nanoseconds that pass when told."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class LogOracle:
    """Counts all admissions of all time, again and again."""

    limit: int
    period_ns: int
    admitted: list[int] = field(default_factory=list)

    def allow(self, now_ns: int, cost: int) -> bool:
        used = sum(now_ns - self.period_ns < at <= now_ns for at in self.admitted)
        if used + cost > self.limit:
            return False
        self.admitted += [now_ns] * cost
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        live = [at for at in self.admitted if at > now_ns - self.period_ns]
        self.admitted = live[cost:]

    def remaining(self, now_ns: int) -> int:
        return self.limit - sum(now_ns - self.period_ns < at <= now_ns for at in self.admitted)


@dataclass
class BucketOracle:
    """The definition of a token bucket, in fractions: tokens run in, are capped, and are taken."""

    rate: Fraction  # tokens per nanosecond
    burst: int
    tokens: Fraction | None = None
    since_ns: int = 0

    def _fill(self, now_ns: int) -> Fraction:
        had = Fraction(self.burst) if self.tokens is None else self.tokens
        self.tokens = min(Fraction(self.burst), had + self.rate * (now_ns - self.since_ns))
        self.since_ns = now_ns
        return self.tokens

    def allow(self, now_ns: int, cost: int) -> bool:
        tokens = self._fill(now_ns)
        if tokens < cost:
            return False
        self.tokens = tokens - cost
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        self.tokens = min(Fraction(self.burst), self._fill(now_ns) + cost)

    def remaining(self, now_ns: int) -> int:
        return math.floor(self._fill(now_ns))


def worst_in_any(admitted: list[int], period_ns: int) -> int:
    """The largest number of admissions in any half-open stretch of `period_ns`."""
    return max((sum(at - period_ns < other <= at for other in admitted) for at in admitted), default=0)
