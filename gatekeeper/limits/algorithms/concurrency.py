"""Concurrency: how many may be at work at the same time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gatekeeper.limits.engine import conveniences, key_states, store_backed
from gatekeeper.limits.engine.protocol import Key, NanosecondClock, Period
from gatekeeper.limits.engine.reservations import wait_to_ns
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import to_seconds, whole_number
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


class Concurrency:
    """At most `limit` in flight per key, threads and tasks together.

    Promise: never more than `limit` between passing and `release`, also when the work raises or is
    cancelled: `with limiter.guard(key):` and the decorator give back what they took. Those who wait
    are served in the order in which they came, and nobody overtakes them. `retry_after` is None in
    a refusal: nobody knows when the work of others will end. Remembers only keys that are at work.
    """

    __slots__ = ("__weakref__", "_clock", "_in_flight", "_lines", "_mutex", "_name", "limit")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

    def __init__(
        self,
        limit: int,
        *,
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
        lease: Period | None = None,
    ) -> None:
        """In a store each permit is a lease, which ends by itself after `lease` seconds, 60 unless told.

        Raises ValueError for a limit below 1, and for a lease without a store.
        """
        if lease is not None and store is None:
            raise ValueError("lease: in this process a permit ends when it is released")
        self.limit = whole_number(limit, "limit")
        self._clock = clock
        self._name = name
        self.renew()
        key_states.forked_registry.add(self)

    def renew(self) -> None:
        """Start with nobody in flight and nobody in line: at birth, and in a forked child."""
        self._mutex = threading.RLock()  # re-entrant: a signal handler may ask, too
        self._in_flight: dict[Key, int] = {}
        self._lines = WaitQueues()

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` of `key` may begin now; `release` must follow when they may.

        Raises ValueError for a negative cost.
        """
        return self.check(key, cost).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """The same, with limit and remaining, after this one."""
        whole_number(cost, "cost", least=0)
        with self._mutex:
            if self._lines.waiting(key) or not self._take(key, cost):
                return self._decision(key, False)
            return self._decision(key, True)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """What `check` would decide now, with what remains before it."""
        whole_number(cost, "cost", least=0)
        with self._mutex:
            room = self._in_flight.get(key, 0) + cost <= self.limit
            return self._decision(key, room and not self._lines.waiting(key))

    def release(self, key: Key = "", cost: int = 1) -> None:
        """`cost` of `key` are over; releasing more than is in flight leaves none."""
        whole_number(cost, "cost", least=0)
        with self._mutex:
            left = self._in_flight.get(key, 0) - cost
            if left > 0:
                self._in_flight[key] = left
            else:
                self._in_flight.pop(key, None)
            self._lines.wake(key)

    refund = release

    def reset(self, key: Key = "") -> None:
        """Forget who is in flight for `key`."""
        with self._mutex:
            self._in_flight.pop(key, None)
            self._lines.wake(key)

    def configure(self, limit: int) -> None:
        """Another limit from now on; those in flight stay. Raises ValueError below 1."""
        with self._mutex:
            self.limit = whole_number(limit, "limit")
            for key in list(self._in_flight):
                self._lines.wake(key)

    def in_flight(self, key: Key = "") -> int:
        """How many of `key` are at work."""
        with self._mutex:
            return self._in_flight.get(key, 0)

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Allowed once `cost` of `key` may begin, after those who came before; `release` must follow.

        Refused after `timeout` seconds, and at once when `cost` is above the limit.
        """
        waker = ThreadWaker(self._clock)
        return run_steps(self._naps(key, cost, timeout, waker), waker)

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """The same for a task of asyncio; cancelling it takes nothing."""
        waker = TaskWaker()
        return await run_steps_async(self._naps(key, cost, timeout, waker), waker)

    def _naps(self, key: Key, cost: int, timeout: float | None, waker: Waker) -> WaitSteps[Decision]:
        """How a waiter waits, whoever lets the time pass; closing it leaves the line."""
        whole_number(cost, "cost", least=0)
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else self._clock() + timeout_ns
        with self._mutex:
            self._lines.join(key, waker, None)
        try:
            while True:
                with self._mutex:
                    if cost > self.limit:
                        return self._decision(key, False)
                    if self._lines.is_first(key, waker) and self._take(key, cost):
                        return self._decision(key, True)
                    left_ns = None if end_ns is None else end_ns - self._clock()
                    if left_ns is not None and left_ns <= 0:
                        return self._decision(key, False)
                yield None if left_ns is None else to_seconds(left_ns)
        finally:
            with self._mutex:
                self._lines.leave(key, waker)

    def _take(self, key: Key, cost: int) -> bool:
        in_flight = self._in_flight.get(key, 0) + cost
        if in_flight > self.limit:
            return False
        if cost:
            self._in_flight[key] = in_flight
        return True

    def _decision(self, key: Key, allowed: bool) -> Decision:
        return self._told(allowed, self._in_flight.get(key, 0))

    def _told(self, allowed: bool, in_flight: int) -> Decision:
        remaining = max(0, self.limit - in_flight)
        if allowed:
            return Decision(True, limit=self.limit, remaining=remaining)
        detail = f"{self.limit} at the same time"
        return Decision(False, self._name, "limited", detail, self.limit, remaining, None, None)

    def leave(self, key: Key, cost: int) -> None:
        """The guarded work is over."""
        self.release(key, cost)

    enforce = conveniences.enforce
    guard = conveniences.guard
    allow_async = conveniences.allow_async
    check_async = conveniences.check_async
    peek_async = conveniences.peek_async
    enforce_async = conveniences.enforce_async
    __enter__ = conveniences.enter
    __exit__ = conveniences.leave_block
    __aenter__ = conveniences.enter_async
    __aexit__ = conveniences.leave_block_async
