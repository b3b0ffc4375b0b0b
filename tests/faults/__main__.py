"""`make faults`: the long run. Everything that can go wrong, again and again, and then it is counted."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from random import Random

from tests.faults.fault_kinds import KINDS
from tests.faults.fault_run import Outcome, Story, a_world
from tests.faults.mutations import MUTATIONS
from tests.support.servers import Missing

FAULTS, RECORDS = 200, 600_000


def main() -> None:
    given = asked()
    print(f"seed {given.seed}; the same again: {again(given)}", flush=True)
    kinds = [kind for kind in KINDS if not given.only or str(kind) in given.only]
    if not kinds:
        sys.exit("there are these kinds: " + ", ".join(map(str, KINDS)))
    random, began_s = Random(given.seed), time.monotonic()
    try:
        with a_world(random, given.mutation) as world:
            story = Story(
                world,
                given.faults,
                given.records,
                kinds,
                say=lambda line: print(f"{time.monotonic() - began_s:6.1f}", line, flush=True),
            )
            outcome = story.run()
            if outcome.wrong:
                print(world.fleet.log())
    except Missing as missing:
        sys.exit(f"the run needs a Kafka and a PostgreSQL of its own: {missing}")
    print(report(outcome))
    print(f"seed {given.seed}; the same again: {again(given)}")
    sys.exit(1 if outcome.wrong else 0)


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--records", type=int, default=RECORDS, help="beside those that faults bring along")
    parser.add_argument("--only", action="append", metavar="KIND", help="of this kind; may be said again")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS], help="must make the run fail")
    return parser.parse_args()


def again(given: argparse.Namespace) -> str:
    said = f"--seed {given.seed} --faults {given.faults} --records {given.records}"
    said += "".join(f" --only '{kind}'" for kind in given.only or ())
    said += f" --mutation {given.mutation}" if given.mutation else ""
    return f'make faults ARGS="{said}"'


def report(outcome: Outcome) -> str:
    touched = {str(kind): kind.touches for kind in KINDS}
    by_touched: Counter[str] = Counter()
    lines = []
    for name, count in sorted(outcome.faults.items(), key=lambda each: (touched[each[0]], each[0])):
        lines.append(f"  {touched[name]:<20} {name:<34} {count:>4}")
        by_touched[touched[name]] += count
    verdict = "WRONG:\n  " + "\n  ".join(outcome.wrong) if outcome.wrong else (
        "every caller's count of every minute, the ledger, the totals, the locks and the feed are right"
    )  # fmt: skip
    return "\n".join([
        f"{outcome.faults.total()} faults of {len(outcome.faults)} kinds over {outcome.records:,} records:",
        *lines,
        f"{outcome.restarts} times an analyzer found no database when it began, and began again;",
        f"{outcome.locks} locks in force after {outcome.versions} versions of the feed;"
        f" {outcome.seconds:.0f} s, {outcome.cpu_s:.0f} CPU-seconds of analyzers, broker and database",
        verdict,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
