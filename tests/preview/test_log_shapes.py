"""The table of shapes of logs: look and both counters read each right, or refuse it with a cure."""

from __future__ import annotations

import io
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from analyzer.billing.recount.log_envelopes import Unreadable
from analyzer.billing.recount.read_requests import SourceReading, stored_plan
from analyzer.config.settings import load
from analyzer.config.single_tables import parse_mapping
from analyzer.counting.counter.counter import PythonCounter
from analyzer.counting.records.reading_doubts import doubt
from analyzer.faces.cli.verbs.init import shipped
from analyzer.forecast.look.log_scan import LogScan, ScannedFile
from analyzer.forecast.look.starter_config import policy_table, policy_text, source_text
from analyzer.kernel.model import Partition, Records
from analyzer.plan.plan import make_plan
from analyzer.plan.windows import Rolling
from analyzer.sources.files.line_reader import LineReader
from tests.house.reading import ROOT

NOW_MS = 1_800_000_000_000  # after all times of the table
SHAPES_MIN = 115  # a shape that was read right must stay so
BYTES_MAX = 1 << 20


class Shape(NamedTuple):
    """A log, and what is right for it."""

    name: str
    content: bytes
    callers: Mapping[str, int]  # requests by caller; empty: it is refused
    refused: str
    unread: int
    asks: str

    def __str__(self) -> str:
        return self.name


def shape(entry: Mapping[str, Any]) -> Shape:
    lines, callers, times = entry["lines"], entry.get("callers", {}), entry.get("repeated", 0)
    if times:
        lines = [lines[n % len(lines)].replace("{n}", str(n)) for n in range(times)]
        callers = {key.replace("{n}", str(n)): of for key, of in callers.items() for n in range(times)}
    content = "".join(f"{line}\n" for line in lines).encode()
    return Shape(
        entry["name"],
        content,
        callers,
        entry.get("refused", ""),
        entry.get("unread", 0),
        entry.get("asks", ""),
    )


TABLE = tomllib.loads((ROOT / "tests" / "data" / "log_shapes.toml").read_text())["shapes"]
SHAPES = [shape(entry) for entry in TABLE]


def looked_at(content: bytes) -> tuple[ScannedFile, dict[str, int]]:
    """A look at a log, and the requests of each caller."""
    file = ScannedFile("access.log")
    scan = LogScan("caller", Rolling(60), floor=1, now_ms=NOW_MS, mapping_of=parse_mapping)
    for _ in scan.read(file, io.BytesIO(content)):
        pass
    return file, {series.key: series.requests for series in scan.profile.series()}


def written(file: ScannedFile) -> str:
    """The configuration that `gatelock look --write` makes of a log."""
    assert file.source is not None
    policy = policy_text(policy_table("caller", 100, "1m"), "a reason")
    return "\n".join([shipped("begin.toml"), source_text(file.source, "/var/log/access.log"), policy])


@pytest.mark.parametrize("log", SHAPES, ids=str)
def test_a_shape_is_read_right_or_refused_with_a_cure(log: Shape) -> None:
    file, callers = looked_at(log.content)
    if log.refused:
        assert log.refused in file.problem
        assert callers == {}
        return
    assert file.problem == ""
    assert callers == log.callers
    assert file.unread.total() == log.unread
    question = doubt(sum(callers.values()), len(callers), max(callers), file.elsewhere)
    assert log.asks in question
    assert bool(log.asks) == bool(question)


@pytest.mark.parametrize("log", [log for log in SHAPES if log.callers], ids=str)
def test_the_file_that_look_writes_is_valid_and_counts_the_same_callers_twice(
    log: Shape, tmp_path: Path
) -> None:
    (tmp_path / "gatelock.toml").write_text(written(looked_at(log.content)[0]))
    plan = make_plan(["caller"], (), (), load(tmp_path / "gatelock.toml").mappings())
    lines = LineReader(io.BytesIO(log.content), BYTES_MAX).take(final=True)
    assert lines is not None
    part = Partition("files", "log", 0, "access.log", "access.log")
    counter = PythonCounter(plan.sources, plan.groupings, plan.meters)
    counter.feed(Records(part, 0, len(log.content), lines, read_ms=NOW_MS))
    rows = counter.drain().rows
    assert {row.key: row.value for row in rows if row.meter == "requests"} == log.callers
    reading = SourceReading("access.log", stored_plan(plan.to_json()), {})
    recounted = Counter[str]()
    for value in lines.values:
        try:
            recounted[reading.read_request(value, None).caller] += 1
        except Unreadable:
            continue
    assert recounted == log.callers


def test_the_table_of_shapes_only_grows() -> None:
    assert len({log.name for log in SHAPES}) == len(SHAPES) >= SHAPES_MIN
    outcomes = Counter("refused" if log.refused else "read" for log in SHAPES)
    assert outcomes["read"] >= 90
