"""Sharded: a limiter for very many keys, cut into small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gatekeeper.limits.composites.by_plan import PlanLimiter
from gatekeeper.limits.engine import conveniences
from gatekeeper.limits.engine.protocol import Key, SavedState
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import whole_number
from gatekeeper.model import Decision

L = TypeVar("L", bound=PlanLimiter)


class Sharded(Generic[L]):
    """The same limiter `shards` times, each with its part of the keys: `Sharded(make, shards=64)`.

    For more than some 100,000 keys. A dict that grows moves all of its keys, and one that is
    forgotten frees them, and meanwhile no thread runs: tens of milliseconds at a million keys, less
    than one for each of 64 shards. A decision costs some 100 ns more. `max_keys` is that of a shard.
    """

    __slots__ = ("_mask", "_shards")

    def __init__(self, make: Callable[[], L], shards: int = 64) -> None:
        """Calls `make` for each shard. Raises ValueError unless `shards` is a power of two."""
        if whole_number(shards, "shards") & (shards - 1):
            raise ValueError(f"shards: expected a power of two, got {shards}")
        self._shards = tuple(make() for _ in range(shards))
        self._mask = shards - 1

    def of(self, key: Key) -> L:
        """The shard that counts `key`."""
        return self._shards[hash(key) & self._mask]

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; they are counted when they may."""
        return self._shards[hash(key) & self._mask].allow(key, cost)

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """The same, with its fields."""
        return self.of(key).check(key, cost)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """What `check` would decide now; nothing is counted."""
        return self.of(key).peek(key, cost)

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Give `cost` permits of `key` back."""
        self.of(key).refund(key, cost)

    def reset(self, key: Key = "") -> None:
        """Forget `key`."""
        self.of(key).reset(key)

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Permits for the first moment at which they are free."""
        return self.of(key).reserve(key, cost, max_wait)

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Allowed once `cost` requests may pass; this thread waits."""
        return self.of(key).wait(key, cost, timeout)

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """The same for a task; cancelling it spends nothing."""
        return await self.of(key).wait_async(key, cost, timeout)

    def configure(self, **changes: Any) -> None:
        """Another limit for every shard, one after the other. Raises ValueError, and nothing changes."""
        for shard in self._shards:
            shard.configure(**changes)

    def dump(self) -> SavedState:
        """All that is counted, as json.dumps takes it."""
        first, *others = [shard.dump() for shard in self._shards]
        return {**first, "keys": [*first["keys"], *(pair for other in others for pair in other["keys"])]}

    def load(self, saved: SavedState) -> None:
        """Count on from what `dump` saved, also with another number of shards. Raises ValueError."""
        # Text hashes differently in every process, so each key finds its shard anew.
        parts: list[SavedState] = [{**saved, "keys": []} for _ in self._shards]
        for name, numbers in saved.get("keys", ()):
            key = tuple(name) if isinstance(name, list) else name
            parts[hash(key) & self._mask]["keys"].append([name, numbers])
        for shard, part in zip(self._shards, parts, strict=True):
            shard.load(part)

    check_many = conveniences.check_many
    enforce = conveniences.enforce
    guard = conveniences.guard
    ticks = conveniences.ticks
    leave = conveniences.nothing_to_leave
    allow_async = conveniences.allow_async
    check_async = conveniences.check_async
    check_many_async = conveniences.check_many_async
    peek_async = conveniences.peek_async
    reserve_async = conveniences.reserve_async
    enforce_async = conveniences.enforce_async
    __enter__ = conveniences.enter
    __exit__ = conveniences.leave_block
    __aenter__ = conveniences.enter_async
    __aexit__ = conveniences.leave_block_async
