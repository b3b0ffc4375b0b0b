"""`make spec`: TLC checks every configuration of the formal model in docs/spec."""

from __future__ import annotations

import argparse
import sys

from tests.spec.configurations import configurations
from tests.support.servers import Missing
from tests.support.servers.tlc import find_tlc


def main() -> None:
    parser = argparse.ArgumentParser(prog="make spec", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="how the names of configurations begin, such as Flush or Plan-broken"
    )
    names = tuple(parser.parse_args().names) or ("",)
    chosen = [one for one in configurations() if one.name.startswith(names)]
    if not chosen:
        modules = sorted({one.module.stem for one in configurations()})
        parser.error(f"no configuration in docs/spec begins so; the modules are {', '.join(modules)}")
    try:
        tlc = find_tlc()
    except Missing as missing:
        sys.exit(f"the model checker needs Java, and Maven to fetch it: {missing}")
    failures = 0
    for one in chosen:
        found, seconds = tlc.check(one.module, one.path, workers=1 if one.expected.violated else 2)
        failures += found != one.expected
        wrong = "" if found == one.expected else f"   EXPECTED: {one.expected}"
        print(f"{one.name:38}{found!s:46}{seconds:6.1f} s of CPU{wrong}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(chosen)} configurations have another result")


if __name__ == "__main__":
    main()
