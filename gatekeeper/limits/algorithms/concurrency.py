"""Concurrency: a bound on the work in flight at one time."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable

from gatekeeper.limits.engine.conveniences import LimiterMethods
from gatekeeper.limits.engine.key_states import init_in_children
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, Period
from gatekeeper.limits.engine.units import (
    require_callable,
    require_key,
    require_text,
    to_seconds,
    wait_to_ns,
    whole_number,
)
from gatekeeper.limits.engine.wait_queue import (
    TaskWaker,
    ThreadWaker,
    WaitQueues,
    WaitSteps,
    Waker,
    run_steps,
    run_steps_async,
)
from gatekeeper.model import Decision


class Concurrency(LimiterMethods):
    """Concurrency limit: at most `limit` requests of a key in flight, threads and asyncio tasks together.

    A counting semaphore per key (Dijkstra) that serves waiters in order of arrival. Never more than `limit`
    are between a passing decision and `release`, also when the work raises or is cancelled: `with
    limiter.guard(key):` and the decorator give back what they took. A request never overtakes a waiter.
    `retry_after` is None in a refusal: when other work will end is not known. Remembers only keys with work
    in flight.

    With a store each permit is a lease that ends by itself, so that a process that dies gives back what it
    held; `extend` renews the leases of work that takes longer.

    Args:
        limit: Requests in flight at most; a whole number from 1.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default. Only
            waiting needs it.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for permits that several processes share; None, the default, keeps them
            here.
        lease: Seconds after which a permit in a store ends by itself, or a timedelta; above 0. None, the
            default, is 60 seconds. Only with a store.

    Raises:
        ValueError: A limit below 1, or a lease without a store.

    Example:
        >>> workers = Concurrency(limit=2)
        >>> with workers.guard("acme"), workers.guard("acme"):
        ...     workers.in_flight("acme"), workers.allow("acme")
        (2, False)
    """

    __slots__ = ("__weakref__", "_clock", "_in_flight", "_mutex", "_waiters", "limit", "name")
    limit: int
    name: str

    def __init__(
        self,
        limit: int,
        *,
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
        lease: Period | None = None,
    ) -> None:
        if lease is not None and store is None:
            raise ValueError("lease: in this process a permit ends when it is released; leave it out")
        self.limit = whole_number(limit, "limit")
        self._clock = require_callable(clock, "clock")
        self.name = require_text(name, "name")
        self.init_process_state()
        init_in_children(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.limit} at the same time>"

    def init_process_state(self) -> None:
        """Starts with no work in flight and no waiters: on creation, and in a forked child."""
        self._mutex = threading.RLock()  # re-entrant: a signal handler may call the limiter, too
        self._in_flight: dict[Key, int] = {}
        self._waiters = WaitQueues()

    @property
    def holds_permits(self) -> bool:
        """True: a permit stays in use until `release` or `leave`."""
        return True

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may begin now; if so `release` must follow.

        Raises ValueError for a negative cost.
        """
        return self.check(key, cost).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns limit and remaining (after this request), too.

        Raises ValueError for a negative cost.
        """
        whole_number(cost, "cost", least=0)
        with self._mutex:
            if self._waiters.waiting(key) or not self._take(key, cost):
                return self._decision(key, False)
            return self._decision(key, True)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now, with what remains before it; takes nothing."""
        whole_number(cost, "cost", least=0)
        with self._mutex:
            has_room = self._in_flight.get(key, 0) + cost <= self.limit
            return self._decision(key, has_room and not self._waiters.waiting(key))

    def release(self, key: Key = "", cost: int = 1) -> None:
        """Ends `cost` requests of `key`. Releasing more than are in flight leaves none in flight.

        Raises ValueError for a negative cost.
        """
        whole_number(cost, "cost", least=0)
        with self._mutex:
            remaining = self._in_flight.get(key, 0) - cost
            if remaining > 0:
                self._in_flight[key] = remaining
            else:
                self._in_flight.pop(key, None)
            self._waiters.wake(key)

    refund = release

    def extend(self, key: Key = "") -> int:
        """Restarts the leases of `key` that this process holds, in a store; returns how many.

        Raises TypeError without a store: a permit in this process has no lease, and ends when it is released.
        """
        raise TypeError("extend: a permit in this process has no lease; leave it out, or give a store")

    def reset(self, key: Key = "") -> None:
        """Forgets the work of `key` that is in flight."""
        with self._mutex:
            self._in_flight.pop(key, None)
            self._waiters.wake(key)

    def configure(self, limit: int) -> None:
        """Applies another limit from now on; work in flight continues. Raises ValueError below 1."""
        with self._mutex:
            self.limit = whole_number(limit, "limit")
            for key in list(self._in_flight):
                self._waiters.wake(key)

    def in_flight(self, key: Key = "") -> int:
        """Returns how many requests of `key` are in flight."""
        with self._mutex:
            return self._in_flight.get(key, 0)

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may begin; `release` must follow.

        Waiters of one key are served in order of arrival; this thread waits. Returns a refusal after
        `timeout` seconds, and at once when `cost` is above the limit. Raises ValueError for a negative cost
        or timeout.
        """
        waker = ThreadWaker(self._clock)
        return run_steps(self._wait_steps(key, cost, timeout, waker), waker)

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it takes nothing."""
        waker = TaskWaker()
        return await run_steps_async(self._wait_steps(key, cost, timeout, waker), waker)

    def leave(self, key: Key, cost: int) -> Awaitable[None] | None:
        """Releases `cost` permits of `key`, as a guard does after its block."""
        self.release(key, cost)
        return None

    def _wait_steps(self, key: Key, cost: int, timeout: float | None, waker: Waker) -> WaitSteps[Decision]:
        """Waits in steps; closing the generator leaves the queue."""
        whole_number(cost, "cost", least=0)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            self._waiters.join(key, waker, None)
        try:
            while True:
                with self._mutex:
                    if cost > self.limit:
                        return self._decision(key, False)
                    if self._waiters.is_first(key, waker) and self._take(key, cost):
                        return self._decision(key, True)
                    left_ns = None if end_ns is None else end_ns - self._clock()
                    if left_ns is not None and left_ns <= 0:
                        return self._decision(key, False)
                yield None if left_ns is None else to_seconds(left_ns)
        finally:
            with self._mutex:
                self._waiters.leave(key, waker)

    def _take(self, key: Key, cost: int) -> bool:
        in_flight = self._in_flight.get(key, 0) + cost
        if in_flight > self.limit:
            return False
        if cost:
            if key not in self._in_flight:
                require_key(key)
            self._in_flight[key] = in_flight
        return True

    def _decision(self, key: Key, allowed: bool) -> Decision:
        return self._decision_for(allowed, self._in_flight.get(key, 0))

    def _decision_for(self, allowed: bool, in_flight: int) -> Decision:
        remaining = max(0, self.limit - in_flight)
        if allowed:
            return Decision(True, limit=self.limit, remaining=remaining)
        detail = f"{self.limit} at the same time"
        return Decision(False, self.name, "limited", detail, self.limit, remaining, None, None)
