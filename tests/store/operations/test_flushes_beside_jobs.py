"""Flushes beside the deletion of old rows; `make bench-prune` measures it with fifty million."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.sqlite_dialect import STEP_S
from analyzer.kernel.jobs.step_sizes import MAX_ROWS, MIN_ROWS, StepSize
from analyzer.kernel.tables.schema import buckets
from tests.benchmarks.prune import BOUND_MS, JOBS, delays_beside, filled

ROWS = 20_000
WITHIN_S = 120.0


@pytest.mark.parametrize("job", JOBS)
def test_flushes_wait_little_for_a_job_that_deletes(migrated_url: str, job: str) -> None:
    filled(migrated_url, ROWS).dispose()
    found = delays_beside(migrated_url, job, WITHIN_S)
    assert found.rows == ROWS // 2, "it was done in time"
    assert found.median < 5 * BOUND_MS
    engine = open_engine(migrated_url)
    with engine.connect() as db:
        left = db.execute(sa.select(sa.func.count()).select_from(buckets)).scalar_one()
    engine.dispose()
    assert left >= ROWS // 2


def test_steps_shrink_when_they_are_slow_and_grow_when_they_are_fast() -> None:
    size = StepSize(STEP_S)
    rows = []
    for seconds_per_row in (0.001, 0.001, 0.001, 0.00001, 0.00001, 0.00001, 0.00001):
        rows.append(size.rows)
        size.measured(size.rows, size.rows * seconds_per_row)
    assert rows == [500, 250, 125, 62, 124, 248, 496]
    for _ in range(20):
        size.measured(size.rows, 10.0)
    assert size.rows == MIN_ROWS
    for _ in range(20):
        size.measured(size.rows, 0.0)
    assert size.rows == MAX_ROWS
    size.measured(3, 0.0001)
    assert size.rows == MAX_ROWS, "a step with little to do says nothing"
