"""The number of rows of a step, so that its transaction is short on any machine."""

from __future__ import annotations

from dataclasses import dataclass, field

# How long a transaction should take. SQLite has one writer: a flush waits for it. On PostgreSQL flushes wait
# for rows alone, and steps skip the rows that flushes hold; the disk and the processors are shared.
STEP_S = {"sqlite": 0.02, "postgresql": 0.05}
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
        wanted = self.rows * (self.step_s / seconds if seconds > 0 else 2.0)
        self.rows = int(min(max(wanted, self.rows / 2, MIN_ROWS), self.rows * 2, MAX_ROWS))
