"""LeakyQueue: callers wait their turn and leave one by one, evenly."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number


@dataclass(frozen=True, slots=True)
class QueueRule:
    """One departure every period / limit, those of `queue` callers at most ahead.

    The state is when the next may leave, in ticks as GcraRule has them: nothing rounds.
    """

    limit: int
    period_ns: int
    queue: int
    scale: int = field(init=False)  # ticks per nanosecond
    weight: int = field(init=False)  # ticks per departure

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        whole_number(self.queue, "queue", least=0)
        common = gcd(self.limit, self.period_ns)
        object.__setattr__(self, "scale", self.limit // common)
        object.__setattr__(self, "weight", self.period_ns // common)

    @property
    def description(self) -> str:
        return f"{self.limit} per {format_seconds(self.period_ns)}, one by one"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.weight // self.scale)

    @property
    def max_ahead_ns(self) -> int:
        return -(-self.queue * self.weight // self.scale)

    def wait_ns(self, state: int | None, now_ns: int, cost: int) -> int | None:
        if cost > 1:
            return None  # they leave one by one
        ahead = 0 if state is None or not cost else state - now_ns * self.scale
        return -(-ahead // self.scale) if ahead > 0 else 0

    def spend(self, state: int | None, at_ns: int, cost: int) -> int:
        at = at_ns * self.scale
        return (at if state is None or state < at else state) + cost * self.weight

    def admit(self, state: int | None, now_ns: int, cost: int) -> int | None:
        now = now_ns * self.scale
        if cost > 1 or (state is not None and state > now):
            return None
        return now + cost * self.weight

    def give_back(self, state: int, now_ns: int, cost: int) -> int | None:
        """Departures cannot be taken back: moving up would leave less than a turn between two."""
        return state

    def status(self, state: int | None, now_ns: int) -> KeyStatus:
        ahead = self.wait_ns(state, now_ns, 1) or 0
        return KeyStatus(int(not ahead), ahead)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> QueueRule:
        reject_burst(burst)
        return QueueRule(limit or self.limit, period_ns or self.period_ns, self.queue)

    def pack(self, state: int) -> list[int]:
        return [state]

    def unpack(self, numbers: list[int], shift_ns: int) -> int:
        return numbers[0] + shift_ns * self.scale

    def convert(self, old: QueueRule, state: int, now_ns: int) -> int | None:
        """The next turn comes when it was going to come; those behind it at the new rate."""
        wait_ns = old.wait_ns(state, now_ns, 1)
        return (now_ns + wait_ns) * self.scale if wait_ns else None


class LeakyQueue:
    """Callers wait their turn and leave one by one, period / limit apart; at most `queue` wait.

    Promise: departures are never closer than period / limit, in the order of arrival, and a caller
    is turned away only when `queue` are waiting already. `wait` and `guard` wait for the turn;
    `reserve` books one, at most `queue` turns ahead; `allow` and `check` pass when nobody has to be
    waited for. A cost above 1 never passes; a departure cannot be refunded.
    """

    __slots__ = ("_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

    def __init__(
        self,
        limit: int,
        period: Period,
        queue: int = 100,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        """A queue for each key. Raises ValueError for a limit or period below one unit."""
        self._rule = rule = QueueRule(limit, to_ns(period), queue)
        self._keys: KeyStates[int] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
        self._keys.max_waiters = queue
        self._name = name
        if store is not None:
            store.attach(self)

    allow = decisions.allow
    check = decisions.check
    check_many = conveniences.check_many
    peek = decisions.peek
    refund = decisions.refund
    reset = decisions.reset
    reserve = reservations.reserve
    wait = waiting.wait
    wait_async = waiting.wait_async
    configure = persistence.configure
    dump = persistence.dump
    load = persistence.load
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
