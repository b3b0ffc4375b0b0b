"""Waiting for permits of a rate, first come first served per key, as a thread or as an asyncio task.

Only the first waiter of a key books a permit. A waiter behind it can leave without having spent anything;
when the first one leaves, its booking is cancelled.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from gatekeeper.limits.engine.conveniences import RateMethods
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import to_seconds, wait_to_ns
from gatekeeper.limits.engine.wait_queue import (
    TaskWaker,
    ThreadWaker,
    WaitSteps,
    Waker,
    run_steps,
    run_steps_async,
)
from gatekeeper.model import Decision


class WaitingMethods(RateMethods):
    """`wait` and `wait_async`, in terms of `check`, `peek` and `reserve`, with a queue of waiters per key."""

    __slots__ = ()
    _keys: KeyStates[Any]

    def wait(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Returns an allowed decision once `cost` requests of `key` may pass; this thread waits.

        Waiters of one key are served in order of arrival. Returns a refusal, with nothing spent, as soon
        as it is clear that `timeout` seconds do not suffice, or that waiting never helps. An exception
        raised by a signal handler spends nothing either. Raises ValueError for a negative cost or timeout.
        """
        at_once = self._decide_at_once(key, cost, timeout)
        if at_once is not None:
            return at_once
        waker = ThreadWaker(self._keys.clock)
        return run_steps(self._wait_steps(key, cost, timeout, waker), waker)

    async def wait_async(self, key: Key = "", cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits as `wait` does, as an asyncio task; cancelling it spends nothing."""
        at_once = self._decide_at_once(key, cost, timeout)
        if at_once is not None:
            return at_once
        waker = TaskWaker()
        return await run_steps_async(self._wait_steps(key, cost, timeout, waker), waker)

    def _decide_at_once(self, key: Key, cost: int, timeout: float | None) -> Decision | None:
        """Returns the decision that needs no wait, which most calls get; None when the caller must wait."""
        if timeout is not None:
            wait_to_ns(timeout, "timeout")
        if key in self._keys.waiters.queues:
            return None
        decision = self.check(key, cost)
        return decision if decision.allowed or decision.retry_after is None else None

    def _wait_steps(self, key: Key, cost: int, timeout: float | None, waker: Waker) -> WaitSteps[Decision]:
        """Waits in steps; closing the generator gives everything back."""
        keys = self._keys
        timeout_ns = wait_to_ns(timeout, "timeout")
        end_ns = None if timeout_ns is None else keys.clock() + timeout_ns
        if not keys.exclusively(lambda: keys.waiters.join(key, waker, keys.max_waiters)):
            return self._refused(key, cost, f"{keys.max_waiters} are waiting already")
        try:
            while not keys.exclusively(lambda: keys.waiters.is_first(key, waker)):
                if self._time_left(end_ns) == 0:
                    return self._refused(key, cost, "others came first")
                yield self._time_left(end_ns)
            booking = self.reserve(key, cost, self._time_left(end_ns))
            if booking:
                yield from self._sleep_until_due(booking)
            return booking.decision
        finally:
            keys.exclusively(lambda: keys.waiters.leave(key, waker))

    def _sleep_until_due(self, booking: Reservation) -> Generator[float, None, None]:
        try:
            while (left_ns := booking.due_ns - self._keys.clock()) > 0:
                yield to_seconds(left_ns)
        except BaseException:  # closed: the waiter was cancelled or interrupted
            booking.cancel()
            raise

    def _time_left(self, end_ns: int | None) -> float | None:
        return None if end_ns is None else to_seconds(max(0, end_ns - self._keys.clock()))

    def _refused(self, key: Key, cost: int, detail: str) -> Decision:
        decision = self.peek(key, cost)
        return decision._replace(allowed=False, policy=self.name, reason="limited", detail=detail)
