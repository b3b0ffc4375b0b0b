"""A limiter for a guard whose requests wait their turn."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from gatekeeper.adapters.admission_control import refund_async
from gatekeeper.model import Decision


class WaitableLimiter(Protocol):
    """A limiter that can be waited for: all of `gatekeeper.limits` but the schedulers."""

    def wait(self, key: str, cost: int, timeout: float | None, /) -> Decision: ...
    async def wait_async(self, key: str, cost: int, timeout: float | None, /) -> Decision: ...
    def refund(self, key: str, cost: int, /) -> None: ...
    def leave(self, key: str, cost: int, /) -> Awaitable[None] | None: ...


class Waiting:
    """`limiter`, but a request that may not pass at once waits its turn, for up to `timeout` seconds, and is
    refused only if that will not do: `Guard(app, gate, Waiting(LeakyQueue(10, 1, queue=50), timeout=2))`.

    Where there is a loop it waits as a task, and holds nobody up. Where there is none it keeps its thread or
    process for as long: see to it that these are more than can wait. Raises ValueError for a `timeout` that
    is none.
    """

    def __init__(self, limiter: WaitableLimiter, timeout: float) -> None:
        if not 0 <= timeout < float("inf"):
            raise ValueError(f"timeout: expected seconds from 0, got {timeout!r}")
        self._limiter = limiter
        self._timeout = timeout
        # As a guard reads them: see `GuardLimiter`.
        self.name: str = getattr(limiter, "name", "")
        self.store: object = getattr(limiter, "store", None)
        self.holds_permits: bool = getattr(limiter, "holds_permits", True)
        self.is_awaited = True

    def check(self, key: str, cost: int) -> Decision:
        """The decision, when it is there."""
        return self._limiter.wait(key, cost, self._timeout)

    async def check_async(self, key: str, cost: int) -> Decision:
        """The same, in a task."""
        return await self._limiter.wait_async(key, cost, self._timeout)

    def refund(self, key: str, cost: int) -> None:
        """Give `cost` permits back."""
        self._limiter.refund(key, cost)

    async def refund_async(self, key: str, cost: int) -> None:
        """The same, in a task."""
        await refund_async(self._limiter, key, cost)

    def leave(self, key: str, cost: int) -> Awaitable[None] | None:
        """The response is over."""
        return self._limiter.leave(key, cost)
