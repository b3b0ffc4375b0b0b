"""Reports by two parts, such as caller and model: their columns, and that their sums are complete."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report_statement import Tables

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]
PAIRS = ["caller+model", "caller+tenant", "caller+plan", "tenant+plan", "model+region"]
PARTS = {"caller": "key", "tenant": "tenant", "plan": "plan", "model": "model", "region": "region"}
CONFIGURATION = """
[billing]
grace = 0
groupings = ["caller", "tenant"]
[[sources]]
name = "web"
file = "requests.jsonl"
callers_per_hour = 2
[sources.fields]
time = { path = "t", unit = "s" }
api_key = "key"
tenant = "tenant"
plan = "plan"
model = "model"
region = "region"
tokens = "tokens"
[[groupings]]
name = "model"
field = "model"
[[groupings]]
name = "region"
field = "region"
[[meters]]
name = "tokens"
sum = "tokens"
[[meters]]
name = "largest"
max = "tokens"
"""


@pytest.fixture
def applied(gatelock: Gatelock, configure: Configure, migrated_url: str) -> Callable[..., None]:
    """Puts a configuration in force that has further groupings in [billing]."""

    def apply(*groupings: str) -> None:
        stated = f"groupings = {json.dumps(['caller', 'tenant', *groupings])}"
        text = CONFIGURATION.replace('groupings = ["caller", "tenant"]', stated)
        configure(f'[database]\nurl = "{migrated_url}"\n{text}')
        assert gatelock("policies", "apply", "--yes").exit_code == 0

    return apply


def record(day: datetime, key: str, model: str | None, number: int) -> dict[str, object]:
    return {
        "t": int(day.timestamp()), "key": key, "tenant": f"org-{key[0]}", "plan": ("free", "pro")[number % 2],
        "model": model, "region": ("eu", "us")[number % 3 == 0], "tokens": 10 + number,
    }  # fmt: skip


def days_ago(number: int) -> datetime:
    return datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=number)


def counted(gatelock: Gatelock, name: str, records: list[dict[str, object]]) -> None:
    Path(name).write_text("".join(f"{json.dumps(fields)}\n" for fields in records))
    done = gatelock("upkeep", "import", name, "--source", "web")
    assert done.exit_code == 0, done.output


def close(gatelock: Gatelock, day: datetime) -> None:
    done = gatelock("billing", "days", "close", f"{day:%Y-%m-%d}", "--reason", "r", "--yes")
    assert done.exit_code == 0, done.output


def rows(result: Any) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def sums(table: list[dict[str, str]], *columns: str) -> Counter[tuple[str, ...]]:
    total: Counter[tuple[str, ...]] = Counter()
    for row in table:
        if row["meter"] != "largest":
            total[*(row[column] for column in columns), row["meter"]] += int(row["value"])
    return total


def expected(records: list[dict[str, Any]], by: str) -> Counter[tuple[str, ...]]:
    total: Counter[tuple[str, ...]] = Counter()
    for fields in records:
        texts = [fields[PARTS[part]] or "" for part in by.split("+")]
        if by.startswith("caller"):
            texts[0] = f"api_key:{texts[0]}"
        total[*texts, "requests"] += 1
        total[*texts, "tokens"] += fields["tokens"]
    return total


def test_each_part_has_a_column_and_the_sums_are_those_of_the_log(
    gatelock: Gatelock, applied: Callable[..., None]
) -> None:
    """The day's log is counted again by the second counter before the day is closed."""
    applied(*PAIRS)
    day = days_ago(1)
    records = [
        record(day, key, model, 7 * n) for n, key in enumerate(("a", "b")) for model in ("large", None)
    ]
    records += [record(day, key, "small", n) for n, key in enumerate("abab")]
    counted(gatelock, "day.jsonl", records)
    close(gatelock, day)
    again = gatelock("billing", "audit", "--day", f"{day:%Y-%m-%d}", "--against-kafka")
    assert (again.exit_code, "no difference" in again.output) == (0, True), again.output
    for by in PAIRS:
        report = gatelock("billing", "report", "day", "yesterday", "--by", by)
        table = rows(report)
        assert sums(table, *by.split("+")) == expected(records, by), by
        assert report.stderr == ""
        assert list(table[0])[:5] == ["from", "to", "zone", *by.split("+")]
    events = gatelock("billing", "report", "day", "yesterday", "--by", "caller+model", "--format", "lago")
    by_model: Counter[str | None] = Counter()
    for event in map(json.loads, events.stdout.splitlines()):
        if event["code"] == "requests":
            by_model[event["properties"].get("model")] += event["properties"]["value"]
    assert by_model == Counter(fields["model"] for fields in records)


def test_texts_beyond_the_cardinality_limit_are_one_row_of_their_caller(
    gatelock: Gatelock, applied: Callable[..., None]
) -> None:
    applied(*PAIRS)
    models = ["m1", "m2", "m3", "m4", "m4"]
    counted(gatelock, "now.jsonl", [record(datetime.now(UTC), "a", model, 1) for model in models])
    table = rows(gatelock("billing", "report", "day", "today", "--by", "caller+model", "--meter", "requests"))
    assert {row["model"]: int(row["value"]) for row in table} == {"m1": 1, "m2": 1, "overflow:": 3}


def test_requests_from_before_a_grouping_are_a_row_of_their_caller(
    gatelock: Gatelock, applied: Callable[..., None]
) -> None:
    """The pairs come into the configuration in the middle of the second of three days."""
    first, second, third = days_ago(3), days_ago(2), days_ago(1)
    of_first = [record(first, key, "large", n) for n, key in enumerate("aab")]
    of_second = [record(second, key, "small", n) for n, key in enumerate("ab")]
    applied()
    counted(gatelock, "1.jsonl", of_first)
    close(gatelock, first)
    counted(gatelock, "2.jsonl", of_second)
    applied(*PAIRS)
    later = [record(second, key, "large", n) for n, key in enumerate("aa")]
    later += [record(third, key, "small", n) for n, key in enumerate("ab")]
    counted(gatelock, "3.jsonl", later)
    close(gatelock, second)
    close(gatelock, third)
    period = f"{first:%Y-%m-%d}..{third:%Y-%m-%d}"
    table = rows(
        gatelock("billing", "report", period, "--by", "caller+model", "--out", "u.csv", "--final")
    ) or [*csv.DictReader(io.StringIO(Path("u.csv").read_text()))]
    of_callers = rows(gatelock("billing", "report", period, "--by", "caller"))
    assert sums(table, "caller") == sums(of_callers, "caller")
    known = [row for row in table if row["model"] != "(not counted)"]
    assert sums(known, "caller", "model") == expected(later, "caller+model")
    last = [row["caller"] for row in table if row["meter"] == "requests"][-1]
    assert (last, table[-1]["model"], table[-1]["caller"]) == ("api_key:b", "(not counted)", "api_key:b")
    assert not [row for row in table if (row["model"], row["meter"]) == ("(not counted)", "largest")]
    assert gatelock("billing", "audit", "--report", "u.csv").exit_code == 0

    without = gatelock("billing", "report", "day", f"{first:%Y-%m-%d}", "--by", "caller+model")
    assert (without.exit_code, "add it to [billing] groupings for the days to come" in without.stderr) == (
        2,
        True,
    )
    no_whole = gatelock("billing", "report", period, "--by", "model+region")
    assert (no_whole.exit_code, f"days from {second:%Y-%m-%d} on were" in no_whole.stderr) == (2, True)
    never = gatelock("billing", "report", "day", "today", "--by", "caller+resource")
    assert (never.exit_code, "nothing is counted by caller+resource; add it" in never.stderr) == (2, True)
    sentence = f"incomplete: {second:%Y-%m-%d} (UTC): 2 of 4 requests were counted by "
    day = f"{second:%Y-%m-%d}"
    alone = gatelock("billing", "report", "day", day, "--by", "model+region")
    assert (alone.exit_code, f"{sentence}model+region" in alone.stderr) == (0, True)
    events = gatelock("billing", "report", "day", day, "--by", "caller+model", "--format", "lago")
    assert (events.exit_code, f"{sentence}caller+model" in events.stderr) == (0, True)


def test_a_statement_and_a_period_list_the_second_parts(
    gatelock: Gatelock, applied: Callable[..., None]
) -> None:
    applied(*PAIRS)
    day = days_ago(1)
    records = [record(day, "a", model, n) for n, model in enumerate(["large", "large", "small", None])]
    counted(gatelock, "day.jsonl", [*records, record(day, "b", "other", 1)])
    close(gatelock, day)
    period = gatelock("billing", "report", "period", f"{day:%Y-%m-%d}", "--by", "caller+model")
    of_a = [row for row in rows(period) if row["caller"] == "api_key:a"]
    assert sums(of_a, "caller", "model") == expected(records, "caller+model")
    page = gatelock("billing", "report", "statement", "api_key:a", "--month", f"{day:%Y-%m}")
    shown = Tables(page.stdout)
    assert [row[-2] for row in shown.under("Use by model")] == ["2", "1", "1"]
    assert [row[0] for row in shown.under("Use by model")] == ["large", "(none)", "small"]
    assert [row[0] for row in shown.under("Use by plan")] == ["free", "pro"]
    assert [row[0] for row in shown.under("Use by tenant")] == ["org-a"]
