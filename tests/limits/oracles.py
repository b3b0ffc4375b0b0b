"""A clock that tests move, and a slow but obvious implementation of each limiter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class StepClock:
    """Nanoseconds that pass when a test moves them, or while tasks sleep in `gatekeeper.testing.run`."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def uptime_s(self) -> float:
        return self.now_ns / 1e9

    def move(self, ns: int) -> None:
        self.now_ns += ns

    def advance(self, seconds: float) -> None:
        self.move(round(seconds * 1e9))


@dataclass
class LogOracle:
    """Counts the admissions of all time for each decision."""

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

    def adopt(self, old: LogOracle, now_ns: int) -> None:
        """Continues from what `old` counted under another limit, as all `adopt` methods do."""
        live = [at for at in old.admitted if at > now_ns - self.period_ns]
        self.admitted = live[-self.limit :]

    def remaining(self, now_ns: int) -> int:
        return self.limit - sum(now_ns - self.period_ns < at <= now_ns for at in self.admitted)


@dataclass
class BucketOracle:
    """The definition of a token bucket, in fractions: tokens are added, capped, and taken."""

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

    def adopt(self, old: BucketOracle, now_ns: int) -> None:
        """Permits that were used stay used, rounded up to a tick of the limiter."""
        used = old.burst - old._fill(now_ns)
        ticks_per_permit = self.rate.denominator
        ticks = min(math.ceil(used * ticks_per_permit), self.burst * ticks_per_permit)
        self.tokens, self.since_ns = self.burst - Fraction(ticks, ticks_per_permit), now_ns

    def remaining(self, now_ns: int) -> int:
        return math.floor(self._fill(now_ns))


def worst_in_any(admitted: list[int], period_ns: int) -> int:
    """Returns the largest number of admissions in any half-open stretch of `period_ns`."""
    return max((sum(at - period_ns < other <= at for other in admitted) for at in admitted), default=0)


@dataclass
class WindowOracle:
    """Counts the admissions of the present window."""

    limit: int
    period_ns: int
    aligned: bool = False
    start_ns: int | None = None
    used: int = 0

    def _end_window(self, now_ns: int) -> None:
        if self.start_ns is not None and now_ns - self.start_ns >= self.period_ns:
            self.start_ns, self.used = None, 0

    def allow(self, now_ns: int, cost: int) -> bool:
        self._end_window(now_ns)
        if self.used + cost > self.limit:
            return False
        if cost and self.start_ns is None:
            self.start_ns = now_ns // self.period_ns * self.period_ns if self.aligned else now_ns
        self.used += cost
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        self._end_window(now_ns)
        self.used = max(0, self.used - cost)
        if not self.used and cost:
            self.start_ns = None

    def adopt(self, old: WindowOracle, now_ns: int) -> None:
        self.start_ns, self.used = old.start_ns, old.used

    def remaining(self, now_ns: int) -> int:
        self._end_window(now_ns)
        return self.limit - self.used


@dataclass
class CounterOracle:
    """Counts of all windows of all time, weighed as fractions."""

    limit: int
    period_ns: int
    counts: dict[int, int] = field(default_factory=dict)

    def _sum(self, now_ns: int) -> int:
        window, into_ns = divmod(now_ns, self.period_ns)
        weight = 1 - Fraction(into_ns, self.period_ns)
        return math.floor(self.counts.get(window - 1, 0) * weight) + self.counts.get(window, 0)

    def allow(self, now_ns: int, cost: int) -> bool:
        if self._sum(now_ns) + cost > self.limit:
            return False
        window = now_ns // self.period_ns
        self.counts[window] = self.counts.get(window, 0) + cost
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        for window in (now_ns // self.period_ns, now_ns // self.period_ns - 1):
            given = min(cost, self.counts.get(window, 0))
            self.counts[window] = self.counts.get(window, 0) - given
            cost -= given

    def adopt(self, old: CounterOracle, now_ns: int) -> None:
        self.counts = old.counts

    def remaining(self, now_ns: int) -> int:
        return max(0, self.limit - self._sum(now_ns))


@dataclass
class PacedOracle:
    """Deals the whole numbers 0, 1, 2 ... to slices: slice j holds those in [j, j + 1) * share."""

    limit: int
    period_ns: int
    k: int
    used: dict[int, int] = field(default_factory=dict)

    def remaining(self, now_ns: int) -> int:
        slice_ = now_ns * self.k // self.period_ns
        share = Fraction(self.limit, self.k + 1)
        low, high = slice_ * share, (slice_ + 1) * share
        dealt = sum(low <= n < high for n in range(math.floor(low) - 1, math.ceil(high) + 1))
        return dealt - self.used.get(slice_, 0)

    def allow(self, now_ns: int, cost: int) -> bool:
        if self.remaining(now_ns) < cost:
            return False
        slice_ = now_ns * self.k // self.period_ns
        self.used[slice_] = self.used.get(slice_, 0) + cost
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        slice_ = now_ns * self.k // self.period_ns
        self.used[slice_] = max(0, self.used.get(slice_, 0) - cost)

    def adopt(self, old: PacedOracle, now_ns: int) -> None:
        self.used = old.used


@dataclass
class QueueOracle:
    """The time of the next departure, in fractions."""

    limit: int
    period_ns: int
    next_ns: Fraction | None = None

    def remaining(self, now_ns: int) -> int:
        return int(self.next_ns is None or now_ns >= self.next_ns)

    def allow(self, now_ns: int, cost: int) -> bool:
        if cost > self.remaining(now_ns):
            return not cost
        if cost:
            due_ns = Fraction(now_ns) if self.next_ns is None else max(Fraction(now_ns), self.next_ns)
            self.next_ns = due_ns + Fraction(self.period_ns, self.limit)
        return True

    def refund(self, now_ns: int, cost: int) -> None:
        """A departure cannot be taken back."""

    def adopt(self, old: QueueOracle, now_ns: int) -> None:
        """The next turn stays; the limiter rounds it up to a nanosecond."""
        self.next_ns = None if old.next_ns is None else Fraction(math.ceil(old.next_ns))
