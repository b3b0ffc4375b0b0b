"""The header of a record batch, against kafka-python's parser, and the span of a record set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecordsBuilder

from analyzer.sources.batches.batch_header import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    batch_span,
    header_at,
    read_header,
    split_batches,
)


def batch(base_offset: int, count: int, *, first_ms: int = 1_000) -> bytes:
    """Returns a batch as kafka-python writes it, with the base offset that a broker would set."""
    builder = MemoryRecordsBuilder(2, 0, 100_000, offset=0)
    for number in range(count):
        builder.append(first_ms + number, None, b"value %d" % number)
    builder.close()
    raw = bytearray(builder.buffer())
    raw[:8] = base_offset.to_bytes(8, "big")  # the checksum does not cover it
    return bytes(raw)


def test_each_field_is_what_kafka_python_reads() -> None:
    raw = batch(7, 3)
    header, expected = read_header(raw), DefaultRecordBatch(raw)
    assert header.size_bytes == len(raw)
    assert header.next_offset == 10
    assert (header.base_offset, header.magic) == (expected.base_offset, expected.magic) == (7, MAGIC)
    assert (header.leader_epoch, header.checksum) == (expected.leader_epoch, expected.crc)
    assert (header.attributes, header.last_offset_delta) == (expected.attributes, expected.last_offset_delta)
    assert (header.base_ms, header.max_ms) == (expected.first_timestamp, expected.max_timestamp)
    assert header[9:12] == (expected.producer_id, expected.producer_epoch, expected.base_sequence)
    assert header.record_count == 3


HEADERS = st.builds(
    BatchHeader,
    *(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
    *(st.integers(-128, 127), st.integers(0, 2**32 - 1), st.integers(-(2**15), 2**15 - 1)),
    *(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    *(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
    st.integers(0, 2**32 - 1),
)


@given(HEADERS, st.binary(max_size=20), st.binary(max_size=20))
def test_any_header_is_read_anywhere(header: BatchHeader, before: bytes, after: bytes) -> None:
    raw = before + HEADER.pack(*header) + after
    assert read_header(raw, len(before)) == header_at(raw, len(before)) == header


@pytest.mark.parametrize("size", range(HEADER_BYTES + 1))
def test_a_header_that_is_cut_off_is_read_as_far_as_its_magic_or_not_at_all(size: int) -> None:
    raw = batch(7, 1)
    header = header_at(b"before" + raw[:size], 6)
    if size < 17:
        assert header is None
    else:
        assert header is not None
        assert (header.base_offset, header.length, header.magic) == (7, len(raw) - 12, MAGIC)


class TestSpanOf:
    def test_the_span_of_no_bytes_is_empty(self) -> None:
        assert batch_span(b"", 7)[:2] == (0, 7)

    def test_a_span_ends_after_the_last_record_of_the_last_batch(self) -> None:
        raw = batch(100, 5) + batch(110, 2, first_ms=5_000)
        assert batch_span(raw, 100) == (len(raw), 112, 0, 5_001)

    def test_a_batch_that_was_cut_short_is_left_for_the_next_fetch(self) -> None:
        first, second = batch(100, 5), batch(105, 5)
        for size in (1, 11, 12, 60, 61, len(second) - 1):
            assert batch_span(first + second[:size], 100)[:2] == (len(first), 105)

    def test_a_first_batch_that_is_cut_short_is_kept_for_the_counter_to_refuse(self) -> None:
        raw = batch(100, 5)[:-1]
        assert batch_span(raw, 100)[:2] == (len(raw), 100)

    @pytest.mark.parametrize("field", ["magic", "length", "last_offset_delta"])
    def test_an_implausible_header_ends_the_walk_and_keeps_the_bytes(self, field: str) -> None:
        good = batch(105, 5)
        wrong = {"magic": 1, "length": 10, "last_offset_delta": -1}[field]
        bad = HEADER.pack(*read_header(good)._replace(**{field: wrong})) + good[HEADER_BYTES:]
        raw = batch(100, 5) + bad + batch(110, 5)
        assert batch_span(raw, 100)[:2] == (len(raw), 105)

    def test_an_offset_inside_a_batch_never_leads_backwards(self) -> None:
        assert batch_span(batch(100, 5), 103)[:2] == (len(batch(100, 5)), 105)
        assert batch_span(batch(90, 5), 103)[1] == 103


@pytest.mark.parametrize("tail", [b"", b"short", b"\xff" * HEADER_BYTES, batch(90, 3)[:-1]])
def test_pieces_are_whole_batches_of_a_bounded_number_of_records(tail: bytes) -> None:
    batches = [batch(0, 3), batch(3, 4), batch(7, 1), batch(8, 30), batch(38, 2)]
    raw = b"".join(batches) + tail
    pieces = list(split_batches(raw, 8))
    assert pieces == [b"".join(batches[:3]), batches[3], batches[4] + tail]
    start = 0
    for piece in pieces:
        span = batch_span(piece, start)
        start = span.next
    assert start == batch_span(raw, 0).next == 40, "the pieces follow each other"
    assert list(split_batches(b"", 8)) == [b""]
