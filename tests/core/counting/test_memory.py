"""What hostile records cost in memory: few bytes that want to be many objects."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURE = """
import sys
from analyzer.core.counting.counter import PythonCounter
from analyzer.core.model import RecordSet
from tests.support.counting import PART, mapping_of, a_record
from tests.support.recordsets import batch
value, count = {value}, {count}
raw = batch([value] * count, codec="zstd")
counter = PythonCounter({{"log": mapping_of(value_bytes_max=1 << 20)}}, ["caller"])
def peak_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
open("/proc/self/clear_refs", "w").write("5")  # from now on
before_mb = peak_mb()
fed = counter.feed(RecordSet(PART, 0, raw))
print(fed.status, fed.counted, len(raw), round(peak_mb() - before_mb))
"""


def grown_mb(value: str, count: int) -> tuple[str, int, int, int]:
    """Status, records counted, bytes on the wire, and by how much a process of its own has grown."""
    code = MEASURE.format(value=value, count=count)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    status, *numbers = ran.stdout.split()
    counted, wire, grown = map(int, numbers)
    return status, counted, wire, grown


@pytest.mark.parametrize(
    ("value", "count", "counted"),
    [
        ("a_record()", 262_144, 262_144),
        ('b\'{"key":"acme","ts":[\' + b"[]," * 340_000 + b"0]}"', 50, 0),
    ],
    ids=["as many as may be", "arrays where times belong"],
)
def test_a_batch_takes_a_few_times_its_bound_at_most(value: str, count: int, counted: int) -> None:
    status, known, wire_bytes, grown = grown_mb(value, count)
    assert (status, known) == ("ok", counted)
    assert wire_bytes < 1 << 20
    assert grown < 4 * 64


ONE_OFFS = """
from analyzer.core.counting.counter import PythonCounter
from analyzer.core.model import Record, Records
from tests.support.counting import PART, a_record, mapping_of
from tests.support.recordsets import NOW_MS
def used_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
counter = PythonCounter({{"log": mapping_of(callers_max={most})}}, ["caller"])
rows = counted = before_mb = 0
for flush in range(80):
    if flush == 20:  # from here on all is as full as it may be
        before_mb = used_mb()
    start = flush * 2_000
    items = [Record(n, NOW_MS, a_record(key=f"one-off-{{n}}")) for n in range(start, start + 2_000)]
    counter.feed(Records(PART, start, start + 2_000, items))
    found = counter.drain()
    rows += len(found.rows)
    counted += sum(row.value for row in found.rows)
print(counted, rows, round(used_mb() - before_mb))
"""


def of_one_offs(most: int) -> tuple[int, ...]:
    """Records counted, rows, and by how much a process has grown from 40,000 callers to 160,000."""
    ran = subprocess.run([sys.executable, "-c", ONE_OFFS.format(most=most)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return tuple(map(int, ran.stdout.split()))


def test_callers_who_come_once_cost_nothing_once_the_budget_is_used_up() -> None:
    counted, rows, grown_mb = of_one_offs(5_000)
    assert counted == 160_000
    assert rows < 5_500  # the names, some that are drawn, and the overflow of each flush
    assert grown_mb < 6
    counted, rows, without_mb = of_one_offs(10_000_000)
    assert (counted, rows) == (160_000, 160_000)
    assert without_mb > 10
