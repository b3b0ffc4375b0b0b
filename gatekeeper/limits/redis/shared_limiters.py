"""The methods of a limiter whose keys a store holds: those of its class, in both forms.

The form must be that of the store's client. The plain one would find nobody to await for it, and the
awaited one would stop the event loop for as long as the store takes; so the wrong one raises TypeError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from gatekeeper.limits.engine.protocol import Key, Period
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import to_ns, whole_number
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker
from gatekeeper.limits.redis import operations
from gatekeeper.limits.redis.shared_state import SharedLimiter
from gatekeeper.limits.redis.waiting import waiting
from gatekeeper.model import Decision, Refused


def allow(self: SharedLimiter, key: Key = "", cost: int = 1) -> bool:
    """Whether `cost` requests of `key` may pass now; they are counted when they may."""
    return self._sharing.store.run(operations.allowing(self, key, cost))


async def allow_async(self: SharedLimiter, key: Key = "", cost: int = 1) -> bool:
    """The same for a task."""
    return await self._sharing.store.run_async(operations.allowing(self, key, cost))


def check(self: SharedLimiter, key: Key = "", cost: int = 1) -> Decision:
    """The same, with limit, remaining, retry_after and reset_after, all of the same moment."""
    return self._sharing.store.run(operations.checking(self, key, cost))


async def check_async(self: SharedLimiter, key: Key = "", cost: int = 1) -> Decision:
    """The same for a task."""
    return await self._sharing.store.run_async(operations.checking(self, key, cost))


def check_many(self: SharedLimiter, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
    """The decisions about all of `keys`, in one round trip."""
    return self._sharing.store.run(operations.checking_many(self, keys, cost))


async def check_many_async(self: SharedLimiter, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
    """The same for a task."""
    return await self._sharing.store.run_async(operations.checking_many(self, keys, cost))


def peek(self: SharedLimiter, key: Key = "", cost: int = 1) -> Decision:
    """What `check` would decide now; nothing is counted. Always asks the store."""
    return self._sharing.store.run(operations.peeking(self, key, cost))


async def peek_async(self: SharedLimiter, key: Key = "", cost: int = 1) -> Decision:
    """The same for a task."""
    return await self._sharing.store.run_async(operations.peeking(self, key, cost))


def refund(self: SharedLimiter, key: Key = "", cost: int = 1) -> None:
    """Give `cost` permits of `key` back, at most what is counted."""
    self._sharing.store.run(operations.refunding(self, key, cost))


async def refund_async(self: SharedLimiter, key: Key = "", cost: int = 1) -> None:
    """The same for a task."""
    await self._sharing.store.run_async(operations.refunding(self, key, cost))


def reset(self: SharedLimiter, key: Key = "") -> None:
    """Forget `key`: its next request is its first."""
    self._sharing.store.run(operations.resetting(self, key))


async def reset_async(self: SharedLimiter, key: Key = "") -> None:
    """The same for a task."""
    await self._sharing.store.run_async(operations.resetting(self, key))


def reserve(self: SharedLimiter, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
    """Permits for the first moment at which they are free, behind all that is booked already."""
    return self._sharing.store.run(operations.reserving(self, key, cost, max_wait))


async def reserve_async(
    self: SharedLimiter, key: Key = "", cost: int = 1, max_wait: float | None = None
) -> Reservation:
    """The same for a task."""
    return await self._sharing.store.run_async(operations.reserving(self, key, cost, max_wait))


def wait(self: SharedLimiter, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
    """Allowed once `cost` requests may pass; this thread waits."""
    return self._sharing.store.run(waiting(self, key, cost, timeout, ThreadWaker(self._keys.clock)))


async def wait_async(
    self: SharedLimiter, key: Key = "", cost: int = 1, timeout: float | None = None
) -> Decision:
    """The same for a task; cancelling it gives back what it had."""
    steps = waiting(self, key, cost, timeout, TaskWaker())
    return await self._sharing.store.run_async(steps, to_the_end=True)


async def enforce_async(self: SharedLimiter, key: Key = "", cost: int = 1) -> Decision:
    """As `check_async`, but a refusal is raised."""
    decision = await check_async(self, key, cost)
    if not decision.allowed:
        raise Refused(decision)
    return decision


def configure(
    self: SharedLimiter, limit: int | None = None, period: Period | None = None, burst: int | None = None
) -> None:
    """Another limit from now on, in this process; what was used stays used. Asks nothing of the store.

    Each process decides by the limit that it was given, on one common history: tell them all.
    Raises ValueError.
    """
    if limit is not None:
        whole_number(limit, "limit")
    rule = self._rule.with_limits(limit, None if period is None else to_ns(period), burst)
    sharing = self._sharing
    for part in sharing.parts:
        part.change(rule)
    self._rule = rule
    sharing.local = sharing.store.share_of(self)


def dump(self: SharedLimiter) -> NoReturn:
    """Raises TypeError: the store keeps the keys, whatever becomes of this process."""
    raise TypeError("the store keeps this limiter's keys: there is nothing to dump")


def load(self: SharedLimiter, saved: object) -> NoReturn:
    """Raises TypeError: the store keeps the keys, whatever becomes of this process."""
    raise TypeError("the store keeps this limiter's keys: there is nothing to load")


METHODS: Final[dict[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (
        allow, allow_async, check, check_async, check_many, check_many_async, peek, peek_async, refund,
        refund_async, reset, reset_async, reserve, reserve_async, wait, wait_async, enforce_async, configure,
        dump, load,
    )
}  # fmt: skip


@functools.cache
def shared_class(kind: type[Any]) -> type[Any]:
    """`kind` with these methods in place of its own, under its own name."""
    body = {"__slots__": ("_sharing",), "__module__": kind.__module__, "__doc__": kind.__doc__}
    methods = {name: each for name, each in METHODS.items() if name != "configure" or hasattr(kind, "_rule")}
    return type(kind.__name__, (kind,), body | methods)
