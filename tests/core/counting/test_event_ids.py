"""The memory of ids: what a source without ids forgets, and that two secrets give other hashes."""

from __future__ import annotations

from msgspec.structs import replace

from analyzer.counting.counter.event_ids import EventIds
from analyzer.counting.counter.partition_counter import PartitionMemory
from analyzer.kernel.model import CounterState, IdBlob, IdState
from analyzer.plan.mapping import NO_ID, EventIdRule, TextField
from tests.support.counting import mapping_of

RULE = EventIdRule("id", 80_000, 1_000)
MAPPING = mapping_of({"id": TextField(("id",))}, id=RULE)


def test_a_source_that_has_no_ids_any_more_forgets_all_that_is_stored_once() -> None:
    ids = IdState(5, blobs=[IdBlob(3, 0, 1, b"12345678"), IdBlob(4, 0, 2, b"87654321")])
    memory = PartitionMemory(replace(MAPPING, id=NO_ID), CounterState(ids=ids))
    assert memory.drain().ids == IdState(5, forgotten_to=5)
    assert memory.drain().ids is None
    assert PartitionMemory(replace(MAPPING, id=NO_ID), CounterState()).drain().ids is None


def test_the_secret_is_the_key_of_the_hashes() -> None:
    stored = []
    for secret in (b"one", b"other"):
        ids = EventIds(RULE, secret)
        assert ids.are_new(["api_key:a"], ["1"], [5]) is None
        stored += [blob.hashes for blob in ids.drain().blobs]
    assert stored[0] != stored[1]
    assert len(stored[0]) == 8


def test_names_and_ids_are_kept_apart() -> None:
    ids = EventIds(RULE, b"secret")
    assert ids.are_new(["api_key:a", "api_key:a1"], ["11", "1"], [5, 5]) is None


def test_an_id_that_comes_twice_in_one_column_is_found_when_nothing_else_happens() -> None:
    ids = EventIds(RULE, b"secret")
    assert ids.are_new(["api_key:a"], ["0"], [5]) is None
    assert ids.are_new(["api_key:a"] * 4, ["1", "2", "1", ""], [5] * 4) == [True, True, False, True]
    assert ids.are_new(["api_key:a"] * 2, ["2", "3"], [5] * 2) == [False, True]
    assert len(ids) == 4
