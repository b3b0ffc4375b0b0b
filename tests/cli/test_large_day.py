"""A day of a hundred thousand callers and a million rows: a tenth of `make bench-day`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.stored_day import CALLERS, run_step, steps_of, stored_day
from tests.support.servers.postgres import Postgres

ROWS, PEAK_MIB_MAX = 1_000_000, 300.0


@pytest.mark.deep("size")
def test_a_large_day_closes_in_bounded_memory(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new_database()
    day = stored_day(url, tmp_path, ROWS)
    peaks = {step: run_step(day, command).peak_mib for step, command in steps_of(day).items()}
    assert max(peaks.values()) <= PEAK_MIB_MAX, peaks
    lines = (tmp_path / "day.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * CALLERS
    assert day.rows > 0.9 * ROWS
    postgres.drop(url)
