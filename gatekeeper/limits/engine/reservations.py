"""Reservations: permits for a moment ahead."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

from gatekeeper.limits.engine.decisions import RuleLimiter, decision, no_room
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.units import SECOND_NS, to_seconds, whole_number
from gatekeeper.model import Decision


class RefundablePermits(Protocol):
    """What a reservation has to give back."""

    def give_back(self) -> bool:
        """Whether it could be put back as if nothing had been booked."""

    async def give_back_async(self) -> bool:
        """The same."""


class BookedState(NamedTuple):
    """The state of one key around a booking."""

    keys: KeyStates[Any]
    slot: Key
    before: object
    after: object

    def give_back(self) -> bool:
        """Whether nothing happened to the key since, so that it could be put back."""
        return self.keys.exclusively(self._give_back)

    async def give_back_async(self) -> bool:
        """The same; in this process it does not suspend."""
        return self.give_back()

    def _give_back(self) -> bool:
        if self.keys.get(self.slot) != self.after:
            return False
        self.keys.old.pop(self.slot, None)
        self.keys.put(self.slot, self.before)
        return True


class Reservation:
    """Permits booked for `delay` seconds from now; true when they are.

    When they are not, `delay` is how long it would take, or None when it never helps to wait.
    """

    __slots__ = ("_booked", "decision", "delay", "due_ns")

    def __init__(
        self,
        decision: Decision,
        delay: float | None,
        due_ns: int = 0,
        booked: tuple[RefundablePermits, ...] = (),
    ) -> None:
        self.decision = decision  # as of the moment that was booked
        self.delay = delay
        self.due_ns = due_ns  # by the limiter's clock
        self._booked = booked

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        return f"<Reservation {'booked' if self else 'refused'}, delay={self.delay}>"

    def cancel(self) -> bool:
        """Whether the permits went back, as if they had never been booked.

        They do unless somebody passed or booked behind this reservation: times already given to
        others stand, and moving up behind them could let too many pass. Calling twice is safe.
        """
        booked, self._booked = self._booked, ()
        back = [each.give_back() for each in booked]  # each of them, also after a False
        return bool(back) and all(back)

    async def cancel_async(self) -> bool:
        """As `cancel`, for a limiter whose store is awaited."""
        booked, self._booked = self._booked, ()
        back = [await each.give_back_async() for each in booked]
        return bool(back) and all(back)


def reserve(self: RuleLimiter, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
    """Permits for the first moment at which they are free, behind all that is booked already.

    The caller waits `delay` seconds by itself. Nothing is booked when that is above `max_wait`
    seconds. Raises ValueError for a negative cost or wait.
    """
    whole_number(cost, "cost", least=0)
    max_wait_ns = wait_to_ns(max_wait, "max_wait")
    keys, rule = self._keys, self._rule
    mutex = keys.mutex
    try:
        if not mutex.acquire(False):
            keys.acquire_mutex()
        now_ns = keys.clock()
        if now_ns >= keys.rotate_ns:
            keys.rotate(now_ns)
        slot = key if key in keys.young else keys.take_slot(key)
        if slot is None:
            answer = no_room(self)
            return Reservation(answer, answer.retry_after, now_ns)
        state = keys.young.get(slot)
        wait_ns = rule.wait_ns(state, now_ns, cost)
        if wait_ns is None or (max_wait_ns is not None and wait_ns > max_wait_ns):
            return Reservation(
                decision(self, state, now_ns, wait_ns), None if wait_ns is None else to_seconds(wait_ns)
            )
        if rule.max_ahead_ns is not None and wait_ns > rule.max_ahead_ns:
            free_ns = wait_ns - rule.max_ahead_ns
            return Reservation(decision(self, state, now_ns, free_ns), to_seconds(wait_ns))
        due_ns = now_ns + wait_ns
        if not cost:
            return Reservation(decision(self, state, due_ns, 0), to_seconds(wait_ns), due_ns)
        booked, state = book(self, slot, state, due_ns, cost)
        keys.keep_for_booking(wait_ns)
        return Reservation(decision(self, state, due_ns, 0), to_seconds(wait_ns), due_ns, (booked,))
    finally:
        mutex.release()


def book(self: RuleLimiter, slot: Key, state: object, due_ns: int, cost: int) -> tuple[BookedState, object]:
    """Spend at `due_ns`, and remember how it was; the caller holds the mutex."""
    before = copy.copy(state)
    state = self._rule.spend(state, due_ns, cost)
    self._keys.young[slot] = state
    return BookedState(self._keys, slot, before, copy.copy(state)), state


def wait_to_ns(duration: float | None, name: str) -> int | None:
    """`duration` in whole nanoseconds; None stays None. Raises ValueError below 0."""
    if duration is None:
        return None
    if not 0 <= duration < float("inf"):
        raise ValueError(f"{name}: expected seconds from 0, or None for any time, got {duration!r}")
    return round(duration * SECOND_NS)
