"""Each operation of a limiter in a store, as steps that a thread or an asyncio task runs.

Waiters of a key are served in order of arrival within this process, and only the first one books; between
processes the order is that of the bookings. A queue (`LeakyQueue`) is booked on arrival instead: its order
and its bound then hold for all processes together, and a turn that is given up may stay empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gatekeeper.limits.algorithms.leaky_queue import QueueRule
from gatekeeper.limits.engine.conveniences import require_keys
from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation
from gatekeeper.limits.engine.units import MICROSECOND_NS, to_seconds, wait_to_ns, whole_number
from gatekeeper.limits.engine.wait_queue import Waker
from gatekeeper.limits.redis.script_calls import ScriptCalls, Sleep, StoreSteps
from gatekeeper.limits.redis.shared_state import ScriptReply, SharedState
from gatekeeper.model import Decision


def allow_steps(state: SharedState, key: Key, cost: int) -> StoreSteps[bool]:
    """Decides whether `cost` of `key` may pass now."""
    whole_number(cost, "cost", least=0)
    if state.can_never_pass(cost) or state.refusals.refuses(key, cost):
        return False
    sent_ns = state.clock()
    raw = yield state.call("allow", key, cost)
    if raw is None:
        return _decide_without_store(state, "check", key, cost).allowed
    return raw == 1 or _decision(state, raw, key, cost, sent_ns).allowed


def check_steps(state: SharedState, key: Key, cost: int) -> StoreSteps[Decision]:
    """Decides about `cost` of `key`; a refusal that is known already costs no round trip."""
    whole_number(cost, "cost", least=0)
    refusal = state.refusals.find(key, cost)
    if refusal is not None:
        return refusal
    return (yield from _decide(state, "check", key, cost))


def peek_steps(state: SharedState, key: Key, cost: int) -> StoreSteps[Decision]:
    """Returns what `check` would decide; always calls the store, and replaces a cached refusal."""
    whole_number(cost, "cost", least=0)
    state.forget(key)
    return (yield from _decide(state, "peek", key, cost))


def _decide(state: SharedState, op: str, key: Key, cost: int) -> StoreSteps[Decision]:
    can_never_pass = state.can_never_pass(cost)
    sent_ns = state.clock()
    raw = yield state.call("peek", key, 0) if can_never_pass else state.call(op, key, cost)
    if raw is None:
        return _decide_without_store(state, op, key, cost)
    return _decision(state, raw, key, cost, sent_ns)


def _decision(state: SharedState, raw: list[int], key: Key, cost: int, sent_ns: int) -> Decision:
    """Returns the decision from the script's result, and caches a refusal."""
    reply = state.decode(raw)
    decision = state.decision(reply, cost)
    if not decision.allowed and decision.retry_after is not None:
        state.refusals.add(key, cost, decision, sent_ns, reply.wait_us)
    return decision


def _decide_without_store(state: SharedState, op: str, key: Key, cost: int) -> Decision:
    if state.local is None:
        return state.fallback_decision()
    decision: Decision = getattr(state.local, op)(key, cost)
    return decision


def check_many_steps(state: SharedState, keys: Iterable[Key], cost: int) -> StoreSteps[list[Decision]]:
    """Decides about all `keys`, one after the other, in one round trip."""
    whole_number(cost, "cost", least=0)
    requested = list(require_keys(keys))
    cached = {n: state.refusals.find(key, cost) for n, key in enumerate(requested)}
    decisions = {n: refusal for n, refusal in cached.items() if refusal is not None}
    unknown = [n for n in range(len(requested)) if n not in decisions]
    op, sent_cost = ("peek", 0) if state.can_never_pass(cost) else ("check", cost)
    sent_ns = state.clock()
    raws = (yield ScriptCalls([state.call(op, requested[n], sent_cost) for n in unknown])) if unknown else []
    for place, n in enumerate(unknown):
        if raws is None:
            decisions[n] = _decide_without_store(state, "check", requested[n], cost)
        else:
            decisions[n] = _decision(state, raws[place], requested[n], cost, sent_ns)
    return [decisions[n] for n in range(len(requested))]


def refund_steps(state: SharedState, key: Key, cost: int) -> StoreSteps[None]:
    """Gives `cost` permits of `key` back."""
    whole_number(cost, "cost", least=0)
    state.forget(key)
    if cost and (yield state.call("refund", key, cost)) is None and state.local is not None:
        state.local.refund(key, cost)


def reset_steps(state: SharedState, key: Key) -> StoreSteps[None]:
    """Forgets `key`."""
    state.forget(key)
    if state.local is not None:
        state.local.reset(key)
    yield state.call("reset", key, 0)


def reserve_steps(state: SharedState, key: Key, cost: int, max_wait: float | None) -> StoreSteps[Reservation]:
    """Books `cost` permits of `key` for the first moment at which they are free."""
    whole_number(cost, "cost", least=0)
    max_wait_ns = wait_to_ns(max_wait, "max_wait")
    if state.can_never_pass(cost):
        return Reservation((yield from _decide(state, "peek", key, cost)), None)
    max_wait_us = -1 if max_wait_ns is None else max_wait_ns // MICROSECOND_NS
    raw = yield state.call("reserve", key, cost, max_wait_us)
    if raw is None:
        if state.local is None:
            return state.fallback_reservation()
        booked_here: Reservation = state.local.reserve(key, cost, max_wait)
        return booked_here
    reply = state.decode(raw)
    if not reply.spent:
        return _not_booked(state, reply, is_too_late=0 <= max_wait_us < reply.wait_us)
    # Counted from the reply, not from the call: this process may not leave before the server's time.
    due_ns = state.clock() + reply.wait_us * MICROSECOND_NS
    booked = (StoreReservation(state, key, cost, tuple(reply.bookings)),) if cost else ()
    return Reservation(state.booked_decision(reply), _wait_seconds(reply.wait_us), due_ns, booked)


def _not_booked(state: SharedState, reply: ScriptReply, *, is_too_late: bool) -> Reservation:
    """Returns the refusal: too late for the caller, or further ahead than a queue may be booked."""
    decision, delay = state.decision(reply), _wait_seconds(reply.wait_us)
    if not is_too_late and len(state.limits) == 1:
        ahead_us = -(-(state.limits[0].rule.max_ahead_ns or 0) // MICROSECOND_NS)
        decision = decision._replace(retry_after=_wait_seconds(max(0, reply.wait_us - ahead_us)))
    return Reservation(decision._replace(allowed=False, reason="limited"), delay)


def _wait_seconds(wait_us: int) -> float:
    return to_seconds(wait_us * MICROSECOND_NS)


def cancel_steps(
    state: SharedState, key: Key, cost: int, bookings: tuple[str | bytes, ...]
) -> StoreSteps[bool]:
    """Cancels a booking; returns whether it went back, as if it had never been made."""
    state.forget(key)
    return bool((yield state.call("cancel", key, cost, -1, bookings)))


class StoreReservation(NamedTuple):
    """A booking in a store, to be given back."""

    state: SharedState
    key: Key
    cost: int
    bookings: tuple[str | bytes, ...]

    def give_back(self) -> bool:
        """Whether the booking went back: no later request passed or was booked behind it."""
        return self.state.store.run(cancel_steps(*self))

    async def give_back_async(self) -> bool:
        """Gives back as `give_back` does, from an asyncio task."""
        return await self.state.store.run_async(cancel_steps(*self))


def wait_steps(
    state: SharedState, key: Key, cost: int, timeout: float | None, waker: Waker
) -> StoreSteps[Decision]:
    """Waits until `cost` of `key` may pass; refuses as soon as `timeout` seconds cannot suffice."""
    keys = state.keys
    timeout_ns = wait_to_ns(timeout, "timeout")
    end_ns = None if timeout_ns is None else keys.clock() + timeout_ns
    if any(isinstance(limit.rule, QueueRule) for limit in state.limits):
        return (yield from _book_and_sleep(state, key, cost, timeout, waker)).decision
    if not keys.waiters.waiting(key) and not state.refusals.refuses(key, cost):
        at_once = yield from _book_and_sleep(state, key, cost, 0.0, waker)
        if at_once or at_once.delay is None:
            return at_once.decision
    keys.exclusively(lambda: keys.waiters.join(key, waker, keys.max_waiters))
    try:
        while not keys.exclusively(lambda: keys.waiters.is_first(key, waker)):
            if _time_left(state, end_ns) == 0:
                decision = yield from peek_steps(state, key, cost)
                return decision._replace(
                    allowed=False, policy=state.name, reason="limited", detail="others came first"
                )
            yield Sleep(_time_left(state, end_ns), waker)
        remaining_s = _time_left(state, end_ns)
        return (yield from _book_and_sleep(state, key, cost, remaining_s, waker)).decision
    finally:
        keys.exclusively(lambda: keys.waiters.leave(key, waker))


def _book_and_sleep(
    state: SharedState, key: Key, cost: int, max_wait: float | None, waker: Waker
) -> StoreSteps[Reservation]:
    """Books, and sleeps until the booking is due; returns the refusal when nothing was booked."""
    booking = yield from reserve_steps(state, key, cost, max_wait)
    if not booking:
        return booking
    try:
        yield Sleep(0, waker)  # a waiter that was cancelled during the call notices it here
        while (left_ns := booking.due_ns - state.clock()) > 0:
            yield Sleep(to_seconds(left_ns), waker)
    except BaseException:
        yield from _give_back(booking)
        raise
    return booking


def _give_back(booking: Reservation) -> StoreSteps[None]:
    for permits in booking._booked:
        if isinstance(permits, StoreReservation):
            yield from cancel_steps(*permits)
        else:  # of the local limiter, booked while the store failed
            permits.give_back()


def _time_left(state: SharedState, end_ns: int | None) -> float | None:
    return None if end_ns is None else to_seconds(max(0, end_ns - state.clock()))
