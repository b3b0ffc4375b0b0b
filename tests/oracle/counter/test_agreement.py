"""Every counter against the slow one: hostile bytes and documents, compared to the last row."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.kernel.model import Records, RecordSet
from analyzer.plan.mapping import SourceMapping
from tests.oracle.counter import hostile
from tests.oracle.counter.slow_counter import SlowCounter
from tests.support.counters import CounterClass
from tests.support.depth import deeper
from tests.support.stored_counts import comparable


def assert_equal_counts(
    counter_class: CounterClass,
    mapping: SourceMapping,
    wanted: hostile.Wanted,
    taken: RecordSet | Records,
) -> None:
    fast, slow = wanted.new(counter_class, mapping), wanted.new(SlowCounter, mapping)
    result, expected = fast.feed(taken), slow.feed(taken)
    if {result.status, expected.status} == {"corrupt", "too-large"}:
        # The contract leaves open which of the two is reported of a batch that is both.
        result = result._replace(status=expected.status)
    assert result == expected
    assert comparable(fast.drain()) == comparable(slow.drain())


@settings(max_examples=deeper(130))
@given(hostile.json_mappings(), hostile.wanted(), hostile.sets(hostile.VALUES))
def test_json_documents_are_counted_as_the_contract_says(
    counter_class: CounterClass,
    mapping: SourceMapping,
    wanted: hostile.Wanted,
    taken: RecordSet | Records,
) -> None:
    assert_equal_counts(counter_class, mapping, wanted, taken)


LINES = st.one_of(hostile.lines(), hostile.lines(), hostile.lines(), st.none(), st.binary(max_size=60))


@settings(max_examples=deeper(100))
@given(hostile.combined_mappings(), hostile.wanted(), hostile.plain_records(LINES))
def test_combined_lines_are_counted_as_the_contract_says(
    counter_class: CounterClass,
    mapping: SourceMapping,
    wanted: hostile.Wanted,
    taken: Records,
) -> None:
    assert_equal_counts(counter_class, mapping, wanted, taken)
