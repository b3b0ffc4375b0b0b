"""`gatelock look` beside GoAccess: two million lines of a real log with varied addresses, plain and gzip.

Not equal work: GoAccess has panels for referrers, agents and paths, `look` the peaks of each
caller and the locks of a limit.

Usage: python -m tests.benchmarks.look [LINES [ROUNDS]]
"""

from __future__ import annotations

import gzip
import random
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.benchmarks.imports import Cost, cost_of

LINES = 2_000_000
ROUNDS = 3
ADDRESSES = 50_000
REAL_SHARE = 0.3  # of the lines that keep their address
LINES_PER_S = 23
BEGIN_S = 1_431_857_103
LOG = Path(__file__).parents[1] / "data" / "apache_combined_10k.log.gz"


def write_log(path: Path, lines: int) -> None:
    """Writes the real lines again and again, in order of time; few addresses have most of the requests."""
    chance = random.Random(1)
    addresses = [".".join(str(chance.randrange(1, 224)) for _ in range(4)) for _ in range(ADDRESSES)]
    with gzip.open(LOG, "rt", encoding="utf-8", errors="surrogateescape") as packed:
        real = [line.partition(" ") for line in packed]
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        for number in range(lines):
            address, _, rest = real[number % len(real)]
            if chance.random() >= REAL_SHARE:
                address = addresses[int(ADDRESSES * chance.random() ** 4)]
            user, _, timed = rest.partition("[")
            at = datetime.fromtimestamp(BEGIN_S + number // LINES_PER_S, UTC)
            behind = timed.partition("]")[2]
            file.write(f"{address} {user}[{at:%d/%b/%Y:%H:%M:%S +0000}]{behind}")


def compress(path: Path) -> Path:
    packed = path.with_suffix(".log.gz")
    with path.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as out:
        shutil.copyfileobj(plain, out)
    return packed


def compare(log: Path, rounds: int) -> None:
    goaccess = shutil.which("goaccess")
    looks: list[Cost] = []
    peers: list[Cost] = []
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        for _ in range(rounds):  # in turn, so that a busy moment hits them alike
            looks.append(cost_of([sys.executable, "-m", "analyzer.faces.cli", "look", str(log)]))
            if goaccess is not None:
                report = str(Path(folder) / "report.json")
                options = ["--log-format=COMBINED", "--no-progress", "-o", report]
                command = f"{goaccess} '{log}' {' '.join(options)}"
                if log.suffix == ".gz":  # Debian's is made without zlib
                    command = f"zcat '{log}' | {goaccess} - {' '.join(options)}"
                peers.append(cost_of(["sh", "-c", command]))
    for name, costs in (("gatelock look", looks), ("goaccess", peers)):
        if not costs:
            print(f"  {name:14} was not measured: it is not installed (apt-get install goaccess)")
            continue
        cpu_s, wall_s = (median(column) for column in zip(*costs, strict=True))
        cpu = median(one.cpu_s / other.cpu_s for one, other in zip(looks, costs, strict=True))
        wall = median(one.wall_s / other.wall_s for one, other in zip(looks, costs, strict=True))
        figures = f"{cpu_s:6.2f} s of CPU, {wall_s:6.2f} s"
        print(f"  {name:14} {figures}; gatelock / this: {cpu:.2f} (CPU), {wall:.2f} (time)")


def run(lines: int = LINES, rounds: int = ROUNDS) -> None:
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as folder:
        plain = Path(folder) / "access.log"
        write_log(plain, lines)
        for log in (plain, compress(plain)):
            size = f"{log.stat().st_size / 1e6:,.0f} MB"
            print(f"{log.name}: {lines:,} combined lines, {size}, median of {rounds}")
            compare(log, rounds)


if __name__ == "__main__":
    run(*map(int, sys.argv[1:3]))
