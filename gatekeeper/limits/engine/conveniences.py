"""Methods that all limiters share, each written in terms of `check`, `peek`, `reserve` and `wait`.

`LimiterMethods` is for every limiter, `RateMethods` adds what only limits on a rate have. Both are mixins
without slots, so inheriting them costs neither memory nor time.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast

from gatekeeper.limits.engine.protocol import Key, LimiterStore
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import require_callable, wait_to_ns, whole_number
from gatekeeper.model import Decision, Refused

P = ParamSpec("P")
R = TypeVar("R")


class GuardingLimiter(Protocol):
    """The part of a limiter that a `PermitGuard` needs."""

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision: ...
    def leave(self, key: Key, cost: int) -> Awaitable[None] | None: ...


class PermitGuard:
    """Permits around a `with` block, an `async with` block, or each call of a function.

    Args:
        limiter: The limiter; None when `choose` is given.
        key: The key, or a function of the guarded function's arguments that returns it.
        cost: Permits that one block or call takes.
        timeout: Longest wait in seconds; 0 does not wait, None waits without a limit.
        choose: A function of the guarded function's arguments that returns the limiter.
    """

    def __init__(
        self,
        limiter: GuardingLimiter | None,
        key: Key | Callable[..., Key],
        cost: int,
        timeout: float | None,
        choose: Callable[..., GuardingLimiter] | None = None,
    ) -> None:
        self._limiter = limiter
        self._choose = choose
        self._key = key
        self._cost = cost
        self._timeout = timeout

    def __repr__(self) -> str:
        return (
            f"<PermitGuard {self._limiter!r}, key={self._key!r}, cost={self._cost}, timeout={self._timeout}>"
        )

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Returns `function`, each call of which waits for its permits. The call raises Refused.

        Raises TypeError for what cannot be called, and for a generator function, which runs after the call.
        """
        require_callable(function, "guard")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"guard: {function!r:.80} is a generator function, which runs only after its call;"
                " write `with limiter.guard(...)` inside it"
            )
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self._for_call(*args, **kwargs):
                    return await cast("Awaitable[Any]", function(*args, **kwargs))

            return cast("Callable[P, R]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._for_call(*args, **kwargs):
                return function(*args, **kwargs)

        return guarded

    def _for_call(self, *args: Any, **kwargs: Any) -> PermitGuard:
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        limiter = self._limiter if self._choose is None else self._choose(*args, **kwargs)
        return PermitGuard(limiter, key, self._cost, self._timeout)

    def __enter__(self) -> Decision:
        limiter, key = self._limiter_and_key()
        return raise_refusal(limiter.wait(key, self._cost, self._timeout))

    def __exit__(self, *_: object) -> None:
        limiter, key = self._limiter_and_key()
        limiter.leave(key, self._cost)

    async def __aenter__(self) -> Decision:
        limiter, key = self._limiter_and_key()
        return raise_refusal(await limiter.wait_async(key, self._cost, self._timeout))

    async def __aexit__(self, *_: object) -> None:
        limiter, key = self._limiter_and_key()
        if (leaving := limiter.leave(key, self._cost)) is not None:
            await leaving

    def _limiter_and_key(self) -> tuple[GuardingLimiter, Key]:
        if callable(self._key) or self._limiter is None:
            raise TypeError("key, plan: a function of the arguments needs a function to guard")
        return self._limiter, self._key


def permit_guard(
    limiter: GuardingLimiter | None,
    positional: Key,
    key: Key | Callable[..., Key] | None,
    cost: int,
    timeout: float | None,
    choose: Callable[..., GuardingLimiter] | None = None,
) -> PermitGuard:
    """Returns a guard, as the `guard` methods do, with its arguments checked.

    `positional` is the key if `key` is None. Raises ValueError for a negative cost or timeout, TypeError for
    arguments of another type, and for a function without `key=`, as in `@limiter.guard` without parentheses.
    """
    if callable(positional):
        raise TypeError(
            "guard: write @limiter.guard() with parentheses; a function that returns the key is key="
        )
    if key is not None and positional != "":
        raise TypeError(f"guard: expected one key, got {positional!r:.80} and {key!r:.80}")
    whole_number(cost, "cost", least=0)
    wait_to_ns(timeout, "timeout")
    return PermitGuard(limiter, positional if key is None else key, cost, timeout, choose)


class Ticks:
    """An endless iterator that runs no faster than its limiter, for `for` and `async for`.

    Yields the decision of each turn. Raises Refused when waiting never helps.
    """

    def __init__(self, limiter: GuardingLimiter, key: Key, cost: int) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost

    def __repr__(self) -> str:
        return f"<Ticks {self._limiter!r}, key={self._key!r}, cost={self._cost}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Decision:
        return raise_refusal(self._limiter.wait(self._key, self._cost))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Decision:
        return raise_refusal(await self._limiter.wait_async(self._key, self._cost))


def require_keys(keys: Iterable[Key]) -> Iterable[Key]:
    """Returns `keys`. Raises TypeError for one text, whose letters would each be a key."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys: expected several keys, such as a list, got {keys!r:.80}")
    return keys


def raise_refusal(decision: Decision) -> Decision:
    """Returns `decision`. Raises Refused when it is a refusal."""
    if not decision.allowed:
        raise Refused(decision)
    return decision


class LimiterMethods(ABC):
    """Methods of every limiter: blocks, decorators, exceptions, and the forms for asyncio.

    In this process a decision never waits, so the asyncio forms (`check_async` and others) do not suspend;
    only `wait_async` does. They exist so that code can be written before it is known whether the limiter
    will have a store.
    """

    __slots__ = ()

    def __new__(cls, *_: object, store: LimiterStore | None = None, **__: object) -> Self:
        """Returns an uninitialised limiter; with a store, of the subclass whose keys are in the store.

        Methods of a limiter in memory therefore need not test for a store.
        """
        if store is None:
            return object.__new__(cls)
        if not hasattr(store, "class_for"):
            raise TypeError(f"store: expected a store, such as RedisStore(redis.Redis()), got {store!r:.80}")
        return object.__new__(store.class_for(cls))

    @property
    @abstractmethod
    def name(self) -> str:
        """The policy that refusals name, "" unless given."""

    @property
    def store(self) -> LimiterStore | None:
        """The store that holds the keys for several processes; None when this process holds them."""
        return None

    @property
    def is_awaited(self) -> bool:
        """Whether decisions must be awaited (`check_async`), because the store's client is an asyncio one."""
        return False

    @property
    def holds_permits(self) -> bool:
        """Whether a permit stays in use until the work is over, so that `leave` must follow.

        True for `Concurrency`. The permits of a rate come back with time alone.
        """
        return False

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found `max_keys` live keys, and so shared a limit or got `overflow`.

        Counted since the limiter was created, in this process. If it grows, raise `max_keys`, or find out
        why there are so many keys.
        """
        return 0

    @abstractmethod
    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted."""

    @abstractmethod
    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does, and returns the decision with its numbers."""

    @abstractmethod
    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now; counts nothing."""

    @abstractmethod
    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits of `key` back, at most as many as are counted."""

    @abstractmethod
    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns when `cost` requests of `key` may pass, or as soon as `timeout` seconds cannot suffice."""

    @abstractmethod
    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it spends nothing."""

    def leave(self, key: Key, cost: int) -> Awaitable[None] | None:
        """Ends the work that `cost` permits of `key` were taken for, as a guard does after its block.

        Does nothing unless `holds_permits`. Returns None, or for a store with an asyncio client an
        awaitable that must be awaited.
        """
        return None

    def enforce(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does, and returns the decision. Raises Refused, which carries it, if refused."""
        return raise_refusal(self.check(key, cost))

    def guard(
        self,
        positional: Key = "",
        /,
        cost: int = 1,
        timeout: float | None = None,
        *,
        key: Key | Callable[..., Key] | None = None,
    ) -> PermitGuard:
        """Returns permits around a block or a function: `with limiter.guard("a"):`, `@limiter.guard()`.

        Entering waits at most `timeout` seconds (0: does not wait; None: waits without a limit), and raises
        Refused when that does not suffice. The key comes first or as `key=`, which for a function may be a
        function of the same arguments. Raises ValueError for a negative cost or timeout, and TypeError for
        `@limiter.guard` without parentheses.
        """
        return permit_guard(self, positional, key, cost, timeout)

    def __enter__(self) -> Decision:
        """Waits for one permit of the key ""."""
        return raise_refusal(self.wait())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave("", 1)

    async def __aenter__(self) -> Decision:
        """Waits for one permit of the key ""."""
        return raise_refusal(await self.wait_async())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (leaving := self.leave("", 1)) is not None:
            await leaving

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """Decides as `allow` does."""
        return self.allow(key, cost)

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does."""
        return self.check(key, cost)

    async def refund_async(self, key: Key = "", cost: int = 1) -> None:
        """Gives permits back as `refund` does, and awaits the store where there is one."""
        self.refund(key, cost)

    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision as `peek` does."""
        return self.peek(key, cost)

    async def enforce_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `enforce` does. Raises Refused."""
        return raise_refusal(await self.check_async(key, cost))


class RateMethods(LimiterMethods):
    """Methods of limiters of a rate, whose permits come back with time."""

    __slots__ = ()

    @abstractmethod
    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits for the first moment at which they are free."""

    def check_many(self, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
        """Returns the decisions about `keys`, made one after the other; in a store, in one round trip."""
        return [self.check(key, cost) for key in require_keys(keys)]

    def ticks(self, key: Key = "", cost: int = 1) -> Ticks:
        """Returns an endless iterator, each turn of which waits for its permits: `for _ in limiter.ticks():`.

        Raises Refused when waiting never helps.
        """
        return Ticks(self, key, cost)

    async def check_many_async(self, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
        """Decides as `check_many` does."""
        return self.check_many(keys, cost)

    async def reserve_async(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books as `reserve` does."""
        return self.reserve(key, cost, max_wait)
