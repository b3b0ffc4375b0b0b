"""Measurements of an analyzer in the last minutes, their text, and the alarms about them."""

from __future__ import annotations

from analyzer.counting.measured_delays import (
    DelayLimits,
    MeasuredDelays,
    PartitionClock,
    RecentDelays,
    SourceDelay,
    alarms,
    measured_from,
)
from analyzer.kernel.shipping_delays import ShippingDelays, measure_delays

AT = ("web", "requests[0]")
LIMITS = DelayLimits(shipping_s=10.0, skew_s=2.0)


def delays(*delays_ms: int, newest_ms: int = 1_000_000) -> ShippingDelays:
    found = measure_delays([newest_ms] * len(delays_ms), [newest_ms - one for one in delays_ms])
    assert found is not None
    return found


def test_the_last_two_stretches_are_shown_and_no_others() -> None:
    recent = RecentDelays(0.1)
    recent.add(AT, delays(5, 5), 1_000_400, 0.0)
    recent.add_flush(0.02, 1.5, 0.0)
    assert recent.measured(0.0) == MeasuredDelays(
        0.1, 0.02, 1.5, {"web": SourceDelay(5, 5, 2)}, {"requests[0]": PartitionClock("web", -400, 5)}
    )
    recent.add(AT, delays(300), 1_000_100, 61.0)
    recent.add_flush(0.01, 0.0, 61.0)
    assert recent.measured(61.0) == MeasuredDelays(
        0.1, 0.02, 1.5, {"web": SourceDelay(5, 300, 3)}, {"requests[0]": PartitionClock("web", -100, 5)}
    )
    assert recent.measured(125.0).sources == {"web": SourceDelay(300, 300, 1)}
    assert recent.measured(190.0) == MeasuredDelays(0.1)
    recent.add(AT, delays(5), 1_000_000, 400.0)
    assert recent.measured(900.0) == MeasuredDelays(0.1), "after a long pause nothing is old"


def test_a_source_has_the_delays_of_all_its_partitions() -> None:
    recent = RecentDelays()
    recent.add(AT, delays(*[5] * 98), 1_000_000, 0.0)
    recent.add(("web", "requests[1]"), delays(7_000, 7_000), 1_000_000, 0.0)
    recent.add(("api", "calls[0]"), delays(1), 1_000_000, 0.0)
    measured = recent.measured(1.0)
    assert measured.sources == {"api": SourceDelay(1, 1, 1), "web": SourceDelay(5, 7_000, 100)}


def test_the_text_has_everything_and_another_text_is_ignored() -> None:
    recent = RecentDelays(0.1)
    recent.add(AT, delays(5, -3_000), 990_000, 0.0)
    recent.add(("bare", "plain[0]"), ShippingDelays((), 0, 0, 1_000_000), 1_000_000, 0.0)
    measured = recent.measured(0.0)
    assert measured_from(measured.to_json()) == measured
    assert measured.clocks["plain[0]"].least_ms is None
    assert measured_from("") is None
    assert measured_from('{"sources": 7}') is None
    assert measured_from('{"of_a_later_version": 7}') == MeasuredDelays()


def test_only_what_exceeds_a_limit_is_an_alarm() -> None:
    at_limit = MeasuredDelays(
        sources={"web": SourceDelay(1, 10_000, 5)},
        clocks={"requests[0]": PartitionClock("web", 2_000, -2_000)},
    )
    assert alarms(at_limit, LIMITS) == {}
    beyond = MeasuredDelays(
        sources={"web": SourceDelay(1, 10_001, 5), "api": SourceDelay(1, 2, 5)},
        clocks={
            "requests[0]": PartitionClock("web", 2_001, 0),
            "requests[1]": PartitionClock("web", -900_000, 5),
            "requests[2]": PartitionClock("web", -7, -3_000),
        },
    )
    found = alarms(beyond, LIMITS)
    assert found.keys() == {"shipping-delay", "clock-skew"}
    assert "web 10.001 s; locks are late by as much" in found["shipping-delay"]
    assert found["clock-skew"] == (
        "clocks differ by more than clock_skew_max = 2 s: requests[0] has Kafka times 2.0 s ahead of the "
        "database's clock, requests[2] has requests 3.0 s ahead of their Kafka times"
    )


def test_a_partition_that_is_read_late_proves_nothing_about_its_clock() -> None:
    behind = MeasuredDelays(clocks={"requests[0]": PartitionClock("web", -3_600_000, None)})
    assert alarms(behind, LIMITS) == {}
