"""Waiting for permits out of a store, as a thread or as a task.

In this process waiters of a key are served first come, first served, and only the first in line books.
Between processes it is the order in which those book. A queue is booked on arrival instead: its order
and its bound then hold for all processes together, and a turn that is given up may stay empty.
"""

from __future__ import annotations

from gatekeeper.limits.algorithms.leaky_queue import QueueRule
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation, wait_to_ns
from gatekeeper.limits.engine.units import to_seconds
from gatekeeper.limits.engine.wait_queue import Waker
from gatekeeper.limits.redis.operations import StoreReservation, cancelling, peeking, reserving
from gatekeeper.limits.redis.script_calls import Sleep, StoreSteps
from gatekeeper.limits.redis.shared_state import SharedLimiter
from gatekeeper.model import Decision


def waiting(
    self: SharedLimiter, key: Key, cost: int, timeout: float | None, waker: Waker
) -> StoreSteps[Decision]:
    """Allowed once `cost` may pass; refused as soon as it is clear that `timeout` seconds will not do."""
    keys = self._keys
    timeout_ns = wait_to_ns(timeout, "timeout")
    end_ns = None if timeout_ns is None else keys.clock() + timeout_ns
    if any(isinstance(part.rule, QueueRule) for part in self._sharing.parts):
        return (yield from _booked(self, key, cost, timeout, waker)).decision
    if not keys.waiters.waiting(key) and not self._sharing.refusals.refuses(key, cost):
        at_once = yield from _booked(self, key, cost, 0.0, waker)
        if at_once or at_once.delay is None:
            return at_once.decision
    keys.exclusively(lambda: keys.waiters.join(key, waker, keys.max_waiters))
    try:
        while not keys.exclusively(lambda: keys.waiters.is_first(key, waker)):
            if _left(self, end_ns) == 0:
                answer = yield from peeking(self, key, cost)
                return answer._replace(
                    allowed=False, policy=self._name, reason="limited", detail="others came first"
                )
            yield Sleep(_left(self, end_ns), waker)
        return (yield from _booked(self, key, cost, _left(self, end_ns), waker)).decision
    finally:
        keys.exclusively(lambda: keys.waiters.leave(key, waker))


def _booked(
    self: SharedLimiter, key: Key, cost: int, max_wait: float | None, waker: Waker
) -> StoreSteps[Reservation]:
    """A booking whose time has come, or none."""
    booking = yield from reserving(self, key, cost, max_wait)
    if not booking:
        return booking
    try:
        yield Sleep(0, waker)  # whoever was cancelled while the store was asked hears of it here
        while (left_ns := booking.due_ns - self._keys.clock()) > 0:
            yield Sleep(to_seconds(left_ns), waker)
    except BaseException:
        yield from _give_back(self, booking)
        raise
    return booking


def _give_back(self: SharedLimiter, booking: Reservation) -> StoreSteps[None]:
    for booked in booking._booked:
        if isinstance(booked, StoreReservation):
            yield from cancelling(*booked)
        else:  # this process's share, while the store was failing
            booked.give_back()


def _left(self: SharedLimiter, end_ns: int | None) -> float | None:
    return None if end_ns is None else to_seconds(max(0, end_ns - self._keys.clock()))
