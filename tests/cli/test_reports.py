"""`gatelock billing report`: provisional reports, amounts in units that people read, periods of callers.

What a report must have is added up here from the records of the log.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from pyarrow import parquet

from analyzer.kernel.tables.schema import offsets

Gatelock = Callable[..., Any]
CONFIGURATION = """
[billing]
grace = 0
groupings = ["caller", "tenant"]
zones = ["UTC"]
[[sources]]
name = "web"
file = "requests.jsonl"
groupings = ["tenant"]
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
tenant = "tenant"
took = { path = "took", unit = "us" }
size = { path = "size", kind = "bytes" }
cost = { path = "cost", kind = "money" }
[[meters]]
name = "busy"
sum = "took"
[[meters]]
name = "sent"
sum = "size"
[[meters]]
name = "spent"
sum = "cost"
"""


class Request(NamedTuple):
    """A record of the log."""

    key: str
    at: datetime
    tenant: str = "north"
    took: int = 1_250_000  # microseconds
    size: int = 2_147_483_648
    cost: str = "0.000000015"

    @property
    def fields(self) -> dict[str, object]:
        return self._asdict() | {"ts": int(self.at.timestamp()), "at": str(self.at)}


@pytest.fixture
def configuration() -> str:
    return CONFIGURATION


@pytest.fixture
def log(gatelock: Gatelock, engine: sa.Engine) -> Callable[[Iterable[Request]], None]:
    """Counts records."""
    numbers: Iterator[int] = iter(range(100))

    def log(requests: Iterable[Request]) -> None:
        file = Path(f"requests-{next(numbers)}.jsonl")
        file.write_text("".join(f"{json.dumps(one.fields)}\n" for one in requests))
        imported = gatelock("upkeep", "import", str(file), "--source", "web")
        assert imported.exit_code == 0, imported.output

    return log


def days_ago(number: int, hour: int = 12) -> datetime:
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=number) + timedelta(hours=hour)


def close(gatelock: Gatelock, *days: str) -> None:
    for day in days:
        done = gatelock("billing", "days", "close", day, "--reason", "counted", "--yes")
        assert done.exit_code == 0, done.output


def table(text: str | bytes) -> list[dict[str, str]]:
    text = text.decode() if isinstance(text, bytes) else text
    return list(csv.DictReader(io.StringIO(text)))


def test_a_day_that_is_not_over_is_provisional_in_each_format(
    gatelock: Gatelock, engine: sa.Engine, log: Callable[..., None]
) -> None:
    log([Request("acme", datetime.now(UTC))] * 3)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    beat = datetime.now(UTC).replace(microsecond=0)
    part = {"cluster": "c", "topic_id": "t", "partition": 0, "topic": "log", "source": "log", "next": 5}
    with engine.begin() as db:
        rows = [
            {**part, "partition": number, "beat_ms": int(beat.timestamp() * 1000), "behind_ms": behind_ms}
            for number, behind_ms in enumerate((5_000, 65_000, 0))
        ]
        db.execute(sa.insert(offsets), rows)
    slowest = f"{beat - timedelta(seconds=65):%Y-%m-%dT%H:%M:%SZ}"
    for name in ("csv", "jsonl", "parquet"):
        written = gatelock("billing", "report", "day", "today", "--format", name, "--out", f"day.{name}")
        assert (written.exit_code, f"day.provisional.{name}: " in written.stdout) == (0, True)
        said = f"provisional: {today} (UTC) is not closed; what was logged until {slowest} is counted\n"
        assert written.stderr == said
        assert not Path(f"day.{name}").exists()
        manifest = json.loads(Path(f"day.provisional.{name}.manifest.json").read_text())
        assert (manifest["state"], manifest["complete_until"]) == ("provisional", slowest)
    assert {row["provisional"] for row in table(Path("day.provisional.csv").read_text())} == {"true"}
    lines = [json.loads(line) for line in Path("day.provisional.jsonl").read_text().splitlines()]
    assert {line["provisional"] for line in lines} == {True}
    rows = parquet.read_table("day.provisional.parquet").to_pylist()
    assert {row["provisional"] for row in rows} == {True}
    assert [row["value"] for row in rows if row["meter"] == "requests"] == [3]


def test_a_provisional_report_never_replaces_that_of_a_closed_day(
    gatelock: Gatelock, log: Callable[..., None]
) -> None:
    log([Request("acme", days_ago(1))] * 3)
    month = f"{days_ago(1):%Y-%m-%d}..{days_ago(0):%Y-%m-%d}"
    close(gatelock, "yesterday")
    assert gatelock("billing", "report", "day", "yesterday", "--out", "usage.csv").exit_code == 0
    final = Path("usage.csv").read_bytes(), Path("usage.csv.manifest.json").read_bytes()
    assert {row["provisional"] for row in table(final[0])} == {"false"}
    assert "complete_until" not in json.loads(final[1])
    assert gatelock("billing", "report", month, "--out", "usage.csv").exit_code == 0
    assert (Path("usage.csv").read_bytes(), Path("usage.csv.manifest.json").read_bytes()) == final
    assert Path("usage.provisional.csv").exists()


def test_amounts_stand_in_units_that_people_read_beside_the_exact_ones(
    gatelock: Gatelock, log: Callable[..., None]
) -> None:
    log([Request("acme", days_ago(1)), Request("acme", days_ago(1), took=250_000, size=1, cost="1.5")])
    close(gatelock, "yesterday")
    truth = {  # meter: stored value and unit, value and unit for people
        "requests": (2, "", Decimal(2), ""),
        "busy": (1_500_000, "microseconds", Decimal("1.5"), "s"),
        "sent": (2_147_483_649, "bytes", Decimal("2.147483649"), "GB"),
        "spent": (1_500_000_015, "billionths", Decimal("1.500000015"), ""),
    }
    exact = gatelock("billing", "report", "day", "yesterday").stdout
    for name in ("csv", "jsonl", "parquet"):
        written = gatelock(
            *("billing", "report", "day", "yesterday", "--units", "--format", name, "--out", f"day.{name}")
        )
        assert written.exit_code == 0, written.output
        audited = gatelock("billing", "audit", "--report", f"day.{name}")
        assert audited.exit_code == 0, audited.output
    rows = {
        "csv": table(Path("day.csv").read_bytes()),
        "jsonl": [json.loads(line) for line in Path("day.jsonl").read_text().splitlines()],
        "parquet": parquet.read_table("day.parquet").to_pylist(),
    }
    for name, lines in rows.items():
        assert {
            line["meter"]: (
                *(int(line["value"]), line["unit"]),
                *(Decimal(line["human_value"]), line["human_unit"]),
            )
            for line in lines
        } == truth, name
        assert {Decimal(line["human_denied"]) for line in lines} == {0}
    assert "E-" not in Path("day.csv").read_text() + Path("day.jsonl").read_text(), "no exponents"
    with_units = list(csv.reader(io.StringIO(Path("day.csv").read_text())))
    assert [row[:-3] for row in with_units] == list(csv.reader(io.StringIO(exact)))
    file = Path("day.csv")
    file.write_text(file.read_text().replace("1.500000015", "1.500000014"))
    assert gatelock("billing", "audit", "--report", "day.csv").exit_code == 1


def test_corrections_have_units_that_people_read_too(gatelock: Gatelock, log: Callable[..., None]) -> None:
    log([Request("acme", days_ago(1))])
    close(gatelock, "yesterday")
    to_acme = ("--caller", "api_key:acme", "--meter", "busy", "--reason", "=a test")
    done = gatelock("billing", "days", "correct", "yesterday", *to_acme, "--amount", "-250ms")
    assert done.exit_code == 0, done.output
    [line] = table(gatelock("billing", "report", "corrections", "today", "--units").stdout)
    assert (line["value"], line["human_value"], line["human_unit"]) == ("-250000", "-0.250000", "s")
    assert line["reason"] == "'=a test"
    refused = gatelock("billing", "report", "day", "yesterday", "--units", "--format", "lago")
    assert (refused.exit_code, "exact amounts alone" in refused.stderr) == (2, True)
