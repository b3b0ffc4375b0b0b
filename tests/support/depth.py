"""The share of examples that randomised tests draw: one part in `make test`, ten parts in `make deep`.

Examples of hypothesis, seeds of simulated stories, orders of transactions, and steps at which an analyzer on
PostgreSQL is killed (on SQLite each one). All else is the same in both, the mutations among it, but
for those of the rules' numbers: each is a run of pytest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

IS_DEEP = bool(os.environ.get("GATELOCK_TEST_DEEP"))
TIMES = 10
KILLS_ON_SERVER = 3  # of this number of steps one is tried


def deeper(share: int) -> int:
    """Returns how many to draw: `share` of them in `make test`, and ten times as many in `make deep`."""
    return share * TIMES if IS_DEEP else share


def at_steps(dialect: str, steps: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the steps at which to kill, with their places.

    Of steps on a server the first of each kind, and a third of the others.
    """
    of_all = enumerate(steps)
    if dialect != "postgresql" or IS_DEEP:
        return list(of_all)
    return [(at, step) for at, step in of_all if at % KILLS_ON_SERVER == 0 or step not in steps[:at]]
