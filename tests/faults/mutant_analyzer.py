"""An analyzer with something odd about it: mutant_analyzer.py ODDITY ARGS..."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

DAY_S = 86_400


def off_by(seconds: int) -> None:
    """Its clock shows another time than everybody else's, and nothing else is wrong."""
    right_s, right_ns = time.time, time.time_ns
    time.time = lambda: right_s() + seconds
    time.time_ns = lambda: right_ns() + seconds * 1_000_000_000


def on_a_small_disk() -> None:
    """Its SQLite file cannot grow beyond the pages that stand in the file $GATELOCK_TEST_PAGES, if there is
    one: SQLite says that the disk is full, as it does when the system says so."""
    import sqlalchemy as sa

    pages = Path(os.environ["GATELOCK_TEST_PAGES"])

    def limit(connection: sa.Connection) -> None:
        most = int(pages.read_text()) if pages.exists() else 2**30
        connection.exec_driver_sql(f"pragma max_page_count = {most}")

    # At the class: the engine is made later. First, or the transaction has begun already.
    sa.event.listen(sa.engine.Engine, "begin", limit)


def mutated(name: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.faults.mutations import MUTATIONS

    MUTATIONS[name](SimpleNamespace(setattr=setattr))


ODD = {
    "a_day_ahead": lambda: off_by(DAY_S),
    "a_day_behind": lambda: off_by(-DAY_S),
    "small_disk": on_a_small_disk,
}

if __name__ == "__main__":
    oddity = sys.argv.pop(1)
    if oddity in ODD:
        ODD[oddity]()  # before anything of ours is imported
    else:
        mutated(oddity)
    from analyzer.cli import main

    main()
