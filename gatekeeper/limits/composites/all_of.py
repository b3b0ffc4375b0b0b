"""AllOf: several limits that decide as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from gatekeeper.limits.engine import conveniences, store_backed, waiting
from gatekeeper.limits.engine.decisions import KeySnapshot, RuleLimiter, combined, look
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, Period, SavedState
from gatekeeper.limits.engine.reservations import Reservation, book, wait_to_ns
from gatekeeper.limits.engine.units import to_seconds, whole_number
from gatekeeper.model import Decision

T = TypeVar("T")
EVER_NS: Final = 1 << 62  # longer than any wait: what never passes, for comparison


class RateLimiter(RuleLimiter, Protocol):
    """A limiter of a rate; not Concurrency, whose permits come back by hand."""

    def refund(self, key: Key = "", cost: int = 1) -> None: ...
    def reset(self, key: Key = "") -> None: ...
    def dump(self) -> SavedState: ...
    def load(self, saved: SavedState) -> None: ...
    def configure(
        self, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None: ...


class AllOf:
    """Passes when all of its limiters let it pass, and then counts in each of them.

    Promise: one decision. Nothing is counted anywhere unless all allow, and no other thread comes
    between. A refusal is that of the limiter with the longest wait, and `also` names the others
    that refuse; when it passes, the limit and what remains are of the one that is nearest to its
    end. The parts stay what they are and may be asked alone. Limiters of one store are decided there
    as one, too; they do not mix with others.
    """

    __slots__ = ("_keys", "_name", "_ordered", "_parts")
    _parts: tuple[RateLimiter, ...]

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new_of

    def __init__(self, *parts: RateLimiter | AllOf, name: str = "") -> None:
        """Raises ValueError for no part, and for one that is given twice."""
        flat: list[Any] = []
        for part in parts:
            flat += part._parts if isinstance(part, AllOf) else [part]
        if not flat or len({id(part._keys) for part in flat}) < len(flat):
            raise ValueError("AllOf: expected one limiter or more, each of them once")
        self._parts = tuple(flat)
        # Whoever takes several mutexes takes them in this order, or two could wait for each other.
        self._ordered = sorted((part._keys for part in flat), key=id)
        self._keys: KeyStates[Any] = KeyStates(
            1, 1, "shared", flat[0]._keys.clock
        )  # for the line of its waiters
        self._name = name
        if (store := store_backed.store_of(self._parts)) is not None:
            store.attach_all(self)

    def _inside(self, do: Callable[[], T]) -> T:
        for keys in self._ordered:
            do = _held(keys, do)
        return do()

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; they are counted in all when they may.

        Raises ValueError for a negative cost.
        """
        return self.check(key, cost).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """The same, with its fields."""
        whole_number(cost, "cost", least=0)

        def decide() -> Decision:
            looks = [look(part, key, cost, spending=True) for part in self._parts]
            if cost and all(each.wait_ns == 0 for each in looks):
                looks = [_spent(each, cost) for each in looks]
            return self._summary(looks)

        return self._inside(decide)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """What `check` would decide now; nothing is counted."""
        whole_number(cost, "cost", least=0)
        return self._inside(
            lambda: self._summary([look(part, key, cost, spending=False) for part in self._parts])
        )

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Give `cost` permits of `key` back to each. Raises ValueError below 0."""
        whole_number(cost, "cost", least=0)

        def give() -> None:
            for part in self._parts:
                part.refund(key, cost)

        self._inside(give)

    def reset(self, key: Key = "") -> None:
        """Forget `key` in each."""

        def forget() -> None:
            for part in self._parts:
                part.reset(key)

        self._inside(forget)

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Permits of all for the first moment at which all have them.

        Nothing is booked when that is above `max_wait` seconds. Raises ValueError for a negative
        cost or wait. Cancelling returns false when not all of them could go back.
        """
        whole_number(cost, "cost", least=0)
        max_wait_ns = wait_to_ns(max_wait, "max_wait")

        def decide() -> Reservation:
            looks = [look(part, key, cost, spending=True) for part in self._parts]
            longest_ns = max(_wait_ns(each) for each in looks)
            ahead_ns = [EVER_NS - 1 if max_wait_ns is None else max_wait_ns]
            ahead_ns += [p._rule.max_ahead_ns for p in self._parts if p._rule.max_ahead_ns is not None]
            if longest_ns > min(ahead_ns):
                later = self._summary(looks)
                return Reservation(
                    later._replace(allowed=False, reason="limited"),
                    None if longest_ns == EVER_NS else to_seconds(longest_ns),
                )
            booked, passed = [], []
            for each in looks:
                due_ns = each.now_ns + longest_ns
                state = each.state
                if each.slot is not None and cost:
                    one, state = book(each.limiter, each.slot, each.state, due_ns, cost)
                    each.limiter._keys.keep_for_booking(longest_ns)
                    booked.append(one)
                passed.append(each._replace(state=state, now_ns=due_ns, wait_ns=0))
            due_ns = self._keys.clock() + longest_ns
            return Reservation(self._summary(passed), to_seconds(longest_ns), due_ns, tuple(booked))

        return self._inside(decide)

    def _summary(self, looks: list[KeySnapshot]) -> Decision:
        return combined([each.decision() for each in looks], self._name)

    def configure(
        self, part: str, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Another limit for the part of that name, with the history kept; the others stay as they are.

        Parts of `parse` are named by their text, such as "10/second". Raises ValueError.
        """
        named = [each for each in self._parts if each._name == part]
        if len(named) != 1:
            names = [each._name for each in self._parts]
            raise ValueError(f"part: expected the name of one of {names}, got {part!r}")
        self._inside(lambda: named[0].configure(limit, period, burst))

    def dump(self) -> SavedState:
        """All that is counted in its limiters, as json.dumps takes it."""
        return {"limiter": "AllOf", "parts": [part.dump() for part in self._parts]}

    def load(self, saved: SavedState) -> None:
        """Count on from what `dump` saved of as many limiters in the same order. Raises ValueError."""
        if saved.get("limiter") != "AllOf" or len(saved["parts"]) != len(self._parts):
            raise ValueError(f"saved: expected AllOf of {len(self._parts)} limiters, got {saved!r:.80}")
        for part, its in zip(self._parts, saved["parts"], strict=True):
            part.load(its)

    check_many = conveniences.check_many
    wait = waiting.wait
    wait_async = waiting.wait_async
    enforce = conveniences.enforce
    guard = conveniences.guard
    ticks = conveniences.ticks
    leave = conveniences.nothing_to_leave
    allow_async = conveniences.allow_async
    check_async = conveniences.check_async
    check_many_async = conveniences.check_many_async
    peek_async = conveniences.peek_async
    reserve_async = conveniences.reserve_async
    enforce_async = conveniences.enforce_async
    __enter__ = conveniences.enter
    __exit__ = conveniences.leave_block
    __aenter__ = conveniences.enter_async
    __aexit__ = conveniences.leave_block_async


def _held(keys: KeyStates[Any], do: Callable[[], T]) -> Callable[[], T]:
    return lambda: keys.exclusively(do)


def _wait_ns(seen: KeySnapshot) -> int:
    return EVER_NS if seen.wait_ns is None else seen.wait_ns


def _spent(seen: KeySnapshot, cost: int) -> KeySnapshot:
    if seen.slot is None:
        return seen
    state = seen.limiter._rule.spend(seen.state, seen.now_ns, cost)
    seen.limiter._keys.young[seen.slot] = state
    return seen._replace(state=state)
