"""`make cuts`: a gate's source cut and healed at random, in simulated time and then for two minutes of real
time; whatever it answers must be explained by its bounds."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from analyzer.store.database.migrate import upgrade
from tests.cuts import real, simulated
from tests.cuts.mutations import MUTATIONS
from tests.support.servers import Missing

SEEDS, REAL_S = 5, 120.0


def main() -> None:
    given = asked()
    again = (
        f'make cuts ARGS="--seed {given.seed} --seeds {given.seeds} --seconds {given.seconds:g}'
        + (f" --mutation {given.mutation}" if given.mutation else "")
        + '"'
    )
    print(f"seed {given.seed}; the same again: {again}", flush=True)
    logging.disable(logging.CRITICAL)  # a line for each cut
    if given.mutation:
        MUTATIONS[given.mutation](SimpleNamespace(setattr=setattr))
    try:
        with tempfile.TemporaryDirectory(prefix="gatelock-cuts-") as folder:
            Path(folder).chmod(0o755)
            simulate(given.seed, given.seeds, Path(folder))
            if given.seconds:
                really(given.seed, given.seconds, Path(folder))
    except Missing as missing:
        sys.exit(f"the run needs a PostgreSQL of its own: {missing}")
    except AssertionError as wrong:
        sys.exit(f"WRONG: {wrong}\nthe same again: {again}")
    print("no caller without a lock was denied, and none with one admitted longer than its bound")


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cuts", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="so many in simulated time, from this one on"
    )
    parser.add_argument("--seconds", type=float, default=REAL_S, help="of real time; 0 for none")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="must make the run fail")
    return parser.parse_args()


def simulate(seed: int, seeds: int, folder: Path) -> None:
    """Ten minutes for each seed, each source and each way of being stale."""
    template, tally, began_s = folder / "template.db", Counter[str](), time.monotonic()
    upgrade(f"sqlite:///{template}")
    stories = [
        simulated.Story(seed + n, source, on_stale)
        for n in range(seeds)
        for source in simulated.SOURCES
        for on_stale in simulated.ON_STALE
    ]
    for number, story in enumerate(stories):
        (folder / str(number)).mkdir()
        tally += simulated.World(story, folder / str(number), template).run()
    minutes = len(stories) * simulated.SECONDS / 60
    print(f"{len(stories)} stories, {minutes:,.0f} simulated minutes, in {time.monotonic() - began_s:.0f} s:")
    print(report(tally), flush=True)


def really(seed: int, seconds: float, folder: Path) -> None:
    """PostgreSQL and `gatelock serve`, behind lines."""
    began_s = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} {line}", flush=True)

    story = real.Story(seed, seconds, folder, say)
    tally = story.run()
    print(f"{seconds:g} s, {story.faults.total()} faults of {len(story.faults)} kinds, six gates,")
    print(f"{story.versions} versions of the locks; longest pause of ours {story.longest_gap_s:.2f} s:")
    print(report(tally))


def report(tally: Counter[str]) -> str:
    return "\n".join(f"  {what:<28} {count:>9,}" for what, count in sorted(tally.items()))


if __name__ == "__main__":
    main()
