"""Shards: a limiter for very many keys, divided into small ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from gatekeeper.limits.composites.by_plan import PlanLimiter, start_over_all
from gatekeeper.limits.engine.conveniences import RateMethods
from gatekeeper.limits.engine.persistence import key_of
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, SavedState
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import whole_number
from gatekeeper.model import Decision

L = TypeVar("L", bound=PlanLimiter)


class Sharded(RateMethods, Generic[L]):
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
        self._shards = tuple(make() for _ in range(shards))
        self._mask = shards - 1

    @property
    def name(self) -> str:
        """The name of the shards."""
        return self._shards[0].name

    @property
    def store(self) -> LimiterStore | None:
        """The store of the shards; None when they hold their keys in this process."""
        return self._shards[0].store

    @property
    def is_awaited(self) -> bool:
        """Whether decisions of the shards must be awaited."""
        return self._shards[0].is_awaited

    @property
    def holds_permits(self) -> bool:
        """Whether a permit of a shard stays in use until the work is over."""
        return self._shards[0].holds_permits

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

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns the decision with its numbers."""
        return self.of(key).check(key, cost)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now; counts nothing."""
        return self.of(key).peek(key, cost)

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits of `key` back."""
        self.of(key).refund(key, cost)

    def reset(self, key: Key = "") -> None:
        """Forgets `key`: its next request is its first."""
        self.of(key).reset(key)

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits of `key` for the first moment at which they are free."""
        return self.of(key).reserve(key, cost, max_wait)

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may pass; this thread waits.

        Returns a refusal when `timeout` seconds do not suffice.
        """
        return self.of(key).wait(key, cost, timeout)

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it spends nothing."""
        return await self.of(key).wait_async(key, cost, timeout)

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """Decides as `allow` does."""
        return await self.of(key).allow_async(key, cost)

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does."""
        return await self.of(key).check_async(key, cost)

    async def check_many_async(self, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
        """Decides as `check_many` does."""
        return [await self.check_async(key, cost) for key in keys]

    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision as `peek` does."""
        return await self.of(key).peek_async(key, cost)

    async def refund_async(self, key: Key = "", cost: int = 1) -> None:
        """Gives permits back as `refund` does."""
        await self.of(key).refund_async(key, cost)

    async def reserve_async(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books as `reserve` does."""
        return await self.of(key).reserve_async(key, cost, max_wait)

    def leave(self, key: Key, cost: int) -> Awaitable[None] | None:
        """Ends the work that permits of `key` were taken for, in its shard."""
        return self.of(key).leave(key, cost)

    def configure(self, **changes: Any) -> None:
        """Applies another limit to every shard, in turn. Raises ValueError, and nothing changes."""
        for shard in self._shards:
            shard.configure(**changes)

    def dump(self) -> SavedState:
        """Returns all that is counted, as json.dumps accepts it."""
        first, *others = [shard.dump() for shard in self._shards]
        return {**first, "keys": [*first["keys"], *(pair for other in others for pair in other["keys"])]}

    def load(self, saved: SavedState) -> None:
        """Continues from what `dump` saved, also with another number of shards. Raises ValueError."""
        # Text hashes differently in every process, so each key is assigned to its shard again.
        parts: list[SavedState] = [{**saved, "keys": []} for _ in self._shards]
        for name, numbers in saved.get("keys", ()):
            parts[hash(key_of(name)) & self._mask]["keys"].append([name, numbers])
        for shard, part in zip(self._shards, parts, strict=True):
            shard.load(part)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests."""
        return start_over_all(self._shards, clock)
