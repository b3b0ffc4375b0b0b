"""How far damage reaches, against the plain answer: the first intact batch behind it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.core.kafka_format.damage import (
    claimed_next_offset,
    damage_end,
    first_intact_offset,
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
        case "claim":  # it seems to have a thousand offsets more
            struct.pack_into(">i", out, 23, struct.unpack_from(">i", out, 23)[0] + 1000)
        case "base":
            struct.pack_into(">q", out, 0, struct.unpack_from(">q", out)[0] ^ 1 << 40)
        case "length":
            struct.pack_into(">i", out, 8, struct.unpack_from(">i", out, 8)[0] - 3)
    return bytes(out)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches one behind the other, with holes as compaction leaves them; some are harmed."""
    found, at = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 9))):
        at += draw(st.sampled_from([0, 0, 0, 1, 7]))
        size = draw(st.sampled_from([1, 2, 3, 10]))
        harm = draw(st.sampled_from(["", "", "payload", "payload", "magic", "claim", "length"]))
        # A value may look like the begin of a batch.
        values = [
            draw(st.sampled_from([b"a", b"x" * 40, struct.pack(">qiib", 7, 60, 0, 2)])) for _ in range(size)
        ]
        whole = batch([Entry(value) for value in values], at)
        found.append(Batch(at, at + size, harmed(whole, harm) if harm else whole, not harm))
        at += size
    return found


def broker(log: list[Batch], batches_max: int) -> Callable[[int], bytes]:
    """What a fetch from an offset brings: from the batch on that holds it, or the next one."""

    def look(offset: int) -> bytes:
        found = [each.raw for each in log if each.next > offset]
        return b"".join(found[:batches_max])

    return look


def plain_answer(log: list[Batch], start: int) -> int:
    return next((each.base for each in log if each.intact and each.base > start), log[-1].next)


@given(logs(), st.integers(1, 9))
def test_reading_goes_on_at_the_first_intact_batch_behind_the_damage(log: list[Batch], batches: int) -> None:
    look, end, asked = broker(log, batches), log[-1].next, 0

    def counted(offset: int) -> bytes:
        nonlocal asked
        asked += 1
        return look(offset)

    for number, each in enumerate(log):
        if each.intact:
            continue
        asked = 0
        found = damage_end(counted, each.base, end)
        behind = list(itertools.dropwhile(lambda other: not other.intact, log[number:]))
        if batches == 9 or all(other.intact for other in behind):
            assert found == plain_answer(log, each.base)
        else:  # more damage, which may be told as one; but nobody goes on with what cannot be read
            assert each.base < found
            assert found == end or first_intact_offset(look(found)) == found
        assert asked <= 20


@given(logs())
def test_what_a_fetch_brought_says_where_it_resumes(log: list[Batch]) -> None:
    raw, start = b"".join(each.raw for each in log), log[0].base
    behind = [each.base for each in log[1:] if each.intact]
    assert next_intact_offset(raw, start) == (behind[0] if behind else None)
    assert first_intact_offset(raw) == (start if log[0].intact else None)


@given(st.sets(st.integers(1, 400)), st.integers(1, 400))
@example(set(), 1)
def test_galloping_finds_the_first_offset_that_can_be_read(dark: set[int], end: int) -> None:
    """What cannot be read is one stretch from 0 on; behind it there may be holes."""
    reach = len(dark)

    def readable(offset: int) -> int | None:
        return None if offset < reach else offset

    assert galloping_search(readable, 0, end) == (
        reach if 0 < reach < end else end if reach >= end else min(1, end)
    )


def test_a_damaged_batch_that_claims_what_is_not_its_own_is_taken_away() -> None:
    first, second = batch([Entry(b"a")] * 3, 0), batch([Entry(b"b")] * 3, 3)
    assert without_damage_before(harmed(first, "claim") + second, 3) == second
    assert without_damage_before(first + second, 1) == first + second
    assert without_damage_before(harmed(first, "payload") + second, 0) == harmed(first, "payload") + second


@pytest.mark.parametrize("size", [0, 10, 40])
def test_of_less_than_a_head_nothing_is_known(size: int) -> None:
    raw = batch([Entry(b"a")], 5)[:size]
    assert first_intact_offset(raw) is None
    assert next_intact_offset(raw, 5) is None
    assert without_damage_before(raw, 6) == raw


def test_what_a_batch_claims_is_its_own_word() -> None:
    assert claimed_next_offset(batch([Entry(b"a")] * 3, 5)) == 8
    assert claimed_next_offset(b"") is None
