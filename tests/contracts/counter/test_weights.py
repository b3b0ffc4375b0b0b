"""Weights: a record stands for as many requests as one of its fields says."""

from __future__ import annotations

from typing import Any

import pytest

from analyzer.kernel.model import DistinctLayout, SlotLayout
from analyzer.plan.mapping import Condition, Field, NumberField, TextField
from analyzer.plan.meters import UNRECORDED, Meter
from tests.support.counters import CounterClass
from tests.support.counting import PART, Counted, a_record, mapping_of, reasons, some_records, totals

ACME = "api_key:acme"
FIELDS: dict[str, Field] = {
    "hits": NumberField(("hits",)), "bytes": NumberField(("bytes",)), "status": TextField(("status",))
}  # fmt: skip
MAPPING = mapping_of(FIELDS, weight="hits", deny_if=(Condition("status", ("429",)),))
VOLUME, LARGEST = Meter("volume", "bytes"), Meter("largest", "bytes", "max")
FAILED = Meter("failed", where=(Condition("status", ("401",)),))


def test_requests_and_counts_grow_by_the_weight_and_sums_by_their_field(counted: Counted) -> None:
    records = [a_record(hits=5, bytes=3, status=401), a_record(hits=2, bytes=4), a_record(hits=7, bytes=9)]
    found = counted(MAPPING, *records, meters=[VOLUME, LARGEST, FAILED])
    assert totals(found) == {
        (ACME, "requests"): (14, 0),
        (ACME, UNRECORDED.name): (11, 0),
        (ACME, "volume"): (16, 0),
        (ACME, "largest"): (9, 0),
        (ACME, "failed"): (5, 0),
    }
    [progress] = found.parts
    assert (progress.seen, progress.counted) == (3, 3)


def test_denied_requests_have_their_weight_in_rows_and_verdicts(counted: Counted) -> None:
    records = [a_record(hits=5, status=429), a_record(hits=2), a_record(hits=4, status=429)]
    found = counted(MAPPING, *records)
    assert totals(found) == {(ACME, "requests"): (2, 9), (ACME, UNRECORDED.name): (1, 7)}
    assert [verdict.values for verdict in found.verdicts] == [(9, 7)]


@pytest.mark.parametrize("hits", [-1, 1.5, 2**53 + 1, "7.0", True, 10**30], ids=str)
def test_a_weight_that_cannot_be_a_number_of_requests_rejects_the_record(counted: Counted, hits: Any) -> None:
    assert reasons(counted(MAPPING, a_record(hits=hits), a_record(hits=3))) == ["bad-number"]


def test_a_weight_of_0_is_read_and_counts_no_request(counted: Counted) -> None:
    """Aggregates have rows of callers that were idle."""
    idle = [a_record(hits=0, bytes=3)] * 3
    found = counted(MAPPING, a_record(hits="2"), *idle, a_record(hits=0, key="ann"), meters=[VOLUME, FAILED])
    assert reasons(found) == []
    assert totals(found)[ACME, "requests"] == (2, 0)
    assert totals(found)[ACME, "volume"] == (9, 0)
    [progress] = found.parts
    assert (progress.seen, progress.counted) == (5, 5)
    records = sum(row.value for row in found.rows if row.meter == "requests")
    records -= sum(row.value for row in found.rows if row.meter == UNRECORDED.name)
    assert records == 5, "the ledger counts records"


def test_a_missing_weight_is_1_unless_it_is_required(counted: Counted) -> None:
    assert totals(counted(MAPPING, a_record(), a_record(hits=3))) == {
        (ACME, "requests"): (4, 0),
        (ACME, UNRECORDED.name): (2, 0),
    }
    for default in (7, 0):
        by_default = mapping_of({"hits": NumberField(("hits",), default=default)}, weight="hits")
        assert totals(counted(by_default, a_record())) == {(ACME, "requests"): (1, 0)}
    required = mapping_of({"hits": NumberField(("hits",), default=None)}, weight="hits")
    assert reasons(counted(required, a_record(), a_record(hits=3))) == ["bad-number"]


def test_a_weight_may_be_summed_too(counted: Counted) -> None:
    found = counted(MAPPING, a_record(hits=5), a_record(), meters=[Meter("hits", "hits")])
    assert totals(found)[ACME, "hits"] == (5, 0)
    assert totals(found)[ACME, "requests"] == (6, 0)


def test_slots_have_the_weight_and_distinct_values_have_none(counted: Counted) -> None:
    found = counted(
        MAPPING, a_record(hits=5, status=1), a_record(hits=2, status=1),
        meters=[Meter("statuses", "status", "distinct")],
        slots=[SlotLayout("caller", 5, ("requests",))],
        distinct=[DistinctLayout("caller", 60, "statuses")],
    )  # fmt: skip
    [slots], [values] = found.slots, found.distinct
    assert [row.value for row in slots.rows()] == [7]
    assert len(values.values) == 1


def test_sources_without_a_weight_count_their_records_beside_those_with_one(
    counter_class: CounterClass,
) -> None:
    counter = counter_class({"log": MAPPING, "plain": mapping_of(FIELDS)}, ["caller"])
    counter.feed(some_records(0, a_record(hits=5)))
    counter.feed(some_records(0, a_record(hits=5), part=PART._replace(source="plain", number=1)))
    assert totals(counter.drain()) == {(ACME, "requests"): (6, 0), (ACME, UNRECORDED.name): (4, 0)}


def test_without_a_weight_there_is_no_further_meter(counted: Counted) -> None:
    assert totals(counted(mapping_of(FIELDS), a_record(hits=5))) == {(ACME, "requests"): (1, 0)}


@pytest.mark.parametrize("weight", ["status", "nothing", "cost"])
def test_a_weight_must_be_mapped_as_a_whole_number(counter_class: CounterClass, weight: str) -> None:
    fields = FIELDS | {"cost": NumberField(("cost",), "decimal")}
    with pytest.raises(ValueError, match=f"weight: {weight} is not mapped as a whole number"):
        counter_class({"log": mapping_of(fields, weight=weight)}, ["caller"])
