"""`make cuts`: random faults of a gate's source, in simulated time and then for two minutes of real time.

Every answer of the gate must be possible within its bounds (`bound.py`).
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from analyzer.kernel.database.migrate import upgrade
from tests.cuts import real, simulated
from tests.cuts.mutations import MUTATIONS
from tests.support.servers import Missing

SEEDS, REAL_S = 5, 120.0


def main() -> None:
    arguments = parse_arguments()
    repeat = (
        f'make cuts ARGS="--seed {arguments.seed} --seeds {arguments.seeds} --seconds {arguments.seconds:g}'
        + (f" --mutation {arguments.mutation}" if arguments.mutation else "")
        + '"'
    )
    print(f"seed {arguments.seed}; to repeat: {repeat}", flush=True)
    logging.disable(logging.CRITICAL)  # gates log each fault
    if arguments.mutation:
        MUTATIONS[arguments.mutation](SimpleNamespace(setattr=setattr))
    try:
        with tempfile.TemporaryDirectory(prefix="gatelock-cuts-") as folder:
            Path(folder).chmod(0o755)
            run_simulated(arguments.seed, arguments.seeds, Path(folder))
            if arguments.seconds:
                run_real(arguments.seed, arguments.seconds, Path(folder))
    except Missing as missing:
        sys.exit(f"the run starts a PostgreSQL server: {missing}")
    except AssertionError as wrong:
        sys.exit(f"WRONG: {wrong}\nto repeat: {repeat}")
    print("no caller without a lock was denied, and none with a lock allowed for longer than the bound")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cuts", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="how many seeds in simulated time, starting with --seed"
    )
    parser.add_argument("--seconds", type=float, default=REAL_S, help="of real time; 0 for none")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="must make the run fail")
    return parser.parse_args()


def run_simulated(seed: int, seeds: int, folder: Path) -> None:
    """Runs ten simulated minutes for each seed, source and on_stale."""
    template, counts, began_s = folder / "template.db", Counter[str](), time.monotonic()
    upgrade(f"sqlite:///{template}")
    scenarios = [
        simulated.Scenario(seed + n, source, on_stale)
        for n in range(seeds)
        for source in simulated.SOURCES
        for on_stale in simulated.ON_STALE
    ]
    for number, scenario in enumerate(scenarios):
        (folder / str(number)).mkdir()
        counts += simulated.SimulatedRun(scenario, folder / str(number), template).run()
    minutes, took_s = len(scenarios) * simulated.SECONDS / 60, time.monotonic() - began_s
    print(f"{len(scenarios)} scenarios, {minutes:,.0f} simulated minutes, in {took_s:.0f} s:")
    print(format_counts(counts), flush=True)


def run_real(seed: int, seconds: float, folder: Path) -> None:
    """Runs gates on PostgreSQL and on `gatelock serve`, behind proxies."""
    began_s = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} {text}", flush=True)

    run = real.RealRun(seed, seconds, folder, report)
    counts = run.run()
    print(f"{seconds:g} s, {run.faults.total()} faults of {len(run.faults)} kinds, six gates,")
    print(f"{run.versions} versions of the locks; longest pause of this process {run.longest_gap_s:.2f} s:")
    print(format_counts(counts))


def format_counts(counts: Counter[str]) -> str:
    return "\n".join(f"  {outcome:<28} {count:>9,}" for outcome, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
