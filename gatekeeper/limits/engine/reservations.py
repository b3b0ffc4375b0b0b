"""Reservations: permits for a moment ahead."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.model import Decision


class BookedPermits(Protocol):
    """Permits of one limiter that a reservation can give back."""

    def give_back(self) -> bool:
        """Whether the permits went back, as if they had never been booked."""

    async def give_back_async(self) -> bool:
        """Gives back as `give_back` does, from an asyncio task."""


class BookedState(NamedTuple):
    """The state of one key before and after a booking."""

    keys: KeyStates[Any]
    slot: Key
    before: object
    after: object

    def give_back(self) -> bool:
        """Whether the key is as the booking left it; if so its earlier state is restored."""
        return self.keys.exclusively(self._restore)

    async def give_back_async(self) -> bool:
        """Gives back as `give_back` does, and does not suspend."""
        return self.give_back()

    def _restore(self) -> bool:
        now_ns = self.keys.clock()
        if now_ns >= self.keys.rotate_ns:
            self.keys.rotate(now_ns)
        if self.keys.get(self.slot) != self.after:
            return False
        self.keys.old.pop(self.slot, None)
        self.keys.put(self.slot, self.before)
        return True


class Reservation:
    """Permits for a moment ahead, or the reason why none were booked; true when they are booked.

    Limiters return it from `reserve`; an application does not create it. The caller waits `delay` seconds by
    itself, and calls `cancel` when it no longer wants the permits.

    Args:
        decision: The limiter's decision, as of the moment that was booked.
        delay: Seconds from the call of `reserve` to that moment. If nothing is booked: seconds that a
            booking would take, or None when waiting never helps.
        due_ns: That moment in nanoseconds of the limiter's clock; meaningless in a refusal.
        booked: One entry per limiter that `cancel` gives permits back to.

    Example:
        >>> from gatekeeper.limits import TokenBucket
        >>> from gatekeeper.testing import ManualClock
        >>> bucket = TokenBucket(1, 10, clock=ManualClock())
        >>> bucket.reserve("acme"), bucket.reserve("acme"), bucket.reserve("acme", max_wait=5)
        (<Reservation booked, delay=0.0>, <Reservation booked, delay=10.0>, <Reservation refused, delay=20.0>)
    """

    __slots__ = ("_booked", "decision", "delay", "due_ns")

    def __init__(
        self,
        decision: Decision,
        delay: float | None,
        due_ns: int = 0,
        booked: tuple[BookedPermits, ...] = (),
    ) -> None:
        self.decision = decision
        self.delay = delay
        self.due_ns = due_ns
        self._booked = booked

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        return f"<Reservation {'booked' if self else 'refused'}, delay={self.delay}>"

    def cancel(self) -> bool:
        """Whether the permits went back, as if they had never been booked.

        False when a later request passed or was booked after this reservation: its time is fixed, and to
        reuse a permit before it could exceed the limit. False, too, when nothing was booked, or on the
        second call.
        """
        booked, self._booked = self._booked, ()
        results = [permits.give_back() for permits in booked]  # all of them, also after a False
        return bool(results) and all(results)

    async def cancel_async(self) -> bool:
        """Cancels as `cancel` does, for a limiter whose store has an asyncio client."""
        booked, self._booked = self._booked, ()
        results = [await permits.give_back_async() for permits in booked]
        return bool(results) and all(results)
