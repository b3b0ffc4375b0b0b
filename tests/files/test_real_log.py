"""Ten thousand lines of a real log: counts per address and day equal those of awk."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gatelock_processes import run_gatelock

LOG = Path(__file__).parents[1] / "data" / "apache_combined_10k.log.gz"
CONFIGURATION = """
[database]
url = "{database}"
[[sources]]
name = "web"
topic = "access-log"
format = "combined"
"""
# Address and day, as [17/May/2015:10:05:03 +0000] has it; all of these lines are in UTC.
AWK = r'{ split(substr($4, 2), at, ":"); n[$1 " " at[1]]++ } END { for (key in n) print key, n[key] }'
MONTHS = {"May": "05"}


def gatelock(config: Path, *arguments: str) -> str:
    ran = run_gatelock("--config", str(config), *arguments, timeout_s=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def counted(config: Path) -> dict[tuple[str, str], int]:
    rows = map(json.loads, gatelock(config, "usage", "--json", "--width", "day").splitlines())
    return {(row["caller"], row["bucket"][:10]): row["value"] for row in rows if row["meter"] == "requests"}


def test_a_real_log_is_counted_as_by_awk_however_often_it_is_imported(
    migrated_url: str, tmp_path: Path
) -> None:
    if shutil.which("awk") is None:
        pytest.fail("install awk: the counts are compared with those of awk")
    config = tmp_path / "gatelock.toml"
    config.write_text(CONFIGURATION.format(database=migrated_url))
    plain = tmp_path / "access.log"
    plain.write_bytes(gzip.decompress(LOG.read_bytes()))
    truth = {}
    for line in subprocess.run(
        ["awk", AWK, plain], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        address, date, n = line.split()
        day, month, year = date.split("/")
        truth[f"address:{address}", f"{year}-{MONTHS[month]}-{day}"] = int(n)
    assert sum(truth.values()) == 10_000

    gatelock(config, "upkeep", "import", str(LOG), "--source", "web")
    assert counted(config) == truth
    gatelock(
        config, "upkeep", "import", str(LOG), str(plain), "--source", "web"
    )  # compressed or not, it is one log
    assert counted(config) == truth
    assert json.loads(gatelock(config, "billing", "audit", "--json"))["equal"]
