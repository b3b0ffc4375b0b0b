"""Finds where record batches can be read again after a damaged one."""

from __future__ import annotations

from collections.abc import Callable

from analyzer.sources.batches.batch_header import HEADER_BYTES, MAGIC, MAGIC_AT, header_at, read_header
from analyzer.sources.batches.record_batches import intact_batch

CANDIDATES_MAX = 10_000  # in one fetch: values may be full of bytes that look like a batch


def base_offset_if_intact(raw: bytes) -> int | None:
    """Returns the base offset of the first batch in `raw`, or None when it is not intact."""
    first = intact_batch(raw, 0)
    return None if first is None else first[0].base_offset


def next_intact_offset(raw: bytes, start: int) -> int | None:
    """Returns the base offset of the first intact batch with a base offset above `start`, or None.

    The first batch in `raw` is not considered.
    """
    position = _find_intact(raw, lambda base: base > start)
    return None if position is None else read_header(raw, position).base_offset


def claimed_next_offset(raw: bytes) -> int | None:
    """Returns the next offset by the header of the first batch in `raw`, which may be damaged."""
    return read_header(raw).next_offset if len(raw) >= HEADER_BYTES else None


def without_damage_before(raw: bytes, start: int) -> bytes:
    """Returns `raw` from the batch that begins at `start`, where a damaged batch in front claims that offset.

    A broker believes a damaged batch that claims offsets of its successors, and sends it in front of the
    batch that was requested. In all other cases `raw` comes back as it is.
    """
    first = header_at(raw)
    if first is None or first.base_offset >= start or intact_batch(raw, 0) is not None:
        return raw
    position = _find_intact(raw, lambda base: base >= start)
    return raw if position is None or read_header(raw, position).base_offset > start else raw[position:]


def damage_end(fetch: Callable[[int], bytes], start: int, end: int) -> int:
    """Returns the first offset after `start` from which batches can be read; `end` when there is none.

    `fetch` returns the raw batches from an offset on, or nothing where a broker cannot find any. The
    search tries the next intact batch in the same fetch, then the offset at which the damaged batch claims to
    end, then `galloping_search`: some dozens of calls at most. `end` is the end of the log.
    """
    raw = fetch(start)
    intact = next_intact_offset(raw, start)
    # A broker that cannot step over the damage may not find the batch under its offset.
    if intact is not None and base_offset_if_intact(fetch(intact)) == intact:
        return intact
    claimed = claimed_next_offset(raw)
    credible = claimed if claimed is not None and start < claimed <= end else None
    if credible is not None and (credible == end or base_offset_if_intact(fetch(credible)) == credible):
        return credible

    def readable(offset: int) -> int | None:
        base = base_offset_if_intact(fetch(offset))
        return base if base is not None and base > start else None

    return galloping_search(readable, start, end)


def galloping_search(readable: Callable[[int], int | None], start: int, end: int) -> int:
    """Returns the first readable offset after the unreadable `start`; `end` when there is none before it.

    `readable` returns the first offset that a fetch from the given one brings, or None when it fails. The
    step doubles until a fetch succeeds, then the distance is halved (Bentley and Yao, 1976).
    """
    failed, tried, first, step = start, start, None, 1
    while first is None:
        tried = min(start + step, end - 1)
        if tried <= failed:
            return end
        first, step = readable(tried), step * 2
        failed = failed if first is not None else tried
    # From `tried` on the first readable offset is `first`, behind `tried` where no record has that offset.
    # Before `tried` others may be readable.
    while failed + 1 < tried:
        middle = (failed + tried) // 2
        base = readable(middle)
        if base is None:
            failed = middle
        else:
            tried, first = middle, base
    return first


def _find_intact(raw: bytes, is_wanted: Callable[[int], bool]) -> int | None:
    """Returns the byte where the first intact batch behind the first one begins whose base offset is wanted.

    Looks where the first batch claims to end, then at each byte that may be a magic.
    """
    first = header_at(raw)
    if first is None:
        return None
    if first.length > 0 and (begin := _intact_at(raw, first.size_bytes, is_wanted)) is not None:
        return begin
    position = MAGIC_AT
    for _ in range(CANDIDATES_MAX):
        position = raw.find(MAGIC, position + 1)
        if position < 0:
            break
        if (begin := _intact_at(raw, position - MAGIC_AT, is_wanted)) is not None:
            return begin
    return None


def _intact_at(raw: bytes, position: int, is_wanted: Callable[[int], bool]) -> int | None:
    intact = intact_batch(raw, position)
    return position if intact is not None and is_wanted(intact[0].base_offset) else None
