"""Methods that pass each call on to the limiter of its key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Iterable
from typing import Generic, TypeVar

from gatekeeper.limits.composites.by_plan import PlanLimiter
from gatekeeper.limits.engine.conveniences import RateMethods, require_keys
from gatekeeper.limits.engine.protocol import Key, LimiterStore
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.model import Decision

L = TypeVar("L", bound=PlanLimiter)


class Delegating(RateMethods, Generic[L]):
    """A limiter made of others: `of` says which one decides about a key."""

    __slots__ = ()

    @abstractmethod
    def of(self, key: Key) -> L:
        """Returns the limiter that counts `key`."""

    @property
    def name(self) -> str:
        """The name of the limiter."""
        return self.of("").name

    @property
    def store(self) -> LimiterStore | None:
        """The store of the limiter; None when it holds its keys in this process."""
        return self.of("").store

    @property
    def is_awaited(self) -> bool:
        """Whether decisions must be awaited."""
        return self.of("").is_awaited

    @property
    def holds_permits(self) -> bool:
        """Whether a permit stays in use until the work is over."""
        return self.of("").holds_permits

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found no room."""
        return self.of("").overflowed

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Raises ValueError for a negative cost.
        """
        return self.of(key).allow(key, cost)

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
        return [await self.check_async(key, cost) for key in require_keys(keys)]

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
        """Ends the work that permits of `key` were taken for."""
        return self.of(key).leave(key, cost)
