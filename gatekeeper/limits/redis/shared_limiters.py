"""The limiters whose keys are in a store, one class for each limiter in memory.

`TokenBucket(100, 60, store=store)` returns a `SharedTokenBucket`, which is a TokenBucket with methods that
call the store. Each method has two forms, and the form must be that of the store's client: with an asyncio
client the plain one has no loop to await the answer in, and with a blocking client the awaited one would
stop the event loop. The wrong form raises TypeError.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NoReturn, TypeVar, cast

from gatekeeper.limits.algorithms.concurrency import Concurrency
from gatekeeper.limits.algorithms.fixed_window import FixedWindow, WindowRule
from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.algorithms.leaky_bucket import LeakyBucket
from gatekeeper.limits.algorithms.leaky_queue import LeakyQueue, QueueRule
from gatekeeper.limits.algorithms.sliding_counter import SlidingCounter
from gatekeeper.limits.algorithms.sliding_log import SlidingLog
from gatekeeper.limits.algorithms.token_bucket import TokenBucket
from gatekeeper.limits.composites.all_of import AllOf
from gatekeeper.limits.composites.split import split
from gatekeeper.limits.engine.persistence import changed_rule
from gatekeeper.limits.engine.protocol import (
    Key,
    LimiterStore,
    NanosecondClock,
    Overflow,
    Period,
    Rule,
)
from gatekeeper.limits.engine.rate_limiter import RateLimiter
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import SECOND_NS
from gatekeeper.limits.engine.wait_queue import TaskWaker, ThreadWaker
from gatekeeper.limits.engine.waiting import WaitingMethods
from gatekeeper.limits.redis import operations
from gatekeeper.limits.redis.leases import SharedConcurrency
from gatekeeper.limits.redis.script_calls import NodePosition, ScriptStore
from gatekeeper.limits.redis.shared_state import SharedState
from gatekeeper.limits.redis.stored_limit import StoredLimit
from gatekeeper.model import Decision

L = TypeVar("L")


class SharedMethods(WaitingMethods):
    """The methods of a limiter whose keys are in a store, in both forms."""

    __slots__ = ()
    _shared: SharedState

    def _set_state(self, state: SharedState) -> None:
        self._shared = state  # type: ignore[misc]  # each concrete class has the slot

    @property
    def store(self) -> LimiterStore:
        """The store that holds the keys."""
        return self._shared.store

    @property
    def is_awaited(self) -> bool:
        """Whether decisions must be awaited (`check_async`), because the store's client is an asyncio one."""
        return self._shared.store.awaited

    @property
    def overflowed(self) -> int:
        """Requests whose key found no room in memory while the store failed. A store has no bound of keys."""
        return 0 if self._shared.local is None else cast("int", self._shared.local.overflowed)

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Costs one round trip, or none for a key that is known to be refused. Raises ValueError for a
        negative cost.
        """
        return self._shared.store.run(operations.allow_steps(self._shared, key, cost))

    async def allow_async(self, key: Key = "", cost: int = 1) -> bool:
        """Decides as `allow` does."""
        return await self._shared.store.run_async(operations.allow_steps(self._shared, key, cost))

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns the decision with its numbers, all of one moment."""
        return self._shared.store.run(operations.check_steps(self._shared, key, cost))

    async def check_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `check` does."""
        return await self._shared.store.run_async(operations.check_steps(self._shared, key, cost))

    def check_many(self, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
        """Returns the decisions about `keys`, made one after the other, in one round trip."""
        return self._shared.store.run(operations.check_many_steps(self._shared, keys, cost))

    async def check_many_async(self, keys: Iterable[Key], cost: int = 1) -> list[Decision]:
        """Decides as `check_many` does."""
        return await self._shared.store.run_async(operations.check_many_steps(self._shared, keys, cost))

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now; counts nothing, and always calls the store."""
        return self._shared.store.run(operations.peek_steps(self._shared, key, cost))

    async def peek_async(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision as `peek` does."""
        return await self._shared.store.run_async(operations.peek_steps(self._shared, key, cost))

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits of `key` back, at most as many as are counted."""
        self._shared.store.run(operations.refund_steps(self._shared, key, cost))

    async def refund_async(self, key: Key = "", cost: int = 1) -> None:
        """Gives back as `refund` does."""
        await self._shared.store.run_async(operations.refund_steps(self._shared, key, cost))

    def reset(self, key: Key = "") -> None:
        """Forgets `key`: its next request is its first."""
        self._shared.store.run(operations.reset_steps(self._shared, key))

    async def reset_async(self, key: Key = "") -> None:
        """Forgets as `reset` does."""
        await self._shared.store.run_async(operations.reset_steps(self._shared, key))

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits of `key` for the first free moment, after earlier bookings."""
        return self._shared.store.run(operations.reserve_steps(self._shared, key, cost, max_wait))

    async def reserve_async(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books as `reserve` does."""
        return await self._shared.store.run_async(operations.reserve_steps(self._shared, key, cost, max_wait))

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may pass; this thread waits."""
        waker = ThreadWaker(self._keys.clock)
        return self._shared.store.run(operations.wait_steps(self._shared, key, cost, timeout, waker))

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it gives back what it had."""
        steps = operations.wait_steps(self._shared, key, cost, timeout, TaskWaker())
        return await self._shared.store.run_async(steps, finish_calls=True)

    def dump(self, wall_ns: Callable[[], int] = time.time_ns) -> NoReturn:
        """Raises TypeError: the store keeps the keys when this process ends."""
        raise TypeError("the store keeps this limiter's keys: there is nothing to dump")

    def load(self, saved: object, wall_ns: Callable[[], int] = time.time_ns) -> NoReturn:
        """Raises TypeError: the store keeps the keys when this process ends."""
        raise TypeError("the store keeps this limiter's keys: there is nothing to load")

    def start_over(self, clock: NanosecondClock) -> NoReturn:
        """Raises TypeError: the store counts by its server's clock."""
        raise TypeError(f"expected a limiter of a rate in this process, got {self!r:.80}")


class SharedRate(SharedMethods, RateLimiter):
    """A limit on a rate whose keys are in a store."""

    __slots__ = ()
    _in_memory: ClassVar[type[Any]]  # the limiter that decides while the store fails; names the keys, too

    def _init(
        self,
        rule: Rule[Any],
        max_keys: int,
        overflow: Overflow,
        clock: NanosecondClock,
        name: str,
        store: LimiterStore | None = None,
    ) -> None:
        """Sets what all limiters of a rate have, and its state in the store. Raises ValueError, TypeError."""
        super()._init(rule, max_keys, overflow, clock, name)
        scripts = require_store(self, store)
        limit = StoredLimit(self._in_memory.__name__, rule, name, scripts.prefix)
        self._set_state(SharedState(scripts, (limit,), name, self._keys))
        if scripts.local_position is not None:
            self._shared.local = self._local_limiter(scripts.local_position)

    def configure(
        self, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Applies another limit from now on, in this process; permits that were used stay used.

        Does not call the store. Each process decides by the limit that it was given, on one common history:
        configure all of them. Raises ValueError.
        """
        rule = changed_rule(self._rule, limit, period, burst)
        for stored in self._shared.limits:
            stored.change(rule)
        self._rule = rule
        position = self._shared.store.local_position
        if position is not None:
            self._shared.local.configure(*_process_share(rule, position))

    def _local_limiter(self, position: NodePosition) -> RateLimiter:
        """Returns a limiter in memory with this process's share of the limit."""
        rule, keys = self._rule, self._keys
        limit, period_s, burst = _process_share(rule, position)
        options: dict[str, Any] = {
            "max_keys": keys.max_keys,
            "overflow": keys.overflow,
            "clock": keys.clock,
            "name": self.name,
        }
        make: Callable[..., RateLimiter] = self._in_memory
        match rule:
            case GcraRule(strict=True):
                make = self._in_memory.strict
            case GcraRule():
                options["burst"] = burst
            case QueueRule():
                options["queue"] = -(-rule.queue // position.nodes)
            case WindowRule():
                options["aligned"] = rule.aligned
        return make(limit, period_s, **options)


def _process_share(rule: Any, position: NodePosition) -> tuple[int, float, int | None]:
    """Returns limit, period (seconds) and burst of one process's share, each burst at least 1."""
    share = split(rule.limit, position.nodes)[position.node]
    burst = None
    if isinstance(rule, GcraRule) and not rule.strict:
        has_part = rule.burst >= position.nodes
        burst = split(rule.burst, position.nodes)[position.node].limit if has_part else 1
    return share.limit, rule.period_ns * share.periods / SECOND_NS, burst


class SharedFixedWindow(SharedRate, FixedWindow):
    """A `FixedWindow` whose windows are in a store, by the server's clock."""

    __slots__ = ("_shared",)
    _in_memory = FixedWindow


class SharedLeakyBucket(SharedRate, LeakyBucket):
    """A `LeakyBucket` whose buckets are in a store."""

    __slots__ = ("_shared",)
    _in_memory = LeakyBucket


class SharedLeakyQueue(SharedRate, LeakyQueue):
    """A `LeakyQueue` whose departures are in a store; order and bound hold for all processes together."""

    __slots__ = ("_shared",)
    _in_memory = LeakyQueue


class SharedSlidingCounter(SharedRate, SlidingCounter):
    """A `SlidingCounter` whose windows are in a store, by the server's clock."""

    __slots__ = ("_shared",)
    _in_memory = SlidingCounter


class SharedSlidingLog(SharedRate, SlidingLog):
    """A `SlidingLog` whose admissions are in a store, as a list per key."""

    __slots__ = ("_shared",)
    _in_memory = SlidingLog


class SharedTokenBucket(SharedRate, TokenBucket):
    """A `TokenBucket` whose buckets are in a store."""

    __slots__ = ("_shared",)
    _in_memory = TokenBucket


class SharedAll(SharedMethods, AllOf):
    """The initialisation of `SharedAllOf`, for subclasses of AllOf, too."""

    __slots__ = ()

    def __init__(self, *parts: RateLimiter | AllOf, name: str = "") -> None:
        super().__init__(*parts, name=name)
        require_store(self, self._parts[0].store)
        states: list[SharedState] = [part._shared for part in cast("tuple[SharedRate, ...]", self._parts)]
        limits = tuple(limit for state in states for limit in state.limits)
        if len({limit.key(b"") for limit in limits}) < len(limits):
            raise ValueError("AllOf: expected limiters with a name each where their numbers are equal")
        self._set_state(SharedState(states[0].store, limits, name, self._keys))
        if self._shared.store.local_position is not None:
            self._shared.local = AllOf(*(state.local for state in states), name=name)


class SharedAllOf(SharedAll):
    """An `AllOf` of limiters in one store, decided there as one, in one round trip."""

    __slots__ = ("_shared",)


SHARED_CLASSES: Final[dict[type[Any], type[Any]]] = {
    AllOf: SharedAllOf,
    Concurrency: SharedConcurrency,
    FixedWindow: SharedFixedWindow,
    LeakyBucket: SharedLeakyBucket,
    LeakyQueue: SharedLeakyQueue,
    SlidingCounter: SharedSlidingCounter,
    SlidingLog: SharedSlidingLog,
    TokenBucket: SharedTokenBucket,
}


def shared_class(kind: type[L]) -> type[L]:
    """Returns the class in a store that belongs to `kind`, or `kind` if it is one.

    Raises TypeError for a limiter that a store cannot hold.
    """
    if kind in SHARED_CLASSES:
        return SHARED_CLASSES[kind]
    if issubclass(kind, SharedMethods | SharedConcurrency):
        return kind
    return cast("type[L]", _class_of_application(cast("Any", kind)))


@functools.cache
def _class_of_application(kind: type[Any]) -> type[Any]:
    """Returns a class in a store for an application's subclass of a limiter, which no table can list."""
    base = next((base for base in kind.__mro__ if base in SHARED_CLASSES), None)
    if base is None or base is Concurrency:
        raise TypeError(f"store: {kind.__name__} has no form whose keys are in a store")
    mixin = SharedAll if base is AllOf else SharedRate
    body = {"__slots__": ("_shared",), "__module__": kind.__module__, "_in_memory": kind}
    return type(f"Shared{kind.__name__}", (mixin, kind), body)


def require_store(limiter: object, store: LimiterStore | None) -> ScriptStore:
    """Returns `store`. Raises TypeError without one."""
    if store is None:
        raise TypeError(f"{type(limiter).__name__}: expected store=RedisStore(...)")
    return cast("ScriptStore", store)
