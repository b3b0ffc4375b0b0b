"""`make faults`: two hundred faults of every kind while records are written; then every count is checked.

`make faults ARGS="--core 0.05"` is about time: an analyzer with that share of a core counts a backlog.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from tests.faults.fault_kinds import FAULT_KINDS
from tests.faults.fault_run import FaultRun, Outcome, fault_world
from tests.faults.mutations import MUTATIONS
from tests.faults.starved_analyzer import count_starved
from tests.support.servers import Missing

FAULTS, RECORDS = 200, 600_000
BACKLOG, BACKLOG_S = 200_000, 3_600.0  # of an analyzer with a share of a core


def main() -> None:
    given = arguments()
    if given.core:
        sys.exit(count_with_a_share_of_a_core(given))
    print(f"seed {given.seed}; repeat with: {repeat_command(given)}", flush=True)
    kinds = [kind for kind in FAULT_KINDS if not given.only or str(kind) in given.only]
    if not kinds:
        sys.exit("the kinds are: " + ", ".join(map(str, FAULT_KINDS)))
    random, began_s = Random(given.seed), time.monotonic()
    try:
        with fault_world(random, given.mutation) as world:
            run_of_faults = FaultRun(
                world,
                given.faults,
                given.records,
                kinds,
                log=lambda line: print(f"{time.monotonic() - began_s:6.1f}", line, flush=True),
            )
            outcome = run_of_faults.run()
            if outcome.violations:
                print(world.fleet.log())
    except Missing as missing:
        sys.exit(f"the run needs to start a Kafka and a PostgreSQL: {missing}")
    print(report(outcome))
    print(f"seed {given.seed}; repeat with: {repeat_command(given)}")
    sys.exit(1 if outcome.violations else 0)


def count_with_a_share_of_a_core(given: argparse.Namespace) -> int:
    """Has one analyzer count a backlog with a share of a core; returns the exit code."""
    began_s = time.monotonic()
    records = BACKLOG if given.records == RECORDS else given.records
    try:
        with fault_world(Random(given.seed)) as world:
            outcome = count_starved(
                world,
                records,
                given.core,
                BACKLOG_S,
                lambda line: print(f"{time.monotonic() - began_s:6.1f}", line, flush=True),
            )
    except Missing as missing:
        sys.exit(f"the run needs to start a Kafka and a PostgreSQL: {missing}")
    print(f"{given.core} of a core: {outcome}")
    return 0 if outcome.is_right else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--records", type=int, default=RECORDS, help="besides those that faults write")
    parser.add_argument("--only", action="append", metavar="KIND", help="only this kind; may be repeated")
    parser.add_argument("--core", type=float, default=0.0, help="instead: one analyzer, so much of a core")
    parser.add_argument(
        "--mutation",
        default="",
        choices=["", *MUTATIONS],
        help="takes out a promise: the run must fail",
    )
    return parser.parse_args()


def repeat_command(given: argparse.Namespace) -> str:
    options = f"--seed {given.seed} --faults {given.faults} --records {given.records}"
    options += "".join(f" --only '{kind}'" for kind in given.only or ())
    options += f" --mutation {given.mutation}" if given.mutation else ""
    return f'make faults ARGS="{options}"'


def report(outcome: Outcome) -> str:
    targets = {str(kind): kind.target for kind in FAULT_KINDS}
    lines = []
    for name, count in sorted(outcome.faults.items(), key=lambda item: (targets[item[0]], item[0])):
        lines.append(f"  {targets[name]:<24} {name:<34} {count:>4}")
    verdict = "VIOLATIONS:\n  " + "\n  ".join(outcome.violations) if outcome.violations else (
        "the counts of every caller and minute, the ledger, the totals, the locks and the feed are right"
    )  # fmt: skip
    return "\n".join([
        f"{outcome.faults.total()} faults of {len(outcome.faults)} kinds over {outcome.records:,} records:",
        *lines,
        f"{outcome.restarts} times an analyzer found no database at its start and was started again;",
        f"{outcome.locks} locks in force after {outcome.versions} versions of the feed;"
        f" {outcome.seconds:.0f} s, {outcome.cpu_s:.0f} CPU-seconds of analyzers, broker and database",
        verdict,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
