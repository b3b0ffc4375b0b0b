"""`RateLimiter`: states of keys, a rule, and all methods of a limiter in terms of the two.

A decision holds the mutex of `KeyStates` in the form that its docstring prescribes, written out in each
method: a helper would cost a call, a tenth of a decision. The algorithms are rules, in
`gatekeeper.limits.algorithms`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, ClassVar

from gatekeeper.limits.engine.decisions import to_decision
from gatekeeper.limits.engine.key_states import KeyStates
from gatekeeper.limits.engine.persistence import (
    changed_rule,
    clock_shift_ns,
    convert_states,
    dump_states,
    load_states,
    require_saved_by,
)
from gatekeeper.limits.engine.protocol import (
    Key,
    LimiterStore,
    NanosecondClock,
    Overflow,
    Period,
    Rule,
    SavedState,
)
from gatekeeper.limits.engine.reservations import BookedState, Reservation
from gatekeeper.limits.engine.units import require_text, to_seconds, wait_to_ns, whole_number
from gatekeeper.limits.engine.waiting import WaitingMethods
from gatekeeper.model import Decision


class RateLimiter(WaitingMethods):
    """A limiter of a rate per key. Each algorithm is a subclass that creates its rule."""

    __slots__ = ("_keys", "_rule", "name")
    _keys: KeyStates[Any]
    _rule: Rule[Any]
    name: str
    _rotates_on_write: ClassVar[bool] = True  # as in `KeyStates`

    def _init(
        self,
        rule: Rule[Any],
        max_keys: int,
        overflow: Overflow,
        clock: NanosecondClock,
        name: str,
        store: LimiterStore | None = None,
    ) -> None:
        """Sets what all limiters of a rate have. `store` is for the subclass that `__new__` chooses then."""
        self._rule = rule
        self._keys = KeyStates(
            rule.forget_after_ns, max_keys, overflow, clock, rotates_on_write=self._rotates_on_write
        )
        self.name = require_text(name, "name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self._rule.description}>"

    @property
    def overflowed(self) -> int:
        """Requests so far whose key found `max_keys` live keys, and so shared a limit or got `overflow`.

        Counted since the limiter was created, in this process. If it grows, raise `max_keys`, or find out
        why there are so many keys.
        """
        return self._keys.overflowed

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Equals `check(key, cost).allowed`. Raises ValueError for a negative cost.
        """
        return self.check(key, cost).allowed

    def check(self, key: Key = "", cost: int = 1) -> Decision:
        """Decides whether `cost` requests of `key` may pass now; if so they are counted.

        Returns the decision with limit, remaining (after this request), retry_after and reset_after
        (seconds), all of one moment. A refusal and a cost of 0 change nothing; `retry_after` is None when
        `cost` is above what can ever pass. Raises ValueError for a negative cost.
        """
        if cost == 1:
            cost = 1  # an equal float must not get into a state, where it would round
        else:
            whole_number(cost, "cost", least=0)
        keys = self._keys
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            now_ns = keys.clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            rule, young = self._rule, keys.young
            slot = key if key in young else keys.take_slot(key)
            if slot is None:
                return self._without_slot(cost)
            state = young.get(slot)
            new_state = rule.admit(state, now_ns, cost) if cost else None
            wait_ns: int | None = 0
            if new_state is None:
                wait_ns = rule.wait_ns(state, now_ns, cost)
            else:
                state = rule.spend(state, now_ns, cost) if new_state is state else new_state
                young[slot] = state
            status = rule.status(state, now_ns)
        finally:
            mutex.release()
        return to_decision(rule, self.name, status, wait_ns)  # outside: it takes as long as the rest

    def peek(self, key: Key = "", cost: int = 1) -> Decision:
        """Returns the decision that `check` would make now, with what remains before it; counts nothing.

        Raises ValueError for a negative cost.
        """
        whole_number(cost, "cost", least=0)
        keys = self._keys
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            now_ns = keys.clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            slot = keys.find_slot(key)
            if slot is None:
                return self._without_slot(cost)
            state, rule = keys.get(slot), self._rule
            wait_ns = rule.wait_ns(state, now_ns, cost)
            status = rule.status(state, now_ns)
        finally:
            mutex.release()
        return to_decision(rule, self.name, status, wait_ns)

    def refund(self, key: Key = "", cost: int = 1) -> None:
        """Gives `cost` permits of `key` back, at most as many as are counted.

        Raises ValueError for a negative cost.
        """
        whole_number(cost, "cost", least=0)
        keys = self._keys
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            now_ns = keys.clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            slot = keys.find_slot(key)
            state = None if slot is None else keys.get(slot)
            if slot is not None and state is not None and cost:
                keys.old.pop(slot, None)
                keys.put(slot, self._rule.refund(state, now_ns, cost))
        finally:
            mutex.release()

    def reset(self, key: Key = "") -> None:
        """Forgets `key`: its next request is its first."""
        keys = self._keys
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            keys.drop(key)
        finally:
            mutex.release()

    def reserve(self, key: Key = "", cost: int = 1, max_wait: float | None = None) -> Reservation:
        """Books `cost` permits of `key` for the first moment at which they are free, after earlier bookings.

        Returns the reservation; the caller waits its `delay` seconds by itself. Nothing is booked when
        `delay` is above `max_wait` seconds (None: any), or when waiting never helps. Raises ValueError for
        a negative cost or wait.
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
                decision = self._without_slot(cost)
                return Reservation(decision, decision.retry_after, now_ns)
            state = keys.young.get(slot)
            wait_ns = rule.wait_ns(state, now_ns, cost)
            if wait_ns is None or (max_wait_ns is not None and wait_ns > max_wait_ns):
                delay = None if wait_ns is None else to_seconds(wait_ns)
                return Reservation(self._decision(state, now_ns, wait_ns), delay)
            if rule.max_ahead_ns is not None and wait_ns > rule.max_ahead_ns:
                bookable_ns = wait_ns - rule.max_ahead_ns
                return Reservation(self._decision(state, now_ns, bookable_ns), to_seconds(wait_ns))
            due_ns = now_ns + wait_ns
            if not cost:
                return Reservation(self._decision(state, due_ns, 0), to_seconds(wait_ns), due_ns)
            booked, state = self._book(slot, state, due_ns, cost)
            keys.keep_for_booking(wait_ns)
            return Reservation(self._decision(state, due_ns, 0), to_seconds(wait_ns), due_ns, (booked,))
        finally:
            mutex.release()

    def configure(
        self, limit: int | None = None, period: Period | None = None, burst: int | None = None
    ) -> None:
        """Applies another limit from now on, and keeps the history: permits that were used stay used.

        None keeps a number; only buckets take a `burst`. All keys are converted at once, one to three
        microseconds each, while decisions wait. Raises ValueError, and nothing changes.
        """
        rule: Rule[Any] = changed_rule(self._rule, limit, period, burst)

        def replace() -> None:
            convert_states(self._keys, self._rule, rule)
            self._rule = rule

        self._keys.exclusively(replace)

    def dump(self, wall_ns: Callable[[], int] = time.time_ns) -> SavedState:
        """Returns all that is counted, as json.dumps accepts it; `load` continues from there.

        `wall_ns` is the wall clock in nanoseconds, for tests.
        """
        keys = self._keys
        return keys.exclusively(lambda: dump_states(keys, self._rule, type(self).__name__, wall_ns))

    def load(self, saved: SavedState, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """Continues from what `dump` saved, under the limit that this limiter has; drops what it counted.

        The time in between counts. If the limiter's clock started again since, as after a reboot, the
        wall clock `wall_ns` measures that time. Raises ValueError for what another class or version saved.
        """
        require_saved_by(type(self).__name__, saved)

        def replace() -> None:
            shift_ns = clock_shift_ns(saved, self._keys.clock(), wall_ns())
            saved_under = self._adopt_saved_rule(type(self._rule)(**saved["rule"]), shift_ns)
            load_states(self._keys, self._rule, saved, saved_under, shift_ns)

        self._keys.exclusively(replace)

    def start_over(self, clock: NanosecondClock) -> Callable[[], None]:
        """Counts from zero, by another clock, until the function that it returns is called: for tests.

        `gatekeeper.testing.fresh` calls it. That function restores what was counted before.
        """
        saved_keys = self._keys
        self._keys = saved_keys.empty_copy(clock)

        def restore() -> None:
            self._keys = saved_keys

        return restore

    def _adopt_saved_rule(self, saved_under: Any, shift_ns: int) -> Any:
        """Returns the rule of saved states by this limiter's clock, which is `shift_ns` ahead of theirs.

        A limiter whose windows must not move against real time sets its own rule so that they stay.
        """
        return saved_under

    def _decision(self, state: object, now_ns: int, wait_ns: int | None) -> Decision:
        """Returns the decision about a state; the caller holds the mutex."""
        return to_decision(self._rule, self.name, self._rule.status(state, now_ns), wait_ns)

    def _without_slot(self, cost: int) -> Decision:
        """Returns the decision about `cost` of a key that found no slot, and shares none."""
        keys, limit = self._keys, self._rule.decision_limit
        can_pass = self._rule.wait_ns(None, keys.clock(), cost) is not None
        if keys.overflow == "allow" and can_pass:
            return Decision(True, limit=limit)
        return Decision(
            False,
            policy=self.name,
            reason="limited",
            detail=f"no room for another key: {keys.max_keys} are live"
            if can_pass
            else self._rule.description,
            limit=limit,
            retry_after=to_seconds(keys.forget_after_ns) if can_pass else None,
        )

    def _book(self, slot: Key, state: object, due_ns: int, cost: int) -> tuple[BookedState, object]:
        """Spends at `due_ns`; returns how to undo it, and the new state. The caller holds the mutex."""
        earlier = copy.copy(state)
        state = self._rule.spend(state, due_ns, cost)
        self._keys.young[slot] = state
        return BookedState(self._keys, slot, earlier, copy.copy(state)), state


class AdmittingLimiter(RateLimiter):
    """A limiter whose rule tests and spends in one call, so that `allow` is quick."""

    __slots__ = ()

    def allow(self, key: Key = "", cost: int = 1) -> bool:
        """Whether `cost` requests of `key` may pass now; if so they are counted.

        Equals `check(key, cost).allowed`, and is several times as fast. Raises ValueError for a negative
        cost.
        """
        if cost == 1:
            cost = 1  # an equal float must not get into a state, where it would round
        else:
            whole_number(cost, "cost", least=0)
        keys, rule = self._keys, self._rule
        mutex = keys.mutex
        try:
            if not mutex.acquire(False):
                keys.acquire_mutex()
            now_ns = keys.clock()
            if now_ns >= keys.rotate_ns:
                keys.rotate(now_ns)
            young = keys.young
            state = young.get(key)
            if state is None:  # new, or in the old generation
                slot = keys.take_slot(key)
                if slot is None:
                    return self._without_slot(cost).allowed
                key, state = slot, young.get(slot)
            if not cost:
                return rule.wait_ns(state, now_ns, 0) == 0
            new_state = rule.admit(state, now_ns, cost)
            if new_state is None:
                return False
            young[key] = new_state
            return True
        finally:
            mutex.release()
