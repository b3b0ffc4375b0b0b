"""FixedWindow: a counter that starts again with each window."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gatekeeper.limits.engine import conveniences, decisions, persistence, reservations, store_backed, waiting
from gatekeeper.limits.engine.key_states import KEYS_MAX, KeyStates
from gatekeeper.limits.engine.protocol import KeyStatus, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.store_backed import LimiterStore
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

# When it began, and how many passed in [start, start + period). No NamedTuple, which takes three times as
# long to make; one is made by each request that passes.
WindowState = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowRule:
    """At most `limit` in each window; the first begins with a key's first request, or all of them
    at whole multiples of the period by the clock."""

    limit: int
    period_ns: int
    aligned: bool

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")

    @property
    def description(self) -> str:
        return f"{self.limit} in a window of {format_seconds(self.period_ns)}"

    @property
    def forget_after_ns(self) -> int:
        return self.period_ns

    @property
    def max_ahead_ns(self) -> None:
        return None

    def wait_ns(self, state: WindowState | None, now_ns: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        if state is None or now_ns >= state[0] + self.period_ns:
            return 0
        start_ns, used = state
        if used + cost <= self.limit:
            return max(0, start_ns - now_ns)
        return start_ns + self.period_ns - now_ns

    def spend(self, state: WindowState | None, at_ns: int, cost: int) -> WindowState:
        if state is None or at_ns >= state[0] + self.period_ns:
            return at_ns - at_ns % self.period_ns if self.aligned else at_ns, cost
        start_ns, used = state
        return start_ns, used + cost

    def admit(self, state: WindowState | None, now_ns: int, cost: int) -> WindowState | None:
        if state is None or now_ns >= state[0] + self.period_ns:
            return None if cost > self.limit else self.spend(None, now_ns, cost)
        start_ns, used = state
        used += cost
        return None if used > self.limit or start_ns > now_ns else (start_ns, used)

    def give_back(self, state: WindowState, now_ns: int, cost: int) -> WindowState | None:
        start_ns, used = state
        return (start_ns, used - cost) if used > cost else None

    def status(self, state: WindowState | None, now_ns: int) -> KeyStatus:
        if state is None or now_ns >= state[0] + self.period_ns:
            return KeyStatus(self.limit, 0)
        start_ns, used = state
        remaining = self.limit - used if start_ns <= now_ns else 0
        return KeyStatus(max(0, remaining), start_ns + self.period_ns - now_ns)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> WindowRule:
        reject_burst(burst)
        return WindowRule(limit or self.limit, period_ns or self.period_ns, self.aligned)

    def pack(self, state: WindowState) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> WindowState:
        start_ns, used = numbers
        return start_ns + shift_ns, used

    def convert(self, old: WindowRule, state: WindowState, now_ns: int) -> WindowState | None:
        """The same window, and what passed in it still counts; its end follows the new period."""
        return state


class FixedWindow:
    """At most `limit` in each window of `period`; the cheapest to understand.

    Promise: never more than `limit` in a window, no refusal unless admitting would break that.
    A stretch of one period may lie across two windows and so hold up to twice the limit. A key's
    windows begin with its first request; `aligned=True` begins all of them at whole multiples of
    the period by the clock: with `clock=time.time_ns` and a period of 60, at each full minute.
    """

    __slots__ = ("_keys", "_name", "_rule")

    if not TYPE_CHECKING:  # for which __init__ says it all
        __new__ = store_backed.new

    def __init__(
        self,
        limit: int,
        period: Period,
        *,
        aligned: bool = False,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        """A limiter for each key. Raises ValueError for a limit or a period below one unit."""
        self._rule = rule = WindowRule(limit, to_ns(period), aligned)
        self._keys: KeyStates[WindowState] = KeyStates(
            rule.forget_after_ns, whole_number(max_keys, "max_keys"), overflow, clock
        )
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
