"""All of several limits, decided as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self, TypeVar

from gatekeeper.limits.engine.decisions import combined
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.protocol import Key, LimiterStore, NanosecondClock, Period, SavedState
from gatekeeper.limits.engine.rate_limiter import RateLimiter
from gatekeeper.limits.engine.reservations import BookedState, Reservation
from gatekeeper.limits.engine.units import require_text, to_seconds, wait_to_ns, whole_number
from gatekeeper.limits.engine.waiting import WaitingMethods
from gatekeeper.model import Decision

T = TypeVar("T")
NEVER_NS: Final = 1 << 62  # stands for "never" where waits are compared; longer than any wait


class KeySnapshot(NamedTuple):
    """State of one key in one limiter, at one moment."""

    limiter: RateLimiter
    slot: Key | None  # None: no room for the key
    state: Any
    now_ns: int
    wait_ns: int | None

    def decision(self, cost: int) -> Decision:
        """Returns the decision of this limiter alone about `cost`."""
        if self.slot is None:
            return self.limiter._without_slot(cost)
        return self.limiter._decision(self.state, self.now_ns, self.wait_ns)

    def spend(self, cost: int) -> KeySnapshot:
        """Spends now; returns the snapshot after it."""
        if self.slot is None:
            return self
        state = self.limiter._rule.spend(self.state, self.now_ns, cost)
        self.limiter._keys.young[self.slot] = state
        return self._replace(state=state)

    def book(self, cost: int, delay_ns: int) -> tuple[KeySnapshot, list[BookedState]]:
        """Spends `delay_ns` from now; returns the snapshot of that moment, and how to undo it."""
        due_ns, state = self.now_ns + delay_ns, self.state
        undo: list[BookedState] = []
        if self.slot is not None and cost:
            booked, state = self.limiter._book(self.slot, self.state, due_ns, cost)
            self.limiter._keys.keep_for_booking(delay_ns)
            undo.append(booked)
        return self._replace(state=state, now_ns=due_ns, wait_ns=0), undo


class AllOf(WaitingMethods):
    """All of several limits as one: a request passes when all admit it, and then counts in each of them.

    One decision: nothing is counted anywhere unless all admit the request, and no other thread comes
    between. A refusal is that of the limiter with the longest wait, and `also` names the others that
    refuse; when the request passes, limit and remaining are of the limiter that has least left. The parts
    stay separate limiters and may be called alone. Limiters in one store are decided there as one, too, in
    one round trip; they do not mix with limiters in memory.

    `allow` costs the `allow` of each part, and at most half as much again.

    Args:
        parts: Limiters of a rate, or other AllOf, whose parts it then has; one or more, each of them once.
        name: The policy that a refusal names when the refusing part has no name.

    Raises:
        ValueError: No part, one part twice, or parts of which some are in a store and some not, or in
            different stores.
        TypeError: A part that is not a limiter of a rate, such as `Concurrency`.

    Example:
        >>> from gatekeeper.limits import SlidingLog
        >>> both = AllOf(SlidingLog(10, 1, name="burst"), SlidingLog(1000, 3600, name="hourly"))
        >>> both.check("acme").remaining, both.check("acme", cost=20).policy
        (9, 'burst')
    """

    __slots__ = ("_all_but_last", "_keys", "_last", "_ordered", "_parts", "name")
    _keys: KeyStates[Any]
    _ordered: list[KeyStates[Any]]
    _all_but_last: list[RateLimiter]
    _last: RateLimiter
    _parts: tuple[RateLimiter, ...]
    name: str

    def __new__(cls, *parts: RateLimiter | AllOf, name: str = "") -> Self:
        """Returns an uninitialised limiter; with parts in a store, of the subclass for it."""
        store = common_store(parts)
        return object.__new__(cls if store is None else store.class_for(cls))

    def __init__(self, *parts: RateLimiter | AllOf, name: str = "") -> None:
        flat: list[Any] = []
        for part in parts:
            flat += part._parts if isinstance(part, AllOf) else [part]
        if not flat or len({id(part) for part in flat}) < len(flat):
            raise ValueError("AllOf: expected one limiter or more, each of them once")
        if wrong := [part for part in flat if not isinstance(part, RateLimiter)]:
            raise TypeError(f"AllOf: expected limiters of a rate, got {wrong[0]!r:.80}")
        self._parts = tuple(flat)
        self._order_mutexes()
        self._keys = KeyStates(1, 1, "shared", flat[0]._keys.clock)  # for its waiters alone
        self.name = require_text(name, "name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {', '.join(map(repr, self._parts))}>"

    def _order_mutexes(self) -> None:
        # Threads that need several mutexes acquire them in this order, or two could wait for each other.
        in_order = sorted(self._parts, key=lambda part: id(part._keys))
        self._ordered = [part._keys for part in in_order]
        *self._all_but_last, self._last = in_order

    def _exclusively(self, action: Callable[[], T]) -> T:
        for keys in self._ordered:
            action = _within(keys, action)
        return action()

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found no room in one of the parts; the sum over the parts."""
        return sum(part.overflowed for part in self._parts)

    def allow(self, key: Key = "", cost: int = 1) -> bool:  # noqa: C901 - written out, because each call costs a tenth
        """Whether `cost` requests of `key` may pass now; if so they are counted in all parts.

        Equals `check(key, cost).allowed`, and is many times as fast for a cost of 1. Raises ValueError for a
        negative cost.
        """
        if cost != 1:
            return self.check(key, cost).allowed
        acquired, admitted = 0, []
        try:
            for part in self._all_but_last:
                keys, rule = part._keys, part._rule
                acquired += 1
                if not keys.mutex.acquire(False):
                    keys.acquire_mutex()
                now_ns = keys.clock()
                if now_ns >= keys.rotate_ns:
                    keys.rotate(now_ns)
                slot: Key | None = key
                state = keys.young.get(key)
                if state is None:  # new, or in the old generation
                    slot = keys.take_slot(key)
                    state = None if slot is None else keys.young.get(slot)
                new_state = rule.admit(state, now_ns, 1)
                if new_state is None or (slot is None and not part._without_slot(1)):
                    return False
                if slot is not None:
                    admitted.append((keys.young, slot, state, new_state, rule, now_ns))
            if not self._last.allow(key):
                return False
            for young, slot, state, new_state, rule, now_ns in admitted:
                young[slot] = rule.spend(state, now_ns, 1) if new_state is state else new_state
            return True
        finally:
            while acquired:
                acquired -= 1
                self._all_but_last[acquired]._keys.mutex.release()

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides as `allow` does; returns the decision of all parts together, of one moment.

        Raises ValueError for a negative cost.
        """
        whole_number(cost, "cost", least=0)

        def decide() -> Decision:
            snapshots = [_snapshot(part, key, cost, spending=True) for part in self._parts]
            if cost and all(snapshot.wait_ns == 0 for snapshot in snapshots):
                snapshots = [snapshot.spend(cost) for snapshot in snapshots]
            return self._combined(snapshots, cost)

        return self._exclusively(decide)

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now; counts nothing."""
        whole_number(cost, "cost", least=0)
        return self._exclusively(
            lambda: self._combined([_snapshot(part, key, cost, spending=False) for part in self._parts], cost)
        )

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits of `key` back in each part. Raises ValueError for a negative cost."""
        whole_number(cost, "cost", least=0)

        def give_back() -> None:
            for part in self._parts:
                part.refund(key, cost)

        self._exclusively(give_back)

    def reset(self, key: Key = "") -> None:
        """Forgets `key` in each part."""

        def forget() -> None:
            for part in self._parts:
                part.reset(key)

        self._exclusively(forget)

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits of `key` in all parts, for the first moment at which all have them.

        Returns the reservation; nothing is booked when its `delay` is above `max_wait` seconds. Cancelling
        it returns false when not all parts could take the permits back. Raises ValueError for a negative
        cost or wait.
        """
        whole_number(cost, "cost", least=0)
        max_wait_ns = wait_to_ns(max_wait, "max_wait")

        def decide() -> Reservation:
            snapshots = [_snapshot(part, key, cost, spending=True) for part in self._parts]
            longest_ns = max(
                NEVER_NS if snapshot.wait_ns is None else snapshot.wait_ns for snapshot in snapshots
            )
            bounds_ns = [NEVER_NS - 1 if max_wait_ns is None else max_wait_ns]
            bounds_ns += [
                part._rule.max_ahead_ns for part in self._parts if part._rule.max_ahead_ns is not None
            ]
            if longest_ns > min(bounds_ns):
                refusal = self._combined(snapshots, cost)._replace(allowed=False, reason="limited")
                return Reservation(refusal, None if longest_ns == NEVER_NS else to_seconds(longest_ns))
            pairs = [snapshot.book(cost, longest_ns) for snapshot in snapshots]
            decision = self._combined([snapshot for snapshot, _ in pairs], cost)
            due_ns = self._keys.clock() + longest_ns
            booked = tuple(booking for _, undo in pairs for booking in undo)
            return Reservation(decision, to_seconds(longest_ns), due_ns, booked)

        return self._exclusively(decide)

    def _combined(self, snapshots: list[KeySnapshot], cost: int) -> Decision:
        return combined([snapshot.decision(cost) for snapshot in snapshots], self.name)

    def configure(
        self, part: str, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Applies another limit to the part named `part`, and keeps its history.

        The other parts do not change. Parts of `parse` are named by their text, such as "10/second". Raises
        ValueError for a name that no part or several parts have, and for numbers that the part rejects.
        """
        matches = [limiter for limiter in self._parts if limiter.name == part]
        if len(matches) != 1:
            names = [limiter.name for limiter in self._parts]
            raise ValueError(f"part: expected the name of one of {names}, got {part!r}")
        self._exclusively(lambda: matches[0].configure(limit, period, burst))

    def dump(self) -> SavedState:
        """Returns all that is counted in its parts, as json.dumps accepts it."""
        return {"limiter": "AllOf", "parts": [part.dump() for part in self._parts]}

    def load(self, saved: SavedState) -> None:
        """Continues from what `dump` saved of as many limiters in the same order. Raises ValueError."""
        if saved.get("limiter") != "AllOf" or len(saved["parts"]) != len(self._parts):
            raise ValueError(f"saved: expected AllOf of {len(self._parts)} limiters, got {saved!r:.80}")
        for part, saved_part in zip(self._parts, saved["parts"], strict=True):
            part.load(saved_part)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests."""
        saved_keys = self._keys
        restore_parts = [part.start_over(clock) for part in self._parts]
        self._keys = saved_keys.empty_copy(clock)
        self._order_mutexes()

        def restore() -> None:
            for restore_part in restore_parts:
                restore_part()
            self._keys = saved_keys
            self._order_mutexes()

        return restore


def common_store(parts: Iterable[object]) -> LimiterStore | None:
    """Returns the store of all `parts`; None when none is in a store. Raises ValueError for a mixture."""
    stores: set[LimiterStore | None] = {getattr(part, "store", None) for part in parts}
    if len(stores) > 1:
        raise ValueError("AllOf: expected all limiters in one store, or none in any")
    return stores.pop() if stores else None


def _within(keys: KeyStates[Any], action: Callable[[], T]) -> Callable[[], T]:
    return lambda: keys.exclusively(action)


def _snapshot(limiter: RateLimiter, key: Key, cost: int, spending: bool) -> KeySnapshot:
    """Returns what `check` would see, or `peek` unless `spending`; the caller holds the mutex."""
    keys = limiter._keys
    now_ns = keys.clock()
    if now_ns >= keys.rotate_ns:
        keys.rotate(now_ns)
    if not spending:
        slot = keys.find_slot(key)
    else:
        slot = key if key in keys.young else keys.take_slot(key)
    if slot is None:
        decision = limiter._without_slot(cost)
        wait_ns = 0 if decision else keys.forget_after_ns
        never = not decision and decision.retry_after is None
        return KeySnapshot(limiter, None, None, now_ns, None if never else wait_ns)
    state = keys.get(slot)
    return KeySnapshot(limiter, slot, state, now_ns, limiter._rule.wait_ns(state, now_ns, cost))
