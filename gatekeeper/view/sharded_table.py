"""Tables that are cheap to change: nobody writes to one, the next one shares what did not change.

A small table is a dict. A large one is cut into shards: to copy a dict of 100,000 takes 2 ms, and one that
grows past 87,000 stops everybody for 2.4 (CPython 3.11; 0.2 at 16,000).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_tuples import LockKeyTuple, LockTuple, is_set, key_of
from gatekeeper.view.lookup_keys import LookupKey

FoundLocks = tuple[LockTuple, ...]  # what stands at one key; mostly one

SHARDED_ABOVE = 16_384  # entries; from here on in shards, and below a quarter of it no longer
UNCOLLECTED_MAX = 5_000
SHARDS = 256  # 4,000 entries in each where there are a million


class ShardedTable:
    """A large table. Asked as a dict is."""

    __slots__ = ("shards",)

    def __init__(self, shards: tuple[dict[LookupKey, FoundLocks], ...]) -> None:
        self.shards = shards

    def __contains__(self, key: object) -> bool:
        return key in self.shards[hash(key) % SHARDS]

    def get(self, key: LookupKey, default: FoundLocks = ()) -> FoundLocks:
        return self.shards[hash(key) % SHARDS].get(key, default)

    def __len__(self) -> int:
        return sum(map(len, self.shards))


LockTable = dict[LookupKey, FoundLocks] | ShardedTable
EMPTY: dict[LookupKey, FoundLocks] = {}


def shards_of(table: LockTable) -> tuple[dict[LookupKey, FoundLocks], ...]:
    """The dicts that the table is made of."""
    return table.shards if isinstance(table, ShardedTable) else (table,)


def locks_in(table: LockTable) -> Iterator[FoundLocks]:
    """Everything in the table."""
    return (found for shard in shards_of(table) for found in shard.values())


def release(old: Iterable[LockTable], new: Iterable[LockTable]) -> Iterator[None]:
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


class TableBuilder:
    """The table that will follow one: what is touched first is copied first, so that nobody sees a change.

    Changes are made as they come, not gathered: a list of 100,000 that is young is work for the collector.
    """

    def __init__(self, table: LockTable) -> None:
        self._shards = list(shards_of(table))
        self._ours: set[int] = set()  # shards that were copied
        self._young = 0  # entries in those that the collector has not seen yet

    def change(self, key: LookupKey, row: LockTuple | LockKeyTuple) -> int:
        """Put the lock `row` at `key`, or take that away which it names; by how many keys that is more."""
        number = hash(key) % SHARDS if len(self._shards) > 1 else 0
        shard = self._shards[number]
        if number not in self._ours:
            shard = self._shards[number] = dict(shard)
            self._ours.add(number)
            self._grow_old(len(shard))
        before = shard.get(key, ())
        found = before
        if before:
            at = key_of(row) if is_set(row) else row
            found = tuple(other for other in before if key_of(other) != at)
        if is_set(row):
            found = (*found, row)
        if found:
            shard[key] = found
        else:
            shard.pop(key, None)
        if len(self._shards) == 1 and len(shard) > SHARDED_ABOVE:
            self._shards, self._ours = _into_shards(shard), set(range(SHARDS))
        return bool(found) - bool(before)

    def _grow_old(self, entries: int) -> None:
        """Let the collector look at what was copied before it becomes much: 100,000 entries at once would
        take it 3 ms."""
        self._young += entries
        if self._young >= UNCOLLECTED_MAX and len(self._shards) > 1:
            self._young = 0
            if gc.isenabled():
                gc.collect(1)

    def finished(self) -> LockTable:
        """The table."""
        if len(self._shards) == 1:
            return self._shards[0]
        spread = ShardedTable(tuple(self._shards))
        if len(spread) > SHARDED_ABOVE // 4:
            return spread
        return {key: found for shard in spread.shards for key, found in shard.items()}


def _into_shards(shard: dict[LookupKey, FoundLocks]) -> list[dict[LookupKey, FoundLocks]]:
    shards: list[dict[LookupKey, FoundLocks]] = [{} for _ in range(SHARDS)]
    for key, found in with_pauses(shard.items()):
        shards[hash(key) % SHARDS][key] = found
    return shards
