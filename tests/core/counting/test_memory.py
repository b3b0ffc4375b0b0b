"""Memory that hostile records cost: few bytes that become many objects. Measured in separate processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.counters import COUNTERS

PEAK = """
from analyzer.kernel.model import RecordSet
from tests.support.counters import COUNTERS
from tests.support.counting import PART, mapping_of, a_record
from tests.support.recordsets import batch
value, count = {value}, {count}
raw = batch([value] * count, codec="zstd")
counter = COUNTERS["{counter}"]({{"log": mapping_of(value_bytes_max=1 << 20)}}, ["caller"])
def peak_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before_mb = peak_mb()
result = counter.feed(RecordSet(PART, 0, raw))
print(result.status, result.counted, len(raw), round(peak_mb() - before_mb))
"""


def peak_mb(counter: str, value: str, count: int) -> tuple[str, int, int, int]:
    """Returns (status, records counted, bytes of the batch, growth of a process at its peak in MB)."""
    code = PEAK.format(counter=counter, value=value, count=count)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    status, *numbers = ran.stdout.split()
    counted, batch_bytes, grown_mb = map(int, numbers)
    return status, counted, batch_bytes, grown_mb


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(
    ("value", "count", "counted"),
    [
        ("a_record()", 262_144, 262_144),
        pytest.param(
            'b\'{"key":"acme","ts":[\' + b"[]," * 340_000 + b"0]}"', 50, 0, marks=pytest.mark.deep("size")
        ),
    ],
    ids=["the largest number of records", "arrays in place of times"],
)
def test_a_batch_needs_at_most_four_times_its_bound(
    counter: str, value: str, count: int, counted: int
) -> None:
    status, found, batch_bytes, grown_mb = peak_mb(counter, value, count)
    assert (status, found) == ("ok", counted)
    assert batch_bytes < 1 << 20
    assert grown_mb < 4 * 64


ONE_OFFS = """
from analyzer.plan import value_rules
from analyzer.kernel.model import Record, Records
from tests.support.counters import COUNTERS
from tests.support.counting import PART, a_record, mapping_of
from tests.support.recordsets import NOW_MS
def used_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
value_rules.CALLERS_BYTES_MAX = 8 << 20  # so that the memo is full soon
counter = COUNTERS["{counter}"]({{"log": mapping_of(callers_max={most})}}, ["caller"])
rows = counted = before_mb = 0
for flush in range(80):
    if flush == 20:  # from here on every cache is as full as it gets
        before_mb = used_mb()
    start = flush * 2_000
    items = [Record(n, NOW_MS, a_record(key=f"one-off-{{n}}")) for n in range(start, start + 2_000)]
    counter.feed(Records.of(PART, start, start + 2_000, items))
    found = counter.drain()
    rows += len(found.rows)
    counted += sum(row.value for row in found.rows)
print(counted, rows, round(used_mb() - before_mb))
"""


def of_one_offs(counter: str, most: int) -> tuple[int, ...]:
    """Returns (records counted, rows, growth in MB from 40,000 callers to 160,000) with a limit of `most`."""
    code = ONE_OFFS.format(counter=counter, most=most)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return tuple(map(int, ran.stdout.split()))


@pytest.mark.parametrize("counter", COUNTERS)
def test_callers_beyond_the_cardinality_limit_need_no_memory(counter: str) -> None:
    counted, rows, grown_mb = of_one_offs(counter, 5_000)
    assert counted == 160_000
    assert rows < 5_500  # the names, some that are drawn, and the overflow of each flush
    assert grown_mb < 6
    counted, rows, unlimited_mb = of_one_offs(counter, 10_000_000)
    assert (counted, rows) == (160_000, 160_000)
    assert unlimited_mb > 10
