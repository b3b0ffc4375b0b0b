"""Where record batches can be read again behind one that is damaged."""

from __future__ import annotations

from collections.abc import Callable

from analyzer.core.kafka_format.record_batches import HEAD, LENGTH_AT, MAGIC, intact_batch

MAGIC_AT = HEAD.size - 1
CANDIDATES_MAX = 10_000  # in one fetch: values may be full of what looks like a batch


def first_intact_offset(raw: bytes) -> int | None:
    """The base offset of the batch that `raw` begins with; None when it is not intact."""
    first = intact_batch(raw, 0)
    return None if first is None else first[0].base


def next_intact_offset(raw: bytes, start: int) -> int | None:
    """The base offset, behind `start`, of the first intact batch behind the one that `raw` begins with.
    None when there is none in `raw`."""
    found = _behind(raw, lambda base: base > start)
    return None if found is None else HEAD.unpack_from(raw, found)[0]


def claimed_next_offset(raw: bytes) -> int | None:
    """Where the batch that `raw` begins with says that the next one begins."""
    if len(raw) < HEAD.size + 10:
        return None
    delta = int.from_bytes(raw[HEAD.size + 6 : HEAD.size + 10], "big", signed=True)
    return int(HEAD.unpack_from(raw)[0]) + delta + 1


def without_damage_before(raw: bytes, start: int) -> bytes:
    """`raw` from the batch on that holds `start`, where that is not its first one though it claims so.

    A damaged batch may claim offsets that are not its own. A broker believes it, and sends it along with
    what was asked for.
    """
    if len(raw) < HEAD.size or HEAD.unpack_from(raw)[0] >= start or intact_batch(raw, 0) is not None:
        return raw
    found = _behind(raw, lambda base: base >= start)
    return raw if found is None or HEAD.unpack_from(raw, found)[0] > start else raw[found:]


def damage_end(look: Callable[[int], bytes], start: int, end: int) -> int:
    """Where reading can go on behind the damage that keeps `start` from being read; `end`, which is the
    log's, when nothing behind it can be read.

    `look` gives the raw batches from an offset on, or nothing where a broker cannot find any. It is asked
    some dozens of times at most: first for what follows the damage at once, then at offsets twice as far
    each time, at last half the way between what can be read and what cannot.
    """
    raw = look(start)
    found = next_intact_offset(raw, start)
    # A broker that cannot step over the damage itself may not find what is there.
    if found is not None and first_intact_offset(look(found)) == found:
        return found
    claimed = claimed_next_offset(raw)
    sane = claimed if claimed is not None and start < claimed <= end else None
    if sane is not None and (sane == end or first_intact_offset(look(sane)) == sane):
        return sane
    return galloping_search(lambda at: _begins_behind(look(at), start), start, end)


def _begins_behind(raw: bytes, start: int) -> int | None:
    base = first_intact_offset(raw)
    return base if base is not None and base > start else None


def galloping_search(readable: Callable[[int], int | None], start: int, end: int) -> int:
    """The same where only `readable` can be asked: the first offset of what is got when asking for one, None
    when that cannot be read."""
    dark, bright, step = start, None, 1
    while bright is None:
        at = min(start + step, end - 1)
        if at <= dark:
            return end
        bright, step = readable(at), step * 2
        dark = dark if bright is not None else at
    while dark + 1 < bright:
        at = (dark + bright) // 2
        found = readable(at)
        if found is None or found >= bright:
            dark = at  # damaged as well, or no record has this offset
        else:
            bright = found
    return bright


def _behind(raw: bytes, wanted: Callable[[int], bool]) -> int | None:
    """Where in `raw` the first intact batch behind its first one begins, if its base is `wanted`: where the
    first says that it ends, or else wherever something looks like one."""
    if len(raw) < HEAD.size:
        return None
    length = HEAD.unpack_from(raw)[1]
    if length > 0 and (found := _intact_at(raw, LENGTH_AT + length, wanted)) is not None:
        return found
    at = MAGIC_AT
    for _ in range(CANDIDATES_MAX):
        at = raw.find(MAGIC, at + 1)
        if at < 0:
            break
        if (found := _intact_at(raw, at - MAGIC_AT, wanted)) is not None:
            return found
    return None


def _intact_at(raw: bytes, at: int, wanted: Callable[[int], bool]) -> int | None:
    found = intact_batch(raw, at)
    return at if found is not None and wanted(found[0].base) else None
