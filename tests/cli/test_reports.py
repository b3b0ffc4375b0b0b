"""`gatelock billing report`: provisional reports, amounts in units that people read, periods of callers.

What a report must have is added up here from the records of the log.
"""

from __future__ import annotations

import csv
import io
import json
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from pyarrow import parquet

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import offsets

Gatelock = Callable[..., Any]
CONFIGURATION = """
[billing]
grace = 0
recount = "never"
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
        expected = f"provisional: {today} (UTC) is not closed; what was logged until {slowest} is counted\n"
        assert written.stderr == expected
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


class Subscriber(NamedTuple):
    """A caller or tenant with its facts."""

    name: str
    zone: str
    anchor: int  # a day of the month


SUBSCRIBERS = (
    Subscriber("api_key:auckland", "Pacific/Auckland", 14),
    Subscriber("api_key:calendar", "", 1),
    Subscriber("api_key:last", "", 31),
    Subscriber("api_key:york", "America/New_York", 3),
    Subscriber("tenant:north", "Asia/Kolkata", 20),
)


def period_begin(day: date, subscriber: Subscriber) -> date:
    """The date on which the period that a billed day belongs to begins, by the subscriber's clocks."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    local = midnight.astimezone(ZoneInfo(subscriber.zone or "UTC")).date()
    while local.day != min(subscriber.anchor, monthrange(local.year, local.month)[1]):
        local -= timedelta(days=1)
    return local


def close_until(engine: sa.Engine, first: date, last: date) -> None:
    with writing(engine) as db:
        add_day(db, "UTC", int(datetime(first.year, first.month, first.day, 12, tzinfo=UTC).timestamp()))
    billing = Billing(grace_s=0.0, groupings=("caller", "tenant"))
    now_ms = int(datetime.now(UTC).timestamp()) * 1000
    closing = DayClosing(engine, billing, lambda _: {}, lambda: "mark", lambda: now_ms)
    for _ in range((last - first).days + 1):
        assert closing.step() == 1


def test_each_caller_has_the_days_of_its_period(
    gatelock: Gatelock, engine: sa.Engine, log: Callable[..., None]
) -> None:
    """Callers of three zones, one of them without an anchor; and their tenant, of a fourth zone."""
    month = (datetime.now(UTC) - timedelta(days=65)).date().replace(day=1)
    all_days = [month + timedelta(days=number) for number in range(-1, 64)]
    of_callers = [subscriber for subscriber in SUBSCRIBERS if subscriber.name.startswith("api_key:")]
    requests = [
        Request(subscriber.name.partition(":")[2], datetime(day.year, day.month, day.day, hour, tzinfo=UTC))
        for subscriber in of_callers
        for number, day in enumerate(all_days)
        for hour in (0, 23)[: 1 + number % 2]
    ]
    log(requests)
    for subscriber in SUBSCRIBERS:
        facts = ["--zone", subscriber.zone] if subscriber.zone else []
        facts += ["--anchor", f"2020-01-{subscriber.anchor:02}"] if subscriber.anchor > 1 else []
        if facts:
            done = gatelock("callers", "set", subscriber.name, *facts, "--reason", "sold")
            assert done.exit_code == 0, done.output
    closed_until = month.replace(day=monthrange(month.year, month.month)[1])
    close_until(engine, all_days[0], closed_until)

    def truth(subscriber: Subscriber, names: set[str]) -> tuple[str, str, int, str]:
        days = [day for day in all_days if period_begin(day, subscriber).strftime("%Y%m") == f"{month:%Y%m}"]
        amount = sum(request.key in names and request.at.date() in days for request in requests)
        provisional = str(days[-1] > closed_until).lower()
        return str(days[0]), str(days[-1]), amount, provisional

    def reported(by: str) -> dict[str, tuple[str, str, int, str]]:
        asked = ("billing", "report", "period", f"{month:%Y-%m}", "--by", by, "--meter", "requests")
        written = gatelock(*asked, "--out", f"{by}.csv")
        assert written.exit_code == 0, written.output
        rows = table(Path(f"{by}.provisional.csv").read_bytes())
        assert rows == sorted(rows, key=lambda row: (row["from"], row["to"], row[by]))
        return {row[by]: (row["from"], row["to"], int(row["value"]), row["provisional"]) for row in rows}

    keys = {request.key for request in requests}
    by_caller = reported("caller")
    assert by_caller == {one.name: truth(one, {one.name.partition(":")[2]}) for one in of_callers}
    assert {provisional for *_, provisional in by_caller.values()} == {"true", "false"}
    assert reported("tenant") == {"north": truth(SUBSCRIBERS[-1], keys)}
    manifest = json.loads(Path("caller.provisional.csv.manifest.json").read_text())
    assert (manifest["what"], manifest["state"], manifest["lines"]) == ("periods", "provisional", 4)
    assert manifest["from"] == min(first for first, *_ in by_caller.values())
    assert manifest["to"] == max(last for _, last, *_ in by_caller.values())
    refused = gatelock("billing", "report", "period", f"{month:%Y-%m}", "--final")
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_a_period_is_asked_for_by_a_date_in_it_too(gatelock: Gatelock, log: Callable[..., None]) -> None:
    day = days_ago(40)
    log([Request("acme", day)])
    assert gatelock("callers", "set", "api_key:acme", "--anchor", f"{day:%Y-%m-%d}").exit_code == 0
    for when in (f"{day:%Y-%m-%d}", f"{day + timedelta(days=20):%Y-%m-%d}", f"{day:%Y-%m}"):
        rows = table(gatelock("billing", "report", "period", when, "--meter", "requests").stdout)
        assert [(row["from"], row["value"]) for row in rows] == [(f"{day:%Y-%m-%d}", "1")], when
    assert table(gatelock("billing", "report", "period", f"{days_ago(41):%Y-%m-%d}").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("period --by address", "--by address: only callers and tenants have periods"),
        ("period 2026-13", "is not a time"),
        ("period --format stripe", "period: events for stripe are those of days"),
    ],
)
def test_reports_without_a_period_are_refused(
    gatelock: Gatelock, log: Callable[..., None], arguments: str, why: str
) -> None:
    log([Request("acme", days_ago(1))])
    result = gatelock("billing", "report", *arguments.split())
    assert (result.exit_code, why in result.stderr) == (2, True), result.stderr
