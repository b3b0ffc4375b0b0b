"""An analyzer with a variant or a mutation: mutant_analyzer.py NAME ARGS..."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

DAY_S = 86_400


def shift_clock(seconds: int) -> None:
    """Makes the clock of this process wrong by `seconds`."""
    right_s, right_ns = time.time, time.time_ns
    time.time = lambda: right_s() + seconds
    time.time_ns = lambda: right_ns() + seconds * 1_000_000_000


def limit_disk() -> None:
    """Limits the SQLite file to the number of pages in the file $GATELOCK_TEST_PAGES, while that file exists.

    SQLite then reports SQLITE_FULL, as on a full disk.
    """
    import sqlalchemy as sa

    file = Path(os.environ["GATELOCK_TEST_PAGES"])

    def limit(connection: sa.Connection) -> None:
        pages = int(file.read_text()) if file.exists() else 2**30
        connection.exec_driver_sql(f"pragma max_page_count = {pages}")

    # On the class, because the engine is made later. Before any other listener, which begins the transaction.
    sa.event.listen(sa.engine.Engine, "begin", limit)


def mutate(name: str) -> None:
    """Takes a promise out of the product."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.faults.mutations import MUTATIONS

    MUTATIONS[name](SimpleNamespace(setattr=setattr))


ODDITIES = {
    "a_day_ahead": lambda: shift_clock(DAY_S),
    "a_day_behind": lambda: shift_clock(-DAY_S),
    "small_disk": limit_disk,
}

if __name__ == "__main__":
    name = sys.argv.pop(1)
    if name in ODDITIES:
        ODDITIES[name]()  # before anything of the analyzer is imported
    else:
        mutate(name)
    from analyzer.faces.cli import main

    main()
