"""A request log's sink in memory, and the analyzer's counts of a log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzer.config.settings import load
from analyzer.kernel.model import DrainedCounts, Partition, Record, Records
from gatekeeper.requestlog.background_writer import WriteOutcome
from gatekeeper.requestlog.log_record import LogLine
from tests.support.counters import reference_counter

PART = Partition("files", "log", 0, "log", "log")


class MemorySink:
    """A sink in memory that can be full or fail."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.room = 10**9  # lines that it takes at once
        self.error: Exception | None = None
        self.calls = self.closed = self.forks = 0

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        self.calls += 1
        if self.error is not None:
            raise self.error
        taken = lines[: self.room]
        self.lines += taken
        trouble = "" if len(taken) == len(lines) else "full"
        return WriteOutcome(len(taken), len(taken), trouble=trouble)

    def close(self) -> None:
        self.closed += 1

    def forked(self) -> None:
        self.forks += 1

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line.text) for line in self.lines]


def count_lines(configuration: Path, text: bytes, *, groupings: Sequence[str] = ()) -> DrainedCounts:
    """Returns the counts of a log's lines, by the configuration's only source."""
    settings = load(configuration)
    (name, mapping), *others = settings.mappings().items()
    assert not others
    part = PART._replace(source=name)
    plan = settings.plan()
    counter = reference_counter({name: mapping}, (*plan.groupings, *groupings), plan.meters)
    lines = text.split(b"\n")
    records = [Record(number, None, line) for number, line in enumerate(lines) if line]
    counter.feed(Records.of(part, 0, len(lines), records))
    return counter.drain()
