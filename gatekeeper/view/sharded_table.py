"""Copy-on-write tables: a change builds the next table, which shares with the last what did not change.

A small table is one dict. A large one is divided into shards, of which only those that change are copied: to
copy a dict of 100,000 entries takes 2 ms, and one that grows beyond 87,000 stops all threads for 2.4 ms while
it is resized (CPython 3.11; 0.2 ms at 16,000).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from gatekeeper.view.cooperative import with_pauses
from gatekeeper.view.lock_tuples import ChangeTuple, LockTuple, is_set, tuple_key
from gatekeeper.view.lookup_keys import LookupKey

FoundLocks = tuple[LockTuple, ...]  # all locks under one key, mostly one
Shard = dict[LookupKey, FoundLocks]

SHARDED_ABOVE = 16_384  # entries; a sharded table becomes one dict again below a quarter of that
SHARDS = 256  # a million locks are 4,000 entries in each
UNCOLLECTED_MAX = 5_000  # copied entries between two collections
RELEASED_AT_ONCE = 100  # locks freed between two steps


class ShardedTable:
    """A large table, with the methods of a dict that look-ups need."""

    __slots__ = ("shards",)

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        self.shards = shards

    def __contains__(self, key: object) -> bool:
        return key in self.shards[hash(key) % SHARDS]

    def get(self, key: LookupKey, default: FoundLocks = ()) -> FoundLocks:
        return self.shards[hash(key) % SHARDS].get(key, default)

    def __len__(self) -> int:
        return sum(map(len, self.shards))


LockTable = Shard | ShardedTable
EMPTY: Shard = {}


def table_shards(table: LockTable) -> tuple[Shard, ...]:
    """The dicts that hold the table's entries."""
    return table.shards if isinstance(table, ShardedTable) else (table,)


def locks_in(table: LockTable) -> Iterator[FoundLocks]:
    """The locks of each key."""
    return (locks for shard in table_shards(table) for locks in shard.values())


def release(old: Iterable[LockTable], new: Iterable[LockTable]) -> Iterator[None]:
    """Frees the entries that only the `old` tables refer to, some at each step.

    To free 100,000 locks at once takes 30 ms. Nothing else may refer to the old tables.
    """
    shared = {id(shard) for table in new for shard in table_shards(table)}
    unshared = [shard for table in old for shard in table_shards(table) if id(shard) not in shared]
    del old
    while unshared:
        # The dict goes first, its contents afterwards: no reader can see it half empty.
        entries = list(unshared.pop().values())
        while entries:
            del entries[-RELEASED_AT_ONCE:]
            yield


class TableBuilder:
    """Builds the table that follows another. Copies each shard before its first change, so readers see none.

    Changes are applied as they come and never collected in a list: 100,000 young objects are work for the
    garbage collector.
    """

    def __init__(self, table: LockTable) -> None:
        self._shards = list(table_shards(table))
        self._copied: set[int] = set()  # numbers of the shards that belong to the new table alone
        self._uncollected = 0  # entries of copied shards since the last collection

    def change(self, key: LookupKey, change: ChangeTuple) -> int:
        """Adds a lock under `key`, or removes the cleared one; returns by how many keys the table grew."""
        number = hash(key) % SHARDS if len(self._shards) > 1 else 0
        shard = self._shards[number]
        if number not in self._copied:
            shard = self._shards[number] = dict(shard)
            self._copied.add(number)
            self._collect_copied(len(shard))
        earlier = shard.get(key, ())
        locks = earlier
        if earlier:
            changed = tuple_key(change) if is_set(change) else change
            locks = tuple(lock for lock in earlier if tuple_key(lock) != changed)
        if is_set(change):
            locks = (*locks, change)
        if locks:
            shard[key] = locks
        else:
            shard.pop(key, None)
        if len(self._shards) == 1 and len(shard) > SHARDED_ABOVE:
            self._shards, self._copied = _into_shards(shard), set(range(SHARDS))
        return bool(locks) - bool(earlier)

    def _collect_copied(self, entries: int) -> None:
        """Runs the collector before many copied entries are young: it would need 3 ms for 100,000 at once."""
        self._uncollected += entries
        if self._uncollected >= UNCOLLECTED_MAX and len(self._shards) > 1:
            self._uncollected = 0
            if gc.isenabled():
                gc.collect(1)

    def build(self) -> LockTable:
        """The new table. The builder must not be used afterwards."""
        if len(self._shards) == 1:
            return self._shards[0]
        sharded = ShardedTable(tuple(self._shards))
        if len(sharded) > SHARDED_ABOVE // 4:
            return sharded
        return {key: locks for shard in sharded.shards for key, locks in shard.items()}


def _into_shards(shard: Shard) -> list[Shard]:
    shards: list[Shard] = [{} for _ in range(SHARDS)]
    for key, locks in with_pauses(shard.items()):
        shards[hash(key) % SHARDS][key] = locks
    return shards
