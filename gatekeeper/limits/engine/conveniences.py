"""The comfortable ways to use a limiter: with blocks, decorators, loops, exceptions, `await`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast

from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.model import Decision, Refused

P = ParamSpec("P")
R = TypeVar("R")


class Waitable(Protocol):
    """A limiter that can be waited for."""

    def check(self, key: Key = "", cost: int = 1) -> Decision: ...
    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    def leave(self, key: Key, cost: int) -> Awaitable[None] | None:
        """The guarded work is over; something to await when a store has to be told."""


class Checkable(Protocol):
    """A limiter that decides."""

    def allow(self, key: Key = "", cost: int = 1) -> bool: ...
    def check(self, key: Key = "", cost: int = 1) -> Decision: ...
    def peek(self, key: Key = "", cost: int = 1) -> Decision: ...


class Reservable(Protocol):
    """A limiter that books."""

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation: ...


class PermitGuard:
    """Permits around a `with` block, an `async with` block, or each call of a function."""

    def __init__(
        self,
        limiter: Waitable | None,
        key: Key | Callable[..., Key],
        cost: int,
        timeout: float | None,
        choose: Callable[..., Waitable] | None = None,
    ) -> None:
        self._limiter = limiter
        self._choose = choose  # the limiter, by the arguments of the guarded function
        self._key = key
        self._cost = cost
        self._timeout = timeout

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, each call of which waits for its permits. Raises Refused when called."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self._of(*args, **kwargs):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._of(*args, **kwargs):
                return function(*args, **kwargs)

        return guarded

    def _of(self, *args: Any, **kwargs: Any) -> PermitGuard:
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        limiter = self._limiter if self._choose is None else self._choose(*args, **kwargs)
        return PermitGuard(limiter, key, self._cost, self._timeout)

    def __enter__(self) -> Decision:
        limiter, key = self._fixed()
        return _passed(limiter.wait(key, self._cost, self._timeout))

    def __exit__(self, *_: object) -> None:
        limiter, key = self._fixed()
        limiter.leave(key, self._cost)

    async def __aenter__(self) -> Decision:
        limiter, key = self._fixed()
        return _passed(await limiter.wait_async(key, self._cost, self._timeout))

    async def __aexit__(self, *_: object) -> None:
        limiter, key = self._fixed()
        if (leaving := limiter.leave(key, self._cost)) is not None:
            await leaving

    def _fixed(self) -> tuple[Waitable, Key]:
        if callable(self._key) or self._limiter is None:
            raise TypeError("key, plan: a function of the arguments needs a function to guard")
        return self._limiter, self._key


class Ticks:
    """An endless loop that runs no faster than its limiter: `for` or `async for`."""

    def __init__(self, limiter: Waitable, key: Key, cost: int) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Decision:
        return _passed(self._limiter.wait(self._key, self._cost))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Decision:
        return _passed(await self._limiter.wait_async(self._key, self._cost))


def _passed(decision: Decision) -> Decision:
    if not decision.allowed:
        raise Refused(decision)
    return decision


def guard(
    self: Waitable, key: Key | Callable[..., Key] = "", cost: int = 1, timeout: float | None = None
) -> PermitGuard:
    """Permits around a block or a function: `with limiter.guard("a"):`, `@limiter.guard(timeout=0)`.

    Waits at most `timeout` seconds, 0 not at all, None for as long as it takes, and raises Refused
    when that will not do. For a function, `key` may be a function of the same arguments.
    """
    return PermitGuard(self, key, cost, timeout)


def ticks(self: Waitable, key: Key = "", cost: int = 1) -> Ticks:
    """Goes on for ever, each turn when its permits are there: `for _ in limiter.ticks():`.

    Raises Refused when waiting never helps.
    """
    return Ticks(self, key, cost)


def enforce(self: Checkable, key: Key = "", cost: int = 1) -> Decision:
    """As `check`, but a refusal is raised: Refused, which carries the decision."""
    return _passed(self.check(key, cost))


def check_many(self: Checkable, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
    """The decisions about all of `keys`, one after the other; from a store, in one round trip."""
    return [self.check(key, cost) for key in keys]


def nothing_to_leave(self: object, key: Key, cost: int) -> None:
    """A permit of a rate is spent; nothing comes back when the work is over."""


def enter(self: Waitable) -> Decision:
    """Wait for one permit of the key ""."""
    return _passed(self.wait())


def leave_block(
    self: Waitable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """The block is over."""
    self.leave("", 1)


async def enter_async(self: Waitable) -> Decision:
    """Wait for one permit of the key ""."""
    return _passed(await self.wait_async())


async def leave_block_async(
    self: Waitable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """The block is over."""
    if (leaving := self.leave("", 1)) is not None:
        await leaving


# In this process deciding never waits, so these do not suspend. They are here so that code can be
# written before it is known whether the limiter will live in this process.


async def allow_async(self: Checkable, key: Key = "", cost: int = 1) -> bool:
    """As `allow`."""
    return self.allow(key, cost)


async def check_async(self: Checkable, key: Key = "", cost: int = 1) -> Decision:
    """As `check`."""
    return self.check(key, cost)


async def check_many_async(self: Checkable, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
    """As `check_many`."""
    return [self.check(key, cost) for key in keys]


async def peek_async(self: Checkable, key: Key = "", cost: int = 1) -> Decision:
    """As `peek`."""
    return self.peek(key, cost)


async def enforce_async(self: Checkable, key: Key = "", cost: int = 1) -> Decision:
    """As `enforce`."""
    return _passed(self.check(key, cost))


async def reserve_async(
    self: Reservable, key: Key = "", cost: int = 1, max_wait: float | None = None
) -> Reservation:
    """As `reserve`."""
    return self.reserve(key, cost, max_wait)
