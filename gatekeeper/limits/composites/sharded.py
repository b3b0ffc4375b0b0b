"""Shards: a limiter for very many keys, divided into small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatekeeper.limits.composites.by_plan import require_limiter, start_over_all
from gatekeeper.limits.composites.delegating import Delegating, L
from gatekeeper.limits.engine.persistence import restore_key
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, SavedState
from gatekeeper.limits.engine.units import require_callable, whole_number


class Sharded(Delegating[L]):
    """A limiter in `shards` parts, each with its part of the keys: for more than some 100,000 keys.

    Decides what one limiter would decide. A dict that grows moves all of its keys, and a generation that is
    forgotten frees them; meanwhile no thread runs: tens of milliseconds at a million keys, less than one
    for each of 64 shards. A decision costs some 100 ns more.

    Args:
        make: A function without arguments that creates one shard; all shards must have the same limit. Its
            `max_keys` is that of one shard.
        shards: How many; a power of two, 64 by default.

    Raises:
        ValueError: A number of shards that is not a power of two.
        TypeError: A `make` that is not a function, or does not return a limiter.

    Example:
        >>> from gatekeeper.limits import TokenBucket
        >>> limiter = Sharded(lambda: TokenBucket(100, 60), shards=64)
        >>> limiter.check("acme").remaining
        99
    """

    __slots__ = ("_mask", "_shards")

    def __init__(self, make: Callable[[], L], shards: int = 64) -> None:
        if whole_number(shards, "shards") & (shards - 1):
            raise ValueError(f"shards: expected a power of two, got {shards}")
        require_callable(make, "make")
        self._shards = tuple(require_limiter(make(), "make") for _ in range(shards))
        self._mask = shards - 1

    def __repr__(self) -> str:
        return f"<Sharded {self._shards[0]!r} in {len(self._shards)} shards>"

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found no room in its shard; the sum over the shards."""
        return sum(shard.overflowed for shard in self._shards)

    def of(self, key: Key) -> L:
        """Returns the shard that counts `key`."""
        return self._shards[hash(key) & self._mask]

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Raises ValueError for a negative cost.
        """
        return self._shards[hash(key) & self._mask].allow(key, cost)

    def configure(self, **changes: Any) -> None:
        """Applies another limit to every shard, in turn. Raises ValueError, and nothing changes."""
        for shard in self._shards:
            shard.configure(**changes)

    def dump(self) -> SavedState:
        """Returns all that is counted, as json.dumps accepts it."""
        first, *further = [shard.dump() for shard in self._shards]
        return {**first, "keys": [*first["keys"], *(pair for saved in further for pair in saved["keys"])]}

    def load(self, saved: SavedState) -> None:
        """Continues from what `dump` saved, also with another number of shards. Raises ValueError."""
        # Text hashes differently in every process, so each key is assigned to its shard again.
        parts: list[SavedState] = [{**saved, "keys": []} for _ in self._shards]
        for name, numbers in saved.get("keys", ()):
            parts[hash(restore_key(name)) & self._mask]["keys"].append([name, numbers])
        for shard, part in zip(self._shards, parts, strict=True):
            shard.load(part)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests."""
        return start_over_all(self._shards, clock)
