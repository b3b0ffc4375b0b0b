"""The search for the end of damage, against the plain answer: the first intact batch behind it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.sources.batches.damage import (
    base_offset_if_intact,
    claimed_next_offset,
    damage_end,
    galloping_search,
    next_intact_offset,
    without_damage_before,
)
from tests.support.recordsets import Entry, batch


class Batch(NamedTuple):
    base: int
    next: int
    raw: bytes
    intact: bool


def harmed(raw: bytes, harm: str) -> bytes:
    out = bytearray(raw)
    match harm:
        case "payload":
            out[-1] ^= 0xFF
        case "magic":
            out[16] ^= 0xFF
        case "claim":  # a thousand offsets more
            struct.pack_into(">i", out, 23, struct.unpack_from(">i", out, 23)[0] + 1000)
        case "base":
            struct.pack_into(">q", out, 0, struct.unpack_from(">q", out)[0] ^ 1 << 40)
        case "length":
            struct.pack_into(">i", out, 8, struct.unpack_from(">i", out, 8)[0] - 3)
    return bytes(out)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Consecutive batches, with holes as compaction leaves them; some are damaged."""
    found, at = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 9))):
        at += draw(st.sampled_from([0, 0, 0, 1, 7]))
        size = draw(st.sampled_from([1, 2, 3, 10]))
        harm = draw(st.sampled_from(["", "", "payload", "payload", "magic", "claim", "length"]))
        # A value may look like the header of a batch.
        values = [
            draw(st.sampled_from([b"a", b"x" * 40, struct.pack(">qiib", 7, 60, 0, 2)])) for _ in range(size)
        ]
        whole = batch([Entry(value) for value in values], at)
        found.append(Batch(at, at + size, harmed(whole, harm) if harm else whole, not harm))
        at += size
    return found


def broker(log: list[Batch], batches_max: int) -> Callable[[int], bytes]:
    """Returns a function that fetches: from the batch that holds an offset, or the next one."""

    def fetch(offset: int) -> bytes:
        found = [batch.raw for batch in log if batch.next > offset]
        return b"".join(found[:batches_max])

    return fetch


def plain_answer(log: list[Batch], start: int) -> int:
    return next((batch.base for batch in log if batch.intact and batch.base > start), log[-1].next)


@given(logs(), st.integers(1, 9))
def test_reading_continues_at_the_first_intact_batch_behind_the_damage(
    log: list[Batch], batches: int
) -> None:
    fetch, end, fetches = broker(log, batches), log[-1].next, 0

    def counted(offset: int) -> bytes:
        nonlocal fetches
        fetches += 1
        return fetch(offset)

    for number, damaged in enumerate(log):
        if damaged.intact:
            continue
        fetches = 0
        found = damage_end(counted, damaged.base, end)
        behind = list(itertools.dropwhile(lambda other: not other.intact, log[number:]))
        if batches == 9 or all(other.intact for other in behind):
            assert found == plain_answer(log, damaged.base)
        else:  # more damage may be reported as one, but reading never continues at a damaged batch
            assert damaged.base < found
            assert found == end or base_offset_if_intact(fetch(found)) == found
        assert fetches <= 20


@given(logs())
def test_the_next_intact_batch_is_found_in_one_fetch(log: list[Batch]) -> None:
    raw, start = b"".join(batch.raw for batch in log), log[0].base
    behind = [batch.base for batch in log[1:] if batch.intact]
    assert next_intact_offset(raw, start) == (behind[0] if behind else None)
    assert base_offset_if_intact(raw) == (start if log[0].intact else None)


def test_batches_between_the_damage_and_a_hole_are_not_passed_over() -> None:
    """The search first meets the batch behind the hole."""
    intact = {5: 6, 6: 7, 7: 8, 15: 16}

    def readable(offset: int) -> int | None:
        return None if offset < 5 else next(base for base, end in intact.items() if end > offset)

    assert galloping_search(readable, 0, 16) == 5


@given(st.sets(st.integers(1, 400)), st.integers(1, 400))
@example(set(), 1)
def test_galloping_finds_the_first_offset_that_can_be_read(unreadable: set[int], end: int) -> None:
    """The unreadable offsets are one range from 0 on."""
    reach = len(unreadable)

    def readable(offset: int) -> int | None:
        return None if offset < reach else offset

    assert galloping_search(readable, 0, end) == (
        reach if 0 < reach < end else end if reach >= end else min(1, end)
    )


def test_a_damaged_batch_that_claims_offsets_of_its_successor_is_removed() -> None:
    first, second = batch([Entry(b"a")] * 3, 0), batch([Entry(b"b")] * 3, 3)
    assert without_damage_before(harmed(first, "claim") + second, 3) == second
    assert without_damage_before(first + second, 1) == first + second
    assert without_damage_before(harmed(first, "payload") + second, 0) == harmed(first, "payload") + second


@pytest.mark.parametrize("size", [0, 10, 40])
def test_fewer_bytes_than_a_header_say_nothing(size: int) -> None:
    raw = batch([Entry(b"a")], 5)[:size]
    assert base_offset_if_intact(raw) is None
    assert next_intact_offset(raw, 5) is None
    assert without_damage_before(raw, 6) == raw


def test_the_claimed_offset_is_that_of_the_header() -> None:
    assert claimed_next_offset(batch([Entry(b"a")] * 3, 5)) == 8
    assert claimed_next_offset(b"") is None
