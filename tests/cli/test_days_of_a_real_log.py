"""Four days of a real access log, imported and closed: the reports have what awk counts."""

from __future__ import annotations

import csv
import gzip
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

Gatelock = Callable[..., Any]
LOG = Path(__file__).parents[2] / "tests" / "data" / "apache_combined_10k.log.gz"
FIRST, LAST = "2015-05-17", "2015-05-20"
DATES = [f"{datetime.fromisoformat(FIRST) + timedelta(days=at):%Y-%m-%d}" for at in range(4)]
# Of each day and address: lines, and bytes sent. The last field but the two quoted ones.
COUNTED = r"""
{ split($4, at, /[\[\/:]/); day = at[4] "-05-" at[2]; lines[day " " $1]++
  rest = $0; sub(/^[^"]*"([^"\\]|\\.)*" /, "", rest); split(rest, field, " "); sent[day " " $1] += field[2] }
END { for (key in lines) print key, lines[key], sent[key] }
"""


@pytest.fixture
def configuration() -> str:
    return """
        [[sources]]
        file = "access.log"
        format = "combined"
        [[meters]]
        name = "sent"
        sum = "bytes"
        """


def counted_by_awk(log: Path) -> dict[tuple[str, str], tuple[int, int]]:
    command = ["awk", COUNTED, str(log)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in printed.splitlines())
    return {(day, f"address:{address}"): (int(lines), int(sent)) for day, address, lines, sent in rows}


def reported(report: str, day: str) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in csv.DictReader(StringIO(report)):
        found.setdefault((day, row["caller"]), {})[row["meter"]] = int(row["value"])
    return {at: (amounts["requests"], amounts.get("sent", 0)) for at, amounts in found.items()}


@pytest.mark.usefixtures("engine")
def test_each_day_has_the_lines_and_bytes_that_awk_finds(
    gatelock: Gatelock, engine: sa.Engine, tmp_path: Path
) -> None:
    """Nearly all lines of the log are out of order, by up to a minute."""
    log = tmp_path / "access.log"
    log.write_bytes(gzip.decompress(LOG.read_bytes()))
    gatelock("upkeep", "import", "access.log", "--source", "access.log")
    expected = counted_by_awk(log)
    assert len({day for day, _ in expected}) == 4
    assert (sum(lines for lines, _ in expected.values())) == 10_000
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for day in DATES:
        assert gatelock("billing", "days", "close", day, "--reason", "counted", "--yes").exit_code == 0
        result = gatelock("billing", "report", "day", day, "--final")
        assert result.exit_code == 0, result.output
        found |= reported(result.stdout, day)
    assert found == expected
    whole = reported(gatelock("billing", "report", f"{FIRST}..{LAST}", "--final").stdout, "")
    for (_, caller), (lines, sent) in whole.items():
        of_days = [amounts for (_, name), amounts in expected.items() if name == caller]
        assert (lines, sent) == tuple(map(sum, zip(*of_days, strict=True)))
