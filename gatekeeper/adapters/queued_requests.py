"""A limiter for a guard, in which requests wait for their turn instead of being denied at once."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from gatekeeper.adapters.admission_control import refund_async
from gatekeeper.model import Decision

__all__ = ["WaitableLimiter", "Waiting"]


class WaitableLimiter(Protocol):
    """A limiter with `wait`: all of `gatekeeper.limits` except the schedulers."""

    def wait(self, key: str, cost: int, timeout: float | None, /) -> Decision: ...
    async def wait_async(self, key: str, cost: int, timeout: float | None, /) -> Decision: ...
    def refund(self, key: str, cost: int, /) -> None: ...
    def leave(self, key: str, cost: int, /) -> Awaitable[None] | None: ...


class Waiting:
    """A limiter that lets a request wait for its turn, and denies it only if its turn comes too late.

    In an event loop a request waits as a task and blocks no other. In a synchronous server each request that
    waits occupies a thread or process: run more of them than requests can wait.

    Args:
        limiter: The limiter whose turn is awaited.
        timeout: Seconds that a request waits at most; 0 or more.

    Raises:
        ValueError: `timeout` is negative or not finite.

    Example:
        >>> from gatekeeper import LeakyQueue
        >>> queue = Waiting(LeakyQueue(1, period=10, queue=50), timeout=0)  # Guard(app, gate, queue)
        >>> [queue.check("api_key:acme", 1).allowed for _ in range(2)]
        [True, False]
    """

    def __init__(self, limiter: WaitableLimiter, timeout: float) -> None:
        if not 0 <= timeout < float("inf"):
            raise ValueError(f"timeout: expected seconds from 0, got {timeout!r}")
        self._limiter = limiter
        self._timeout = timeout
        # A guard reads these; see `GuardLimiter`.
        self.name: str = getattr(limiter, "name", "")
        self.store: object = getattr(limiter, "store", None)
        self.holds_permits: bool = getattr(limiter, "holds_permits", True)
        self.is_awaited = True

    def check(self, key: str, cost: int) -> Decision:
        """Waits, in this thread, and returns the decision."""
        return self._limiter.wait(key, cost, self._timeout)

    async def check_async(self, key: str, cost: int) -> Decision:
        """Waits, in this task, and returns the decision."""
        return await self._limiter.wait_async(key, cost, self._timeout)

    def refund(self, key: str, cost: int) -> None:
        """Returns `cost` permits to the limiter."""
        self._limiter.refund(key, cost)

    async def refund_async(self, key: str, cost: int) -> None:
        """Returns `cost` permits to the limiter."""
        await refund_async(self._limiter, key, cost)

    def leave(self, key: str, cost: int) -> Awaitable[None] | None:
        """Returns the permits of a request in flight: its response is complete."""
        return self._limiter.leave(key, cost)
