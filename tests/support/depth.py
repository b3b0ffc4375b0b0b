"""The share of examples that randomised tests draw: one part in `make test`, ten parts in `make deep`.

Examples of hypothesis, seeds of simulated stories, and orders of transactions. All else is the same in both,
the mutations among it.
"""

from __future__ import annotations

import os

IS_DEEP = bool(os.environ.get("GATELOCK_TEST_DEEP"))
TIMES = 10


def deeper(share: int) -> int:
    """Returns how many to draw: `share` of them in `make test`, and ten times as many in `make deep`."""
    return share * TIMES if IS_DEEP else share
