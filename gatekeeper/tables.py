"""Tables that are cheap to change: nobody writes to one, the next one shares what did not change.

A small table is a dict. A large one is cut into shards: to copy a dict of 100,000 takes 2 ms, and one that
grows past 87,000 stops everybody for 2.4 (CPython 3.11; 0.2 at 16,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gatekeeper.held import At, Held, at_of
from gatekeeper.pieces import Breath
from gatekeeper.places import Key

Found = tuple[Held, ...]  # what stands at one key; mostly one

SPREAD_AT = 16_384  # entries; from here on in shards, and below a quarter of it no longer
SHARDS = 256  # 4,000 entries in each where there are a million


class Spread:
    """A large table. Asked as a dict is."""

    __slots__ = ("shards",)

    def __init__(self, shards: tuple[dict[Key, Found], ...]) -> None:
        self.shards = shards

    def __contains__(self, key: object) -> bool:
        return key in self.shards[hash(key) % SHARDS]

    def get(self, key: Key, default: Found = ()) -> Found:
        return self.shards[hash(key) % SHARDS].get(key, default)

    def __len__(self) -> int:
        return sum(map(len, self.shards))


Table = dict[Key, Found] | Spread
Edit = tuple[Key, At, Held | None]  # where; which lock, since several keys may lead to one place; the lock

EMPTY: dict[Key, Found] = {}


def shards_of(table: Table) -> tuple[dict[Key, Found], ...]:
    """The dicts that the table is made of."""
    return table.shards if isinstance(table, Spread) else (table,)


def values(table: Table) -> Iterator[Found]:
    """Everything in the table."""
    return (found for shard in shards_of(table) for found in shard.values())


def let_go(old: Iterable[Table], new: Iterable[Table]) -> Iterator[None]:
    """Give back the memory of the `old` tables that the `new` ones do not share, a piece at each step.

    To forget 100,000 locks at once takes 30 ms. The old ones must not be referred to from elsewhere.
    """
    kept = {id(shard) for table in new for shard in shards_of(table)}
    gone = [shard for table in old for shard in shards_of(table) if id(shard) not in kept]
    del old
    while gone:
        # The dict goes first and at once, what was in it afterwards: nobody can see it half empty.
        found = list(gone.pop().values())
        while found:
            del found[-100:]
            yield


def edited(table: Table, edits: list[Edit], breath: Breath) -> Table:
    """The table after `edits`, in their order. What shares nothing with `table` is made in pieces."""
    if isinstance(table, dict):
        if len(table) + len(edits) <= SPREAD_AT:
            return _edited(table, edits)
        table = _spread(table, breath)
    by_shard: dict[int, list[Edit]] = {}
    for edit in edits:
        by_shard.setdefault(hash(edit[0]) % SHARDS, []).append(edit)
        breath.take()
    shards = list(table.shards)
    for number, some in by_shard.items():
        shards[number] = _edited(shards[number], some, breath)
    spread = Spread(tuple(shards))
    return spread if len(spread) > SPREAD_AT // 4 else _gathered(spread)


def _edited(shard: dict[Key, Found], edits: Iterable[Edit], breath: Breath | None = None) -> dict[Key, Found]:
    changed = dict(shard)
    for key, at, held in edits:
        found = changed.get(key, ())
        rest = tuple(other for other in found if at_of(other) != at)
        if held is not None or rest:
            changed[key] = rest if held is None else (*rest, held)
        else:
            changed.pop(key, None)
        if breath is not None:
            breath.take()
    return changed


def _spread(table: dict[Key, Found], breath: Breath) -> Spread:
    shards: list[dict[Key, Found]] = [{} for _ in range(SHARDS)]
    for key, found in table.items():
        shards[hash(key) % SHARDS][key] = found
        breath.take()
    return Spread(tuple(shards))


def _gathered(table: Spread) -> dict[Key, Found]:
    return {key: found for shard in table.shards for key, found in shard.items()}
