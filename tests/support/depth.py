"""The share of examples that randomised tests draw: one part in `make test`, ten parts in `make deep`.

Examples of hypothesis, seeds of simulated stories, orders of transactions, and steps at which an analyzer is
killed. What is marked `deep` runs there alone: sizes, the longest runs on real servers, further stories of
what another test shows, and the mutations of the rules' numbers, each of which is a run of pytest. All other
mutations are in both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

IS_DEEP = bool(os.environ.get("GATELOCK_TEST_DEEP"))
TIMES = 10
KILL_EVERY = 20  # of this number of steps one is tried


def deeper(share: int) -> int:
    """Returns how many to draw: `share` of them in `make test`, and ten times as many in `make deep`."""
    return share * TIMES if IS_DEEP else share


def at_steps(steps: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the steps at which to kill, with their places.

    The first of each kind, and each twentieth of all; all in `make deep`.
    """
    of_all = enumerate(steps)
    if IS_DEEP:
        return list(of_all)
    return [(at, step) for at, step in of_all if at % KILL_EVERY == 0 or step not in steps[:at]]
