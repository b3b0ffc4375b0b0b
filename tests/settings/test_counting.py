"""Settings passed to the real counter: it counts what is configured."""

from __future__ import annotations

import json
from collections.abc import Callable

from analyzer.config.settings import Settings
from analyzer.kernel.model import CountRow, Partition, Record, Records
from tests.support.counters import reference_counter

Read = Callable[[str], Settings]


def counted(settings: Settings, source: str, *values: bytes) -> list[CountRow]:
    plan = settings.plan()
    counter = reference_counter(settings.mappings(), plan.groupings, plan.meters)
    part = Partition("c", "t", 0, source, source)
    records = [Record(offset, 1_000_000, value) for offset, value in enumerate(values)]
    counter.feed(Records.of(part, 0, len(records), records))
    counts = counter.drain()
    assert not counts.rejected, counts.rejected
    return list(counts.rows)


def test_a_meter_on_a_field_that_a_source_lacks_counts_none_of_its_requests(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic  = "calls"
        caller = "user"
        [sources.fields]
        user   = "user"
        model  = "model"
        tokens = "tokens"
        [[sources]]
        file   = "access.log"
        format = "combined"
        [[meters]]
        name  = "large"
        count = true
        where = { model = "large" }
        [[meters]]
        name = "tokens"
        sum  = "tokens"
        """)
    call = json.dumps({"user": "ann", "model": "large", "tokens": 7}).encode()
    assert {(row.key, row.meter): row.value for row in counted(settings, "calls", call)} == {
        ("user:ann", "requests"): 1,
        ("user:ann", "large"): 1,
        ("user:ann", "tokens"): 7,
    }
    line = b'192.0.2.1 - - [01/Jan/1970:00:16:40 +0000] "GET / HTTP/1.1" 200 5'
    assert [(row.key, row.meter) for row in counted(settings, "access.log", line)] == [
        ("address:192.0.2.1", "requests")
    ]


def test_durations_and_decimals_are_counted_exactly_in_their_smallest_unit(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic = "calls"
        [sources.fields]
        user = "user"
        took = { path = "took", unit = "ms" }
        cost = { path = "cost", kind = "decimal", default = 0.25 }
        gate = "gate"
        [[meters]]
        name = "busy"
        sum  = "took"
        [[meters]]
        name = "spent"
        sum  = "cost"
        """)
    rows = counted(
        settings,
        "calls",
        b'{"user": "ann", "took": 0.29, "cost": 0.1}',
        b'{"user": "ann", "took": 1.0000019}',
    )
    assert {row.meter: row.value for row in rows} == {
        "requests": 2,
        "busy": 290 + 1000,
        "spent": 100_000 + 250_000,
    }


def test_denied_requests_are_counted_separately(read: Read) -> None:
    settings = read("""
        [[sources]]
        topic   = "calls"
        deny_if = { gate = "denied", status = [429, "500-599"] }
        [sources.fields]
        user   = "user"
        gate   = "gate"
        status = "status"
        """)
    (row,) = counted(
        settings,
        "calls",
        b'{"user": "ann", "gate": "denied", "status": 429}',
        b'{"user": "ann", "gate": "denied", "status": 503}',
        b'{"user": "ann", "gate": "denied", "status": 200}',
        b'{"user": "ann", "status": 429}',
    )
    assert (row.value, row.denied) == (2, 2)
