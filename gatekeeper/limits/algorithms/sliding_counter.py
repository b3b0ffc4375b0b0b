"""Sliding window counter: two windows, of which the older counts by the part that is still in the period."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import KeyStatus, LimiterStore, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.rate_limiter import AdmittingLimiter
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number

# Index of a window, requests that passed in the window before it, and in it. A tuple for speed, as in
# `fixed_window.WindowState`.
CounterPair = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CounterRule:
    """At most `limit` by the weighted sum before * (1 - x) + used, rounded down.

    x is the part of the present window that has passed. Windows are whole multiples of the period.
    """

    limit: int
    period_ns: int

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")

    @property
    def decision_limit(self) -> int:
        return self.limit

    @property
    def description(self) -> str:
        return f"about {self.limit} in any {format_seconds(self.period_ns)}"

    @property
    def forget_after_ns(self) -> int:
        return 2 * self.period_ns

    @property
    def max_ahead_ns(self) -> None:
        return None

    def _windows_at(self, state: CounterPair | None, now_ns: int) -> CounterPair:
        """Returns the two windows that count at `now_ns`, or those of a booking ahead."""
        index = now_ns // self.period_ns
        if state is None or state[0] < index - 1:
            return index, 0, 0
        stored_index, _, used = state
        return (index, used, 0) if stored_index == index - 1 else state

    def _decayed_ns(self, count: int, room: int) -> int:
        """Returns the time into a window after which `count` of the window before weigh at most `room`."""
        if count <= room:
            return 0
        return self.period_ns - ((room + 1) * self.period_ns - 1) // count

    def wait_ns(self, state: CounterPair | None, now_ns: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        index, previous, used = self._windows_at(state, now_ns)
        room = self.limit - used - cost
        if room >= 0:
            at_ns = index * self.period_ns + self._decayed_ns(previous, room)
        else:
            at_ns = (index + 1) * self.period_ns + self._decayed_ns(used, self.limit - cost)
        return max(0, at_ns - now_ns)

    def spend(self, state: CounterPair | None, at_ns: int, cost: int) -> CounterPair:
        index, previous, used = self._windows_at(state, at_ns)
        return index, previous, used + cost

    def admit(self, state: CounterPair | None, now_ns: int, cost: int) -> CounterPair | None:
        period_ns = self.period_ns
        if state is not None and state[0] == now_ns // period_ns:  # the usual case, without a call
            index, previous, used = state
        else:
            index, previous, used = self._windows_at(state, now_ns)
        left_ns = (index + 1) * period_ns - now_ns
        used += cost
        if used + previous * left_ns // period_ns > self.limit or left_ns > period_ns:
            return None
        return index, previous, used

    def refund(self, state: CounterPair, now_ns: int, cost: int) -> CounterPair | None:
        """Takes from the present window first, then from the one before.

        With a booking ahead these are its windows. They may both lie after the present one, whose count is
        gone then, so they stay when they are empty.
        """
        index, previous, used = self._windows_at(state, now_ns)
        excess = max(0, cost - used)
        previous, used = max(0, previous - excess), max(0, used - cost)
        is_ahead = index * self.period_ns > now_ns
        return (index, previous, used) if previous or used or is_ahead else None

    def status(self, state: CounterPair | None, now_ns: int) -> KeyStatus:
        index, previous, used = self._windows_at(state, now_ns)
        start_ns = index * self.period_ns
        if used:
            reset_ns = start_ns + self.period_ns + self._decayed_ns(used, 0) - now_ns
        else:
            reset_ns = max(0, start_ns + self._decayed_ns(previous, 0) - now_ns) if previous else 0
        if start_ns > now_ns:
            return (0, max(reset_ns, start_ns - now_ns))
        weighed = previous * (start_ns + self.period_ns - now_ns) // self.period_ns
        return (max(0, self.limit - used - weighed), reset_ns)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> CounterRule:
        reject_burst(burst)
        return CounterRule(limit or self.limit, period_ns or self.period_ns)

    def pack(self, state: CounterPair) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> CounterPair:
        index, previous, used = numbers
        return index + -(-shift_ns // self.period_ns), previous, used  # rounded to the later window

    def convert(self, old: CounterRule, state: CounterPair, now_ns: int) -> CounterPair | None:
        """Keeps the counts; with another period they count in the present windows of this rule."""
        index, previous, used = old._windows_at(state, now_ns)
        if old.period_ns == self.period_ns:
            return index, previous, used
        return now_ns // self.period_ns, previous, used


class SlidingCounter(AdmittingLimiter):
    """Sliding window counter: about `limit` requests of a key in any `period`, from two counters.

    Estimates the last period as used + before * (1 - x): the count of the present window, and the part of the
    window before that still lies in the period, as if its requests had been spread evenly. Never admits
    more than `limit` in one window, by the clock's whole multiples of the period, and refuses only when that
    estimate would pass the limit. As it is an estimate, a burst at the end of one window and another late in
    the next may put twice the limit into one period; where that matters, take `SlidingLog`.

    Cloudflare described the algorithm in 2017, and many libraries offer it. Costs
    some 100 bytes per key without the key itself.

    Args:
        limit: Requests in any period, by the estimate; a whole number from 1.
        period: Length of a window in seconds, or a timedelta; above 0.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, counts all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
            Windows are multiples of the period by this clock, so with `time.time_ns` they are those of the
            wall clock.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for keys that several processes share; None, the default, keeps them here.

    Raises:
        ValueError: A limit or `max_keys` below 1, a period below one nanosecond, or an unknown `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> clock = ManualClock()
        >>> counter = SlidingCounter(limit=2, period=60, clock=clock)
        >>> [counter.allow("acme") for _ in range(3)]
        [True, True, False]
        >>> clock.advance(90)  # half of the first window lies in the period: it weighs 1
        >>> counter.peek("acme").remaining
        1
    """

    __slots__ = ()

    def __init__(
        self,
        limit: int,
        period: Period,
        *,
        max_keys: int = KEYS_MAX,
        overflow: Overflow = "shared",
        clock: NanosecondClock = time.monotonic_ns,
        name: str = "",
        store: LimiterStore | None = None,
    ) -> None:
        self._init(CounterRule(limit, to_ns(period)), max_keys, overflow, clock, name, store)
