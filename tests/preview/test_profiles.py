"""The profile of a log, beside a slow recount of the same records."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.forecast.look.preview_report import peak_ranges
from analyzer.forecast.look.rehearsal import rehearse
from analyzer.forecast.look.traffic_profile import COUNTED, TrafficProfile
from analyzer.kernel.model import CountTable
from analyzer.plan.policies import Surge
from analyzer.plan.windows import Rolling
from tests.support.depth import deeper

MINUTE = Rolling(60)
Request = tuple[int, str, int, int]  # second, caller, status, bytes

requests = st.lists(
    st.tuples(
        st.integers(0, 900),
        st.sampled_from(["user:ann", "user:bob", "user:cem", "user:dee"]),
        st.sampled_from([200, 404, 503]),
        st.integers(0, 5),
    ),
    max_size=200,
)


def table_of(records: Sequence[Request], rolling: Rolling) -> CountTable:
    """A drain of the counter: one row for each slot and caller."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for second, caller, status, size in records:
        row = sums[second - second % rolling.slot_s, caller]
        row[0] += 1
        row[1] += 400 <= status < 500
        row[2] += status >= 500
        row[3] += size
    ordered = sorted(sums)
    return CountTable(
        "caller",
        rolling.slot_s,
        COUNTED,
        [slot_s for slot_s, _ in ordered],
        [caller for _, caller in ordered],
        [""] * len(ordered),
        [[sums[at][column] for at in ordered] for column in range(4)],
        [],
    )


def profile_of(records: Sequence[Request], drain: int = 30, **bounds: int) -> TrafficProfile:
    profile = TrafficProfile(MINUTE, **bounds)
    for begin in range(0, len(records), drain):
        profile.add(table_of(records[begin : begin + drain], MINUTE))
    return profile


def slow_peak(seconds: Sequence[int], rolling: Rolling) -> int:
    """The most requests in slots that a window counts: those that it holds a part of."""
    slots = Counter(second // rolling.slot_s for second in seconds)
    span = rolling.period_s // rolling.slot_s + 1
    return max(sum(slots[slot] for slot in range(end - span + 1, end + 1)) for end in slots)


@given(requests)
def test_each_caller_has_the_totals_and_the_peak_of_a_recount(records: list[Request]) -> None:
    profile = profile_of(records)
    found = {one.key: one for one in profile.series()}
    assert found.keys() == {caller for _, caller, _, _ in records}
    for caller, one in found.items():
        own = [record for record in records if record[1] == caller]
        assert one.requests == len(own)
        assert one.client_errors == sum(400 <= status < 500 for _, _, status, _ in own)
        assert one.server_errors == sum(status >= 500 for _, _, status, _ in own)
        assert one.bytes == sum(size for _, _, _, size in own)
        assert one.peak == slow_peak([second for second, _, _, _ in own], MINUTE)
    assert profile.requests == len(records)
    hours = Counter(second // 3600 for second, _, _, _ in records)
    assert {number: hour.requests for number, hour in profile.hours().items()} == hours


@given(requests.map(sorted), st.integers(1, 30))
@settings(max_examples=deeper(30))
def test_slots_that_are_dropped_change_no_judgement_from_the_floor_on(
    records: list[Request], limit: int
) -> None:
    whole, bounded = profile_of(records), profile_of(records, drain=10, cells_max=20)
    limit = max(limit, bounded.floor)
    policy = Surge("surge", limit, MINUTE)
    assert rehearse(policy, bounded.series()) == rehearse(policy, whole.series())
    assert [one[:7] for one in bounded.series()] == [one[:7] for one in whole.series()], "totals and peaks"
    assert bounded.late == 0


def test_a_day_of_few_requests_fits_into_few_cells() -> None:
    """One request in ten minutes is in no busy window: its slots are dropped, and its totals stay."""
    profile = TrafficProfile(MINUTE, cells_max=50)
    for number in range(500):
        profile.add(table_of([(600 * number, "user:ann", 200, 1)], MINUTE))
    (ann,) = profile.series()
    assert (ann.requests, ann.bytes, ann.peak, profile.floor) == (500, 500, 1, 2)
    assert len(ann.members[0]) <= 50


def test_many_callers_are_joined_and_a_heavy_one_is_kept() -> None:
    profile = TrafficProfile(MINUTE, series_max=100)
    for number in range(50):
        records = [(number, f"address:{number}.{n}", 200, 1) for n in range(20)]
        profile.add(table_of(records + [(number, "address:heavy", 200, 1)] * 5, MINUTE))
    kept = {one.key: one for one in profile.series()}
    assert len(kept) <= 100
    assert kept["address:heavy"].requests == 250
    assert profile.joined.series + len(kept) == 1001
    assert profile.joined.requests + sum(one.requests for one in kept.values()) == profile.requests == 1250
    assert profile.joined_peaks == {1: profile.joined.series}
    assert profile.floor == 2


def test_lines_far_out_of_order_are_counted_and_named() -> None:
    profile = TrafficProfile(MINUTE, cells_max=10)
    for number in range(20):
        profile.add(table_of([(10_000 + 600 * number, "user:ann", 200, 1)], MINUTE))
    profile.add(table_of([(0, "user:ann", 200, 1)] * 7, MINUTE))
    (ann,) = profile.series()
    assert (ann.requests, ann.peak, profile.late) == (27, 7, 7)


@given(st.dictionaries(st.integers(1, 5_000), st.integers(1, 9), min_size=1))
def test_ranges_of_peaks_have_every_series_once(peaks: dict[int, int]) -> None:
    ranges = peak_ranges(peaks)
    assert sum(one.series for one in ranges) == sum(peaks.values())
    assert ranges[0].first == 1
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(ranges))
    assert ranges[-1].series > 0
