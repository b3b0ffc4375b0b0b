"""Steps of jobs that deal with few rows."""

from __future__ import annotations

import pytest

from analyzer.kernel.jobs import step_sizes


def small_steps(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Has each step of a job deal with `rows` rows at most, however long it takes."""
    for name in ("FIRST_ROWS", "MIN_ROWS", "MAX_ROWS"):
        monkeypatch.setattr(step_sizes, name, rows)
