"""The parts of a lock's delay: measured ones in place of defaults, and the overshoot that follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analyzer.counting.measured_delays import MeasuredDelays, PartitionClock, SourceDelay
from analyzer.delays.delay_bound import COMMIT_S, FETCH_S, POLL_S, FrontLimiter, own_delay
from analyzer.delays.delay_parts import PolicyOvershoot, delay_max_s, delay_parts
from analyzer.plan.policies import RollingQuota, Surge
from analyzer.plan.windows import Rolling

SECONDS = st.floats(0, 1_000)
MEASURED = st.builds(
    lambda flush_s, lag_s, shipping_ms, ahead_ms: MeasuredDelays(
        0.1,
        flush_s,
        lag_s,
        {"web": SourceDelay(1, shipping_ms, 9)},
        {"t[0]": PartitionClock("web", ahead_ms, 5)},
    ),
    st.none() | SECONDS,
    SECONDS,
    st.integers(0, 100_000),
    st.integers(-100_000, 100_000),
)


def test_without_an_installation_the_delay_is_that_of_defaults() -> None:
    assert delay_parts(0.1).delay == own_delay(0.1)
    assert set(delay_parts(0.1).origins.values()) == {"default", "configured"}


@given(st.lists(MEASURED, max_size=3), st.lists(SECONDS, max_size=3), st.none() | SECONDS)
def test_each_part_is_the_greatest_that_was_measured_and_says_so(
    measured: list[MeasuredDelays], ages_s: list[float], shipping_s: float | None
) -> None:
    delay, origins = delay_parts(0.1, measured, ages_s, shipping_s)
    slowest_ms = max((one.sources["web"].p99_ms for one in measured), default=0)
    assert delay.shipping_s == (slowest_ms / 1000 if shipping_s is None else shipping_s)
    assert origins.get("shipping") == (
        "given" if shipping_s is not None else "measured" if measured else None
    )
    commits_s = [one.flush_s for one in measured if one.flush_s is not None]
    assert (delay.commit_s, origins["commit"]) == (
        (max(commits_s), "measured") if commits_s else (COMMIT_S, "default")
    )
    assert delay.fetch_s == max(FETCH_S, *(one.lag_s for one in measured), 0)
    assert (delay.fetch_s > FETCH_S) is (origins["fetch"] == "measured")
    assert delay.poll_s == max(POLL_S, *ages_s, 0)
    ahead_ms = max((one.clocks["t[0]"].ahead_ms for one in measured), default=0)
    assert delay.clocks_s == max(0, ahead_ms) / 1000
    assert delay.total_s == sum(delay)


def test_the_overshoot_is_a_bound_behind_a_limiter_and_else_an_estimate() -> None:
    bound = PolicyOvershoot("daily", 1.2, FrontLimiter(20, 1.0, 8), 7.5)
    assert (bound.amount, bound.most, bound.certainty) == (320, 320, "bound")
    estimate = PolicyOvershoot("daily", 1.2, None, 7.5)
    assert (estimate.amount, estimate.most, estimate.certainty) == (9, 37, "estimate")
    assert str(estimate) == (
        "daily: about 9, in bursts up to 37, an estimate: 7.5 a second, the highest rate seen of one series, "
        "for 1.20 s"
    )
    unknown = PolicyOvershoot("daily", 1.2)
    assert (unknown.amount, unknown.most, unknown.certainty) == (None, None, "unknown")


def test_a_surge_may_come_later_in_its_window_than_a_quota() -> None:
    assert delay_max_s(RollingQuota("quota", 1, Rolling(60))) == 5
    assert delay_max_s(Surge("surge", 1, Rolling(60))) == 20
