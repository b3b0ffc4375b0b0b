"""The number of rows of a step, so that its transaction is short on any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from analyzer.kernel.database.dialects import dialect_of
from analyzer.kernel.database.engine import without_scans, writing

FIRST_ROWS = 500
MIN_ROWS, MAX_ROWS = 20, 10_000


@dataclass(slots=True)
class StepSize:
    """Adapts the number of rows of a job's steps to how long they took. Each should take `step_s`.

    >>> size = StepSize(0.02, 1_000)
    >>> size.measured(1_000, 0.080)
    >>> size.rows
    500
    >>> size.measured(500, 0.010)
    >>> size.rows
    1000
    """

    step_s: float
    rows: int = field(default_factory=lambda: FIRST_ROWS)

    def measured(self, rows: int, seconds: float) -> None:
        """Takes in what the last step has done: half as many rows the next time at least, twice at most."""
        if rows * 2 < self.rows and seconds < self.step_s:
            return  # there was little to do
        target = self.rows * (self.step_s / seconds if seconds > 0 else 2.0)
        self.rows = int(min(max(target, self.rows / 2, MIN_ROWS), self.rows * 2, MAX_ROWS))


class SizedSteps:
    """Steps of one kind of work, each a transaction with as many rows as keep it short.

    Args:
        engine: Of the database.
        uptime_s: Measures how long steps take.
    """

    def __init__(self, engine: sa.Engine, uptime_s: Callable[[], float]) -> None:
        self._engine = engine
        self._uptime_s = uptime_s
        self._size = StepSize(dialect_of(engine).step_s)

    @property
    def rows(self) -> int:
        """The number of rows of the next step, at most."""
        return self._size.rows

    def run(self, step: Callable[[sa.Connection, int], int]) -> int:
        """Calls `step` in a transaction with a number of rows; returns how many it dealt with.

        Raises StoreAway, and what `step` raises.
        """
        began_s = self._uptime_s()
        with writing(self._engine) as db:
            without_scans(db)
            rows = step(db, self._size.rows)
        self._size.measured(rows, self._uptime_s() - began_s)
        return rows
