"""Lines whose time is ahead of the clock of the machine that reads them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.counting.counter.counter import PythonCounter
from analyzer.plan.mapping import SourceMapping
from analyzer.sources.files import FollowedFile, ImportedFiles
from tests.support.source_reader import MemoryPositionStore

NOW_MS = 1_795_176_000_000  # 2026-11-20T12:00:00Z
LINE = '192.0.2.1 - - [{}] "GET / HTTP/1.1" 200 5\n'
TIMES = (
    ("01/Nov/2025:10:00:00 +0000", None),  # long ago: no bound
    ("20/Nov/2026:12:05:00 +0000", None),
    ("20/Nov/2026:12:05:01 +0000", "future"),
    ("15/Mar/2027:12:00:00 +0000", "future"),
    ("01/Jan/2100:00:00:00 +0000", "future"),
)


@pytest.mark.parametrize("kind", ["followed", "imported", "compressed"])
def test_a_line_of_the_future_is_rejected(tmp_path: Path, kind: str) -> None:
    text = "".join(LINE.format(time) for time, _ in TIMES).encode()
    file = tmp_path / ("access.log.gz" if kind == "compressed" else "access.log")
    file.write_bytes(gzip.compress(text) if kind == "compressed" else text)
    positions = MemoryPositionStore()
    source: FollowedFile | ImportedFiles
    if kind == "followed":
        source = FollowedFile(file, "web", positions, wall_ms=lambda: NOW_MS)
    else:
        source = ImportedFiles([file], "web", positions, wall_ms=lambda: NOW_MS)
    counter = PythonCounter({"web": SourceMapping(format="combined")}, ["address"])
    for records in source.take(0.0):
        counter.feed(records)
    drained = counter.drain()
    reasons = [rejected.reason for rejected in drained.rejected]
    assert reasons == [reason for _, reason in TIMES if reason is not None]
    assert sum(progress.counted for progress in drained.parts) == 2
    source.close()
