"""What every limiter does alike when a store holds its keys: each act once, as steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gatekeeper.limits.engine.protocol import Key
from gatekeeper.limits.engine.reservations import Reservation, wait_to_ns
from gatekeeper.limits.engine.units import MICROSECOND_NS, whole_number
from gatekeeper.limits.redis.script_calls import ScriptCalls, StoreSteps
from gatekeeper.limits.redis.shared_state import ScriptReply, SharedLimiter, SharedState, wait_seconds
from gatekeeper.model import Decision


def allowing(self: SharedLimiter, key: Key, cost: int) -> StoreSteps[bool]:
    """Whether `cost` of `key` may pass now."""
    whole_number(cost, "cost", least=0)
    sharing = self._sharing
    if sharing.never(cost) or sharing.refusals.refuses(key, cost):
        return False
    asked_ns = sharing.clock()
    raw = yield sharing.call("allow", key, cost)
    if raw is None:
        return _alone(sharing, "check", key, cost).allowed
    return raw == 1 or _heard(sharing, raw, key, cost, asked_ns).allowed


def checking(self: SharedLimiter, key: Key, cost: int) -> StoreSteps[Decision]:
    """The same, with its fields; who is known to be refused is refused without a round trip."""
    whole_number(cost, "cost", least=0)
    known = self._sharing.refusals.find(key, cost)
    if known is not None:
        return known
    return (yield from _looking(self, "check", key, cost))


def peeking(self: SharedLimiter, key: Key, cost: int) -> StoreSteps[Decision]:
    """What `check` would decide; the store is asked in any case, and what it says is believed."""
    whole_number(cost, "cost", least=0)
    self._sharing.forget(key)
    return (yield from _looking(self, "peek", key, cost))


def _looking(self: SharedLimiter, do: str, key: Key, cost: int) -> StoreSteps[Decision]:
    sharing = self._sharing
    never = sharing.never(cost)
    asked_ns = sharing.clock()
    raw = yield sharing.call("peek", key, 0) if never else sharing.call(do, key, cost)
    if raw is None:
        return _alone(sharing, do, key, cost)
    return _heard(sharing, raw, key, cost, asked_ns)


def _heard(sharing: SharedState, raw: list[int], key: Key, cost: int, asked_ns: int) -> Decision:
    reply = sharing.reply(raw)
    decision = sharing.decision(reply, cost)
    if not decision.allowed and decision.retry_after is not None:
        sharing.refusals.add(key, cost, decision, asked_ns, reply.wait_us)
    return decision


def _alone(sharing: SharedState, do: str, key: Key, cost: int) -> Decision:
    if sharing.local is None:
        return sharing.alone()
    answer: Decision = getattr(sharing.local, do)(key, cost)
    return answer


def checking_many(self: SharedLimiter, keys: Iterable[Key], cost: int) -> StoreSteps[list[Decision]]:
    """The decisions about all `keys`, one after the other, in one round trip."""
    whole_number(cost, "cost", least=0)
    sharing = self._sharing
    wanted = list(keys)
    known = {n: sharing.refusals.find(key, cost) for n, key in enumerate(wanted)}
    decisions = {n: refusal for n, refusal in known.items() if refusal is not None}
    open_ = [n for n in range(len(wanted)) if n not in decisions]
    do, asked = ("peek", 0) if sharing.never(cost) else ("check", cost)
    asked_ns = sharing.clock()
    raws = (yield ScriptCalls([sharing.call(do, wanted[n], asked) for n in open_])) if open_ else []
    for place, n in enumerate(open_):
        if raws is None:
            decisions[n] = _alone(sharing, "check", wanted[n], cost)
        else:
            decisions[n] = _heard(sharing, raws[place], wanted[n], cost, asked_ns)
    return [decisions[n] for n in range(len(wanted))]


def refunding(self: SharedLimiter, key: Key, cost: int) -> StoreSteps[None]:
    """Give `cost` permits of `key` back."""
    whole_number(cost, "cost", least=0)
    sharing = self._sharing
    sharing.forget(key)
    if cost and (yield sharing.call("refund", key, cost)) is None and sharing.local is not None:
        sharing.local.refund(key, cost)


def resetting(self: SharedLimiter, key: Key) -> StoreSteps[None]:
    """Forget `key`."""
    sharing = self._sharing
    sharing.forget(key)
    if sharing.local is not None:
        sharing.local.reset(key)
    yield sharing.call("reset", key, 0)


def reserving(self: SharedLimiter, key: Key, cost: int, max_wait: float | None) -> StoreSteps[Reservation]:
    """Permits for the first moment at which they are free."""
    whole_number(cost, "cost", least=0)
    max_wait_ns = wait_to_ns(max_wait, "max_wait")
    sharing = self._sharing
    if sharing.never(cost):
        return Reservation((yield from _looking(self, "peek", key, cost)), None)
    longest_us = -1 if max_wait_ns is None else max_wait_ns // MICROSECOND_NS
    raw = yield sharing.call("reserve", key, cost, longest_us)
    if raw is None:
        if sharing.local is None:
            return sharing.alone_booked()
        booked_here: Reservation = sharing.local.reserve(key, cost, max_wait)
        return booked_here
    reply = sharing.reply(raw)
    if not reply.spent:
        return _not_booked(self, reply, too_late=0 <= longest_us < reply.wait_us)
    # From the answer on, not from the question: this process may not leave before the store's time.
    due_ns = sharing.clock() + reply.wait_us * MICROSECOND_NS
    booked = (StoreReservation(self, key, cost, tuple(reply.texts)),) if cost else ()
    return Reservation(sharing.passed(reply), wait_seconds(reply.wait_us), due_ns, booked)


def _not_booked(self: SharedLimiter, reply: ScriptReply, *, too_late: bool) -> Reservation:
    """Too late for who asked, or further ahead than a queue lets anybody book."""
    sharing = self._sharing
    answer, delay = sharing.decision(reply), wait_seconds(reply.wait_us)
    if not too_late and len(sharing.parts) == 1:
        ahead_us = -(-(sharing.parts[0].rule.max_ahead_ns or 0) // MICROSECOND_NS)
        answer = answer._replace(retry_after=wait_seconds(max(0, reply.wait_us - ahead_us)))
    return Reservation(answer._replace(allowed=False, reason="limited"), delay)


def cancelling(self: SharedLimiter, key: Key, cost: int, texts: tuple[str | bytes, ...]) -> StoreSteps[bool]:
    """Whether a booking went back, as if it had never been made."""
    self._sharing.forget(key)
    return bool((yield self._sharing.call("cancel", key, cost, -1, texts)))


class StoreReservation(NamedTuple):
    """What a booking has to give back."""

    limiter: SharedLimiter
    key: Key
    cost: int
    texts: tuple[str | bytes, ...]

    def give_back(self) -> bool:
        """Whether nobody passed or booked behind it since."""
        return self.limiter._sharing.store.run(cancelling(*self))

    async def give_back_async(self) -> bool:
        """The same."""
        return await self.limiter._sharing.store.run_async(cancelling(*self))
