"""CPU of `gatelock upkeep import` for half a million combined lines, beside GoAccess on the same file.

Not equal work: GoAccess sums for a report, `import` stores a row per caller and minute and judges a policy.
"""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

LINES = 500_000
CALLERS = 5_000
DAY_S = 86_400
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
    "curl/8.5.0",
    "python-requests/2.32",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)",
)
CONFIGURATION = """
[database]
url = "sqlite:///{folder}/gatelock.db"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[[sources]]
name = "web"
topic = "unused"
format = "combined"
[[policies]]
name = "daily"
limit = 1_000_000_000
window = {{ per = "day" }}
"""


class Cost(NamedTuple):
    cpu_s: float
    wall_s: float


def write_log(path: Path, lines: int) -> None:
    """Writes a day of requests in order of time, from callers by Zipf's law; about 170 bytes a line."""
    chance = random.Random(1)
    callers = chance.choices(range(CALLERS), [1 / (n + 1) for n in range(CALLERS)], k=lines)
    midnight = datetime(2026, 1, 5, tzinfo=UTC)
    with path.open("w") as file:
        for number, caller in enumerate(callers):
            at = midnight + timedelta(seconds=number * DAY_S // lines)
            file.write(
                f"10.0.{caller >> 8}.{caller & 255} - user{caller} [{at:%d/%b/%Y:%H:%M:%S +0000}] "
                f'"GET /v1/items/{chance.randrange(1000)}?q={chance.randrange(10)} HTTP/1.1" '
                f"{chance.choice((200, 200, 200, 404, 500))} {chance.randrange(50_000)} "
                f'"https://example.com/page/{chance.randrange(50)}" "{chance.choice(AGENTS)}"\n'
            )


def cost_of(command: list[str]) -> Cost:
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took_s)


def imported(log: Path) -> Cost:
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        config = Path(folder) / "bench.toml"
        config.write_text(CONFIGURATION.format(folder=folder))
        command = [
            sys.executable,
            "-m",
            "analyzer.faces.cli",
            "--config",
            str(config),
            "upkeep",
            "import",
            str(log),
        ]
        return cost_of([*command, "--source", "web"])


def run(lines: int = LINES, rounds: int = 3) -> None:
    goaccess = shutil.which("goaccess")
    took: dict[str, list[Cost]] = {"gatelock upkeep import": [], "goaccess": []}
    with tempfile.TemporaryDirectory(prefix="gatelock-bench-") as folder:
        log = Path(folder) / "access.log"
        write_log(log, lines)
        for _ in range(rounds):  # in turn, so that a busy moment hits them alike
            took["gatelock upkeep import"].append(imported(log))
            if goaccess:
                report = str(Path(folder) / "report.json")
                command = [goaccess, str(log), "--log-format=COMBINED", "--no-progress", "-o", report]
                took["goaccess"].append(cost_of(command))
    print(f"import of {lines:,} combined lines into SQLite, median of {rounds}")
    for name, costs in took.items():
        if not costs:
            print(f"  {name:16} was not measured: it is not installed (apt-get install goaccess)")
            continue
        cpu_s, wall_s = (median(column) for column in zip(*costs, strict=True))
        ratio = median(
            c.cpu_s / other.cpu_s for c, other in zip(took["gatelock upkeep import"], costs, strict=True)
        )
        print(f"  {name:16} {cpu_s:5.2f} s of CPU, {wall_s:5.2f} s; gatelock / this, CPU: {ratio:.2f}")
