"""Slots: what was counted, once more by stretches of seconds, as rolling windows need it."""

from __future__ import annotations

import pytest

from analyzer.kernel.model import CountRow, Records, SlotLayout
from analyzer.plan.mapping import Condition, NumberField, TextField
from analyzer.plan.meters import Meter
from tests.support.counters import CounterClass
from tests.support.counting import PART, Counted, a_record, mapping_of, some_records
from tests.support.recordsets import NOW_MS

ACME, ANN = "api_key:acme", "api_key:ann"
SECOND = NOW_MS // 3_600_000 * 3_600  # at which a slot of each width begins
FIELDS = {"took": NumberField(("took",)), "gate": TextField(("gate",))}
MAPPING = mapping_of(FIELDS, deny_if=(Condition("gate", ("denied",)),))
LONGEST = Meter("longest", "took", "max")


def at(ms: int, **fields: object) -> bytes:
    """Returns a request some milliseconds after the hour begins."""
    return a_record(ts=SECOND * 1000 + ms, **fields)


def test_slots_repeat_the_requests_of_the_minutes(counted: Counted) -> None:
    records = [at(-1), at(0), at(4_999), at(5_000, gate="denied"), at(61_000)]
    found = counted(MAPPING, *records, slots=[SlotLayout("caller", 5, ("requests",))])
    [slots] = found.slots
    assert (slots.grouping, slots.width_s) == ("caller", 5)
    assert [*slots.rows()] == [
        CountRow("caller", ACME, "", "requests", 5, SECOND - 5, 1, 0),
        CountRow("caller", ACME, "", "requests", 5, SECOND, 2, 0),
        CountRow("caller", ACME, "", "requests", 5, SECOND + 5, 0, 1),
        CountRow("caller", ACME, "", "requests", 5, SECOND + 60, 1, 0),
    ]
    assert found.rows == [
        CountRow("caller", ACME, "", "requests", 60, SECOND - 60, 1, 0),
        CountRow("caller", ACME, "", "requests", 60, SECOND, 2, 1),
        CountRow("caller", ACME, "", "requests", 60, SECOND + 60, 1, 0),
    ]


def test_each_layout_has_a_table_with_its_meters(counted: Counted) -> None:
    layouts = [
        SlotLayout("everyone", 10, ("longest",)),
        SlotLayout("caller", 50, ("longest", "requests")),
        SlotLayout("caller", 4, ("requests",)),
    ]
    records = [at(3_000, took=4), at(9_000, took=7, key="ann"), at(10_000, took=6)]
    records.append(at(51_000, took=9, key="ann"))
    found = counted(MAPPING, *records, groupings=["caller", "everyone"], meters=[LONGEST], slots=layouts)
    assert [(table.grouping, table.width_s) for table in found.slots] == [
        ("caller", 4),
        ("caller", 50),
        ("everyone", 10),
    ]
    narrow, wide, everyone = (
        [(row.key, row.meter, row.bucket_s - SECOND, row.value) for row in table.rows()]
        for table in found.slots
    )
    assert narrow == [
        (ACME, "requests", 0, 1),
        (ACME, "requests", 8, 1),
        (ANN, "requests", 8, 1),
        (ANN, "requests", 48, 1),
    ]
    assert sorted(wide) == [
        (ACME, "longest", 0, 6),
        (ACME, "requests", 0, 2),
        (ANN, "longest", 0, 7),
        (ANN, "longest", 50, 9),
        (ANN, "requests", 0, 1),
        (ANN, "requests", 50, 1),
    ]
    assert everyone == [("", "longest", 0, 7), ("", "longest", 10, 6), ("", "longest", 50, 9)]


def test_verdicts_have_the_slot_of_their_requests(counted: Counted) -> None:
    records = [at(ms, gate="denied") for ms in (1_000, 1_999, 7_000)]
    found = counted(MAPPING, *records, slots=[SlotLayout("caller", 12, ("requests",))])
    assert {(one.bucket_s, one.slot_s, one.values) for one in found.verdicts} == {(SECOND, SECOND, (3,))}
    found = counted(MAPPING, *records, slots=[SlotLayout("caller", 5, ("requests",))])
    assert {(one.bucket_s, one.slot_s, one.values) for one in found.verdicts} == {
        (SECOND, SECOND, (2,)),
        (SECOND, SECOND + 5, (1,)),
    }
    [alone] = counted(MAPPING, *records).verdicts
    assert (alone.bucket_s, alone.slot_s) == (SECOND, SECOND)


def test_rows_in_memory_are_those_of_the_narrowest_slots(counter_class: CounterClass) -> None:
    def is_full(*widths_s: int) -> bool:
        slots = [SlotLayout("caller", width_s, ("requests",)) for width_s in widths_s]
        counter = counter_class({"log": MAPPING}, ["caller"], slots=slots, rows_max=20)
        counter.feed(some_records(0, *[at(3_000 * n) for n in range(20)]))
        return counter.full()

    assert not is_full()
    assert not is_full(6, 60)
    assert is_full(6, 9)  # as both are multiples of 3 s


def test_nothing_counted_has_no_slots(counter_class: CounterClass) -> None:
    slots = [SlotLayout("caller", 5, ("requests",))]
    counter = counter_class({"log": MAPPING}, ["caller"], slots=slots)
    assert counter.drain().slots == []
    counter.feed(Records.of(PART, 0, 3, []))
    counted = counter.drain()
    assert (len(counted.parts), counted.slots) == (1, [])


@pytest.mark.parametrize(
    "layout",
    [
        SlotLayout("tenant", 5, ("requests",)),
        SlotLayout("caller", 5, ("volume",)),
        SlotLayout("caller", 0, ("requests",)),
    ],
    ids=["grouping", "meter", "width"],
)
def test_slots_of_what_is_not_counted_are_an_error(counter_class: CounterClass, layout: SlotLayout) -> None:
    with pytest.raises(ValueError, match="not counted"):
        counter_class({"log": MAPPING}, ["caller"], slots=[layout])
