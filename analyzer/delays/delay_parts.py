"""The parts of a lock's delay, each measured by the living installation or else a default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from analyzer.counting.measured_delays import MeasuredDelays
from analyzer.delays.delay_bound import (
    COMMIT_S,
    DELAY_SHARE_MAX,
    DELAY_SHARE_MAX_OF_SURGE,
    FETCH_S,
    POLL_S,
    FrontLimiter,
    LockDelay,
    overshoot_max,
)
from analyzer.judging.kinds import policy_kind
from analyzer.plan.policies import Policy

PartOrigin = Literal["measured", "configured", "given", "default"]

# A rate is the mean of a minute, and a burst within it is several times as fast.
BURST, FEW = 3, 10


class DelayParts(NamedTuple):
    """A delay, and where each of its parts comes from.

    Attributes:
        delay: The longest delays.
        origins: By the name of the part: "shipping", "fetch", "flush", "commit", "poll", "clocks".
    """

    delay: LockDelay
    origins: Mapping[str, PartOrigin]

    def __str__(self) -> str:
        delay = self.delay
        seconds = {
            "shipping": delay.shipping_s, "fetch": delay.fetch_s, "flush": delay.flush_s,
            "commit": delay.commit_s, "poll": delay.poll_s, "clocks": delay.clocks_s,
        }  # fmt: skip
        shown = (f"{name} {seconds[name]:.3g} ({origin})" for name, origin in self.origins.items())
        return ", ".join(shown)


def delay_parts(
    flush_s: float,
    measured: Collection[MeasuredDelays] = (),
    view_ages_s: Collection[float] = (),
    shipping_s: float | None = None,
) -> DelayParts:
    """Returns the delay of locks by its parts.

    Args:
        flush_s: The configured time between two flushes.
        measured: What the living analyzers have measured; empty: defaults.
        view_ages_s: The ages of the views of living gates when they reported; empty: the default.
        shipping_s: From a request until its record is in the log, as an operator gives it; None: as measured.

    >>> str(delay_parts(0.1))
    'fetch 0.1 (default), flush 0.1 (configured), commit 0.25 (default), poll 0.44 (default)'
    """
    origins: dict[str, PartOrigin] = {}
    shipping_ms = [source.p99_ms for delays in measured for source in delays.sources.values()]
    found_s = max([0, *shipping_ms]) / 1000
    if shipping_s is not None or shipping_ms:
        origins["shipping"] = "measured" if shipping_s is None else "given"
        found_s = found_s if shipping_s is None else shipping_s
    commits_s = [delays.flush_s for delays in measured if delays.flush_s is not None]
    lag_s = max((delays.lag_s for delays in measured), default=0.0)
    skew_s = max((clock.skew_ms for delays in measured for clock in delays.clocks.values()), default=0) / 1000
    origins |= {
        "fetch": "measured" if lag_s > FETCH_S else "default",
        "flush": "configured",
        "commit": "measured" if commits_s else "default",
        # One report of an age is a sample: the longest pause between two polls is longer than most.
        "poll": "measured" if max(view_ages_s, default=0.0) > POLL_S else "default",
    }
    if skew_s:
        origins["clocks"] = "measured"
    flush_s = max([flush_s, *(delays.flush_every_s for delays in measured)])
    commit_s = max(commits_s, default=COMMIT_S)
    delay = LockDelay(
        0.0, found_s, max(FETCH_S, lag_s), flush_s, commit_s, max([POLL_S, *view_ages_s]), skew_s
    )
    return DelayParts(delay, origins)


def delay_max_s(policy: Policy) -> float:
    """Returns the longest delay, in seconds, with which a policy still limits something."""
    kind = policy_kind(policy)
    # A surge has one lock for many windows: it must only come while the window is not over.
    share = DELAY_SHARE_MAX_OF_SURGE if kind.locks_last else DELAY_SHARE_MAX
    return kind.judged_sum(policy).window.shortest_s * share


class PolicyOvershoot(NamedTuple):
    """The overshoot of one policy: what a caller is admitted beyond its limit before the last gate closes.

    Attributes:
        policy: Its name.
        delay_s: The delay of its locks.
        front: The limiter in front of each gate; None without one.
        rate: The highest rate seen of one series, in the unit of the meter per second; None: unknown.
    """

    policy: str
    delay_s: float
    front: FrontLimiter | None = None
    rate: float | None = None

    @property
    def certainty(self) -> Literal["bound", "estimate", "unknown"]:
        """The meaning of the amount: behind a limiter it is a bound."""
        if self.front is not None:
            return "bound"
        return "unknown" if self.rate is None else "estimate"

    @property
    def amount(self) -> int | None:
        """The overshoot; None where neither a limiter nor a rate is known."""
        if self.front is not None:
            return overshoot_max(self.front, self.delay_s, in_flight=0)
        return None if self.rate is None else round(self.rate * self.delay_s)

    @property
    def most(self) -> int | None:
        """The most that is explained: more is an alarm. An estimate and its bursts; of a bound, the bound."""
        return (
            BURST * self.amount + FEW
            if self.certainty == "estimate" and self.amount is not None
            else self.amount
        )

    def __str__(self) -> str:
        if self.front is not None:
            limit, period_s, processes = self.front
            return (
                f"{self.policy}: at most {self.amount:,} requests, and those in flight: {limit:,} in "
                f"{period_s:g} s in each of {processes:,} processes, for {self.delay_s:.2f} s"
            )
        if self.rate is None:
            return f"{self.policy}: unknown: as much as a caller sends in {self.delay_s:.2f} s"
        return (
            f"{self.policy}: about {self.amount:,}, in bursts up to {self.most:,}, an estimate: "
            f"{self.rate:.3g} a second, the highest rate seen of one series, for {self.delay_s:.2f} s"
        )
