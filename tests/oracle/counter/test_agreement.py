"""The counter against the slow, obvious one: what hostile bytes and documents become, to the last row."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.core.counting.counter import PythonCounter
from analyzer.core.counting.meters import Meter
from analyzer.core.model import Records, RecordSet
from analyzer.core.records.mapping import SourceMapping
from tests.oracle.counter import hostile
from tests.oracle.counter.slow_counter import SlowCounter


def assert_both_agree(
    mapping: SourceMapping, groupings: Sequence[str], meters: Sequence[Meter], taken: RecordSet | Records
) -> None:
    fast = PythonCounter({"log": mapping}, groupings, meters)
    slow = SlowCounter({"log": mapping}, groupings, meters)
    said, known = fast.feed(taken), slow.feed(taken)
    if {said.status, known.status} == {"corrupt", "too-large"}:
        # Damaged and too large: which of the two is seen first is not part of the contract.
        said = said._replace(status=known.status)
    assert said == known
    assert fast.drain() == slow.drain()


@settings(max_examples=400)
@given(hostile.json_mappings(), hostile.GROUPINGS, hostile.PLANS, hostile.sets(hostile.VALUES))
def test_json_documents_are_counted_as_the_contract_says(
    mapping: SourceMapping, groupings: Sequence[str], meters: list[Meter], taken: RecordSet | Records
) -> None:
    assert_both_agree(mapping, groupings, meters, taken)


LINES = st.one_of(hostile.lines(), hostile.lines(), hostile.lines(), st.none(), st.binary(max_size=60))


@settings(max_examples=300)
@given(hostile.combined_mappings(), hostile.GROUPINGS, hostile.PLANS, hostile.plain_records(LINES))
def test_combined_lines_are_counted_as_the_contract_says(
    mapping: SourceMapping, groupings: Sequence[str], meters: list[Meter], taken: Records
) -> None:
    assert_both_agree(mapping, groupings, meters, taken)
