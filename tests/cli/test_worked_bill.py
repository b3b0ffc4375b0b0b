"""The bill that docs/billing.md adds up, made from a log."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.house.reading import ROOT
from tests.support.restoring import backed_up

Gatelock = Callable[..., Any]
YESTERDAY = datetime.now(UTC).replace(hour=12) - timedelta(days=1)
DATE = f"{YESTERDAY:%Y-%m-%d}"


@pytest.fixture
def configuration() -> str:
    return (
        '[billing]\ngrace = 0\n[[sources]]\nname = "web"\nfile = "requests.jsonl"\n[sources.fields]\n'
        'time = { path = "t", unit = "s" }\napi_key = "key"\n'
    )


def amounts_of_the_page() -> list[int]:
    page = (ROOT / "docs/billing.md").read_text()
    section = page[page.index("## For finance") : page.index("## States of a day")]
    return [int(number) for number in re.findall(r"^\|.*\| ([+-]?\d+) \|$", section, re.MULTILINE)]


def imported(gatelock: Gatelock, name: str, requests: int) -> None:
    line = f'{{"t": {int(YESTERDAY.timestamp())}, "key": "acme", "file": "{name}"}}\n'
    Path(name).write_text(line * requests)
    result = gatelock("upkeep", "import", name, "--source", "web")
    assert result.exit_code == 0, result.stderr


def values(report: str, kind: str = "") -> list[int]:
    rows = csv.DictReader(io.StringIO(report))
    return [int(row["value"]) for row in rows if row.get("kind", kind) == kind]


def test_the_bill_of_the_page_adds_up(gatelock: Gatelock, engine: sa.Engine) -> None:
    day, late, corrected, bill = amounts_of_the_page()
    imported(gatelock, "day.jsonl", day)
    assert gatelock("billing", "days", "close", DATE, "--reason", "r", "--yes").exit_code == 0
    report = gatelock("billing", "report", "day", DATE, "--final").stdout
    imported(gatelock, "late.jsonl", late)
    act = ("--caller", "api_key:acme", "--amount", str(corrected), "--reason", "a test call")
    assert gatelock("billing", "days", "correct", DATE, *act).exit_code == 0
    assert gatelock("billing", "report", "day", DATE, "--final").stdout == report
    booked = gatelock("billing", "report", "corrections", "today").stdout
    assert (values(report), values(booked, "late"), values(booked, "correction")) == (
        [day],
        [late],
        [corrected],
    )
    assert day + late + corrected == bill


def test_the_day_of_the_page_is_the_same_after_a_restore(
    gatelock: Gatelock, engine: sa.Engine, tmp_path: Path
) -> None:
    day, late, *_ = amounts_of_the_page()
    restore = backed_up(engine)
    imported(gatelock, "day.jsonl", day)
    assert gatelock("billing", "days", "close", DATE, "--reason", "r", "--yes").exit_code == 0
    assert gatelock("billing", "report", "day", DATE, "--out", "day.csv").exit_code == 0
    imported(gatelock, "late.jsonl", late)
    restore()
    assert gatelock("restore", "days", "--from", ".", "--reason", "r", "--yes").exit_code == 0
    assert gatelock("billing", "report", "day", DATE).stdout == Path("day.csv").read_text()
    imported(gatelock, "late.jsonl", late)
    assert values(gatelock("billing", "report", "corrections", "today").stdout, "late") == [late]
