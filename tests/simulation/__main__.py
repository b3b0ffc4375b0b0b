"""`make simulation`: whole installations in one thread each, with faults, each story drawn from a seed."""

from __future__ import annotations

import argparse
import gc
import sys
import time

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import (
    SHOWN_EVENTS,
    part_of,
    play,
    play_all,
    repeat_with_fixed_hashes,
    report,
    summary,
)
from tests.simulation.stories import ACTS, draw

SEEDS, PROCESSES = 200, 2
TRACE_MAX = 1_000_000
REPORTED_MAX = 3  # failures; shortening each takes a while


def main() -> None:
    arguments = parse_arguments()
    if arguments.mutation:
        MUTATIONS[arguments.mutation](pytest.MonkeyPatch())
    if arguments.only is not None or arguments.seeds == 1:
        play_one(arguments)
        return
    began_s, results, reported = time.monotonic(), [], 0
    gc.freeze()  # each story begins with a collection, which need not look at modules
    for result in play_all(range(arguments.seed, arguments.seed + arguments.seeds), arguments.processes):
        results.append(result)
        if result.wrong and reported < REPORTED_MAX:
            reported += 1
            print(report(result, arguments.mutation), flush=True)
    print(summary(results, began_s))
    if any(result.wrong for result in results):
        sys.exit(1)


def play_one(arguments: argparse.Namespace) -> None:
    """Plays one story, or a part of it."""
    story = draw(arguments.seed)
    if arguments.only is not None:
        story = part_of(story, arguments.only)
    began_s = time.monotonic()
    result = play(story, shown_events=TRACE_MAX if arguments.trace else SHOWN_EVENTS)
    if arguments.trace:
        print("\n".join(result.last_events))
    if result.wrong and arguments.only is None:
        print(report(result, arguments.mutation))
    elif result.wrong:
        print("\n".join(f"  {event}" for event in result.last_events))
        print(result.wrong)
    else:
        print(summary([result], began_s))
    if result.wrong:
        sys.exit(1)


def act_numbers(text: str) -> list[int]:
    """Returns the numbers in `text`; none for "none"."""
    words = [] if text == "none" else text.split(",")
    if not all(word.isdecimal() and int(word) < ACTS for word in words):
        raise argparse.ArgumentTypeError(f"expected numbers from 0 to {ACTS - 1}, such as 3,17, or none")
    return list(map(int, words))


def at_least_one(text: str) -> int:
    """Returns the number in `text`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; alone: only this one")
    parser.add_argument("--seeds", type=at_least_one, help=f"how many; by default {SEEDS} from 0 on")
    parser.add_argument(
        "--only", type=act_numbers, help="numbers of acts, as in 3,17: the others are left out"
    )
    parser.add_argument("--trace", action="store_true", help="print every simulation step of one story")
    parser.add_argument(
        "--mutation",
        default="",
        choices=MUTATIONS,
        metavar="NAME",
        help="a mistake to find: tests/mutations.md",
    )
    parser.add_argument("--processes", type=at_least_one, default=PROCESSES)
    arguments = parser.parse_args()
    if arguments.seeds is None:
        arguments.seeds = SEEDS if arguments.seed is None else 1
    arguments.seed = arguments.seed or 0
    if arguments.mutation:
        arguments.processes = 1
    return arguments


if __name__ == "__main__":
    repeat_with_fixed_hashes()
    main()
