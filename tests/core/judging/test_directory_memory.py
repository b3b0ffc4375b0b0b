"""The memory of a directory of many callers, which each analyzer holds."""

from __future__ import annotations

import tracemalloc
from zoneinfo import available_timezones

import pytest

from analyzer.judging.caller_limits import Directory, Profile

CALLERS = 100_000
BYTES_MAX = 150  # for each caller, its name of 32 characters included


@pytest.mark.deep("size")
def test_a_million_callers_with_a_zone_and_an_anchor_take_less_than_150_mb() -> None:
    """Measured: 112 bytes for each. Of 100,000 callers, because all sizes grow with their number."""
    zones = sorted(available_timezones())
    tracemalloc.start()
    directory = Directory()
    for n in range(CALLERS):
        anchor = f"20{n % 25:02}-{n // 25 % 12 + 1:02}-{n // 300 % 28 + 1:02}"
        profile = Profile(("free", "pro", "gold")[n % 3], "", zones[n * 7 % 300], anchor)
        directory.set_profile(f"api_key:{n:024}", profile)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(directory.numbers) > CALLERS * 0.99
    assert held / CALLERS < BYTES_MAX
