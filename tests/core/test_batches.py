"""Record batches: decoded as by a client, and refused when they are inconsistent."""

from __future__ import annotations

import struct
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from analyzer.kernel.model import FeedStatus, Record
from analyzer.sources.batches.codecs import DamagedError, Decompressor
from analyzer.sources.batches.record_batches import decode_batches
from analyzer.sources.batches.record_decoder import read_records
from tests.support.batches import records_of
from tests.support.recordsets import (
    ABORT,
    COMMIT,
    CONTROL,
    LOG_APPEND_TIME,
    NOW_MS,
    PACK,
    TRANSACTIONAL,
    Entry,
    batch,
    control,
    frame,
    records,
    varint,
    wrapped,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def read(
    raw: bytes, start: int = 0, aborted: list[tuple[int, int]] | None = None
) -> tuple[int, list[Record]]:
    """Returns the next offset and all records; no batch may be refused."""
    found: list[Record] = []
    following = start
    for decoded in decode_batches(raw, start, aborted or [], Decompressor(1 << 20)):
        assert decoded.status == "ok", decoded
        following = max(following, decoded.next)
        found += map(Record, decoded.records.offsets, decoded.records.kafka_ms, decoded.records.values)
    return following, found


def refused(raw: bytes) -> tuple[FeedStatus, int, int]:
    """Returns status, base and next of the last batch, which alone is refused."""
    *good, last = decode_batches(raw, 0, [], Decompressor(1 << 20))
    assert [decoded.status for decoded in good] == ["ok"] * len(good)
    return last.status, last.base, last.next


def built(
    codec: int, values: list[bytes | None], key: bytes | None, headers: list[tuple[str, bytes]]
) -> bytes:
    """Returns a batch as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, value in enumerate(values):
        assert builder.append(offset, NOW_MS + offset * 37, key, value, headers)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
@pytest.mark.parametrize("key", [None, b"", b"acme", b"k" * 300], ids=["no key", "empty", "short", "long"])
def test_a_batch_is_decoded_as_the_client_that_wrote_it_decodes_it(codec: int, key: bytes | None) -> None:
    values: list[bytes | None] = [b"x" * (n % 300) for n in range(400)]
    values[7], values[8], values[9] = None, b"", b"x" * 20_000
    headers = [("trace", b"1")] if key == b"" else []
    raw = built(codec, values, key, headers)
    assert read(raw) == records_of(raw, 0, [])
    assert read(raw, 123) == records_of(raw, 123, [])


SIZES = [0, 1, 31, 32, 63, 64, 65, 4095, 4096, 8191, 8192]


def test_varints_of_any_width_follow_those_of_any_other_width() -> None:
    """Records are decoded by their shape; here no two consecutive ones have the same."""
    entries = [
        Entry(b"v" * size, offset, time, None if size % 2 else b"k" * (size % 80))
        for offset, (size, time) in enumerate(
            product(SIZES, [0, 1, -1, 63, 64, -64, -65, 8191, 8192, -8193, 2**40, -(2**40)])
        )
    ]
    _, found = read(batch(entries))
    assert [(record.value, record.kafka_ms) for record in found] == [
        (e.value, NOW_MS + e.time) for e in entries
    ]
    assert [record.offset for record in found] == list(range(len(entries)))


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(-9000, 9000), st.integers(0, 80)), max_size=20))
def test_every_record_is_decoded_independently_of_those_before(drawn: list[tuple[int, int, int]]) -> None:
    entries, offset = [], -1
    for gap, time, key in drawn:
        offset += 1 + gap
        entries.append(Entry(b"v" * key, offset, time, b"k" * key if key else None))
    _, found = read(batch(entries, 5))
    assert [(r.offset, r.kafka_ms, r.value) for r in found] == [
        (5 + e.offset, NOW_MS + e.time, e.value) for e in entries
    ]


def test_offsets_may_have_holes_and_batches_may_end_after_their_last_record() -> None:
    raw = batch([Entry(b"a", 3), Entry(b"b", 9)], 100)
    plain, last = records([Entry(b"c", 2)])
    raw += wrapped(plain, count=1, last=last + 5, base=120)
    following, found = read(raw)
    assert (following, [record.offset for record in found]) == (128, [103, 109, 122])


def test_an_empty_batch_moves_the_offset() -> None:
    assert read(wrapped(b"", count=0, last=9, base=50)) == (60, [])


def test_records_below_the_start_are_left_out() -> None:
    raw = batch([b"a", b"b", b"c"], 10) + batch([b"d"], 13)
    assert [record.value for record in read(raw, 12)[1]] == [b"c", b"d"]
    assert read(raw, 14) == (14, [])
    assert read(raw, 99) == (99, [])


def test_a_batch_that_the_fetch_cut_off_is_left_for_the_next() -> None:
    whole, cut = batch([b"a"]), batch([b"b"], 1)
    for size in range(len(cut)):
        assert [record.value for record in read(whole + cut[:size])[1]] == [b"a"]


def test_the_timestamp_of_the_broker_has_precedence() -> None:
    assert read(batch([Entry(b"a", time=-99)], attributes=LOG_APPEND_TIME))[1] == [Record(0, NOW_MS, b"a")]


def test_only_aborted_transactions_are_skipped() -> None:
    #   offset   0      1      2      3      4        5        6      7       8      9
    #   producer 1      2      1      -      1 abort  2 commit 1      1 abort 1      2
    raw = b"".join(
        [
            batch([b"lost"], 0, attributes=TRANSACTIONAL, producer=1),
            batch([b"kept"], 1, attributes=TRANSACTIONAL, producer=2),
            batch([b"lost"], 2, attributes=TRANSACTIONAL, producer=1),
            batch([b"plain"], 3, producer=1),
            control(4, 1, ABORT),
            control(5, 2, COMMIT),
            batch([b"lost"], 6, attributes=TRANSACTIONAL, producer=1),
            control(7, 1, ABORT),
            batch([b"kept again"], 8, attributes=TRANSACTIONAL, producer=1),
            batch([b"open"], 9, attributes=TRANSACTIONAL, producer=2),
        ]
    )
    aborted = [(1, 6), (1, 0)]
    assert read(raw, 0, aborted) == records_of(raw, 0, aborted)
    assert [record.value for record in read(raw, 0, aborted)[1]] == [
        b"kept",
        b"plain",
        b"kept again",
        b"open",
    ]
    # A transaction that began before this fetch is recognised by its first offset.
    assert [record.value for record in read(raw, 2, aborted)[1]] == [b"plain", b"kept again", b"open"]


def test_a_control_record_that_cannot_be_decoded_is_skipped() -> None:
    odd = wrapped(b"rubbish", count=1, last=0, base=1, attributes=TRANSACTIONAL | CONTROL, producer=1)
    raw = batch([b"a"]) + odd + batch([b"b"], 2, attributes=TRANSACTIONAL, producer=1)
    assert [record.value for record in read(raw, 0, [(1, 0)])[1]] == [b"a"]
    assert read(raw, 0, [(1, 0)])[0] == 3


GOOD = records([Entry(b"a"), Entry(b"b")])[0]
INCONSISTENT = {
    "a checksum that differs": wrapped(GOOD, count=2, last=1, base=7, crc_off_by=1),
    "fewer records than the header says": wrapped(GOOD, count=3, last=2, base=7),
    "more records than the header says": wrapped(GOOD, count=1, last=1, base=7),
    "a billion records": wrapped(GOOD, count=10**9, last=1, base=7),
    "a negative number of records": wrapped(GOOD, count=-1, last=1, base=7),
    "a byte too many": wrapped(GOOD + b"\0", count=2, last=1, base=7),
    "a byte too few": wrapped(GOOD[:-1], count=2, last=1, base=7),
    "an offset beyond the last": wrapped(GOOD, count=2, last=0, base=7),
    "an offset twice": batch([Entry(b"a", 1), Entry(b"b", 1)], 7),
    "offsets that fall": batch([Entry(b"a", 2), Entry(b"b", 1)], 7),
    "a byte after the headers": batch([Entry(b"a", padding=b"\0")], 7),
    "data that the codec cannot decompress": wrapped(GOOD, count=2, last=1, base=7, attributes=4),
    "a negative record length": wrapped(varint(-5) + GOOD, count=2, last=1, base=7),
    "a varint without end": wrapped(b"\xff" * 40, count=1, last=0, base=7),
    "a key longer than its record": wrapped(
        varint(8) + b"\0\0\0" + varint(900) + b"v" * 3, count=1, last=0, base=7
    ),
    "a negative value length": wrapped(varint(6) + b"\0\0\0\1" + varint(-2) + b"\0", count=1, last=0, base=7),
    "a header without a name": wrapped(
        varint(8) + b"\0\0\0\1\1" + varint(1) + varint(-1) + varint(-1), count=1, last=0, base=7
    ),
    "a negative number of headers": wrapped(varint(6) + b"\0\0\0\1\1" + varint(-1), count=1, last=0, base=7),
}


@pytest.mark.parametrize("raw", INCONSISTENT.values(), ids=INCONSISTENT.keys())
def test_an_inconsistent_batch_is_refused_completely(raw: bytes) -> None:
    before = batch([b"before"] * 7)
    status, base, following = refused(before + raw + batch([b"after"], 20))
    assert (status, base) == ("corrupt", 7)
    assert following == 7 + struct.unpack_from(">i", raw, 23)[0] + 1


def test_an_implausible_header_has_no_next_offset() -> None:
    good = batch([b"a"], 7)
    assert refused(good[:8] + struct.pack(">i", -1) + good[12:]) == ("corrupt", 7, -1)
    assert refused(good[:8] + struct.pack(">i", 20) + good[12:]) == ("corrupt", 7, -1)
    assert refused(batch([b"a"], -1)) == ("corrupt", -1, -1)
    assert refused(wrapped(GOOD, count=2, last=-1, base=7)) == ("corrupt", 7, -1)
    assert refused(wrapped(GOOD, count=2, last=1, base=2**63 - 2)) == ("corrupt", 2**63 - 2, -1)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_unsupported(magic: int) -> None:
    assert refused(wrapped(GOOD, count=2, last=1, base=7, magic=magic)) == ("unsupported", 7, -1)


def test_an_unknown_codec_is_unsupported() -> None:
    assert refused(wrapped(GOOD, count=2, last=1, base=7, attributes=5)) == ("unsupported", 7, 9)


@pytest.mark.parametrize("codec", PACK)
def test_a_batch_that_decompresses_beyond_the_bound_is_refused(codec: str) -> None:
    raw = batch([b"x" * 2000], 7, codec=codec)
    (only,) = decode_batches(raw, 0, [], Decompressor(1000))
    assert (only.status, only.base, only.next) == ("too-large", 7, 8)


def test_a_batch_of_too_many_records_is_refused() -> None:
    """Also when they are small: each becomes an object."""
    raw = batch([b"x"] * 5, 7)
    (only,) = decode_batches(raw, 0, [], Decompressor(5 * 256))
    assert (only.status, len(only.records.values)) == ("ok", 5)
    (only,) = decode_batches(raw, 0, [], Decompressor(5 * 256 - 1))
    assert only.status == "too-large"


def test_every_cut_and_every_flipped_bit_of_records_is_noticed_or_harmless() -> None:
    """No other exception, no invented record, no endless loop."""
    entries = [Entry(b"value", key=b"k"), Entry(None, time=70), Entry(b"v" * 70, headers=[(b"h", None)])]
    plain, last = records(entries)
    for size in range(len(plain)):
        with pytest.raises(DamagedError):
            read_records(plain[:size], len(entries), last, 0, 0)
    for at, bit in product(range(len(plain)), range(8)):
        flipped = plain[:at] + bytes([plain[at] ^ 1 << bit]) + plain[at + 1 :]
        try:
            found = read_records(flipped, len(entries), last, 0, 0)
        except DamagedError:
            continue
        assert len(found.values) == len(entries)
        again = b"".join(
            frame(Entry(value, time=time or 0), offset)
            for offset, time, value in zip(*found[:3], strict=True)
        )
        assert len(again) <= len(flipped)
