"""Speed of a replay and of an import of the same file, and how long a swap holds its partitions.

python -m tests.benchmarks.replay [LINES] [CALLERS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from analyzer.kernel.database.migrate import upgrade
from analyzer.replay import swap
from tests.support.replayed_logs import AFTER, BEFORE, FileInstallation, event, write_log


def main(lines: int = 200_000, callers: int = 200) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, at_s = Path(folder) / "web.log", int(time.time()) - 86_400
        write_log(log, [event(at_s + n // 100, f"o{n % callers}", f"a{n % callers}") for n in range(lines)])
        url = f"sqlite:///{folder}/gatelock.db"
        upgrade(url)
        here = FileInstallation(Path(folder) / "live", url, log)
        spent = [_cpu_s(lambda: here.count(BEFORE))]
        here.put_in_force(AFTER)
        numbers: list[int] = []
        spent.append(_cpu_s(lambda: numbers.append(here.replay())))
        began_s = time.monotonic()
        done = swap.swap(here.engine, numbers[0], "benchmark", "measured", rows_max=10**9)
        took_s = time.monotonic() - began_s
        here.close()
    print(f"import {spent[0]:.2f} s, replay {spent[1]:.2f} s of CPU: {spent[0] / spent[1]:.2f} of its speed")
    print(f"{done.replay.ledger.seen:,} records; a swap of {done.rows:,} rows takes {took_s:.2f} s")


def _cpu_s(act: Callable[[], object]) -> float:
    began_s = time.process_time()
    act()
    return time.process_time() - began_s


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
