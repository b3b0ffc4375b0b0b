"""Fixed window: a counter that starts again with each window."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import KeyStatus, LimiterStore, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.rate_limiter import AdmittingLimiter
from gatekeeper.limits.engine.units import format_seconds, reject_burst, require_bool, to_ns, whole_number

# Start of the window in nanoseconds, and requests that passed in [start, start + period). Not a NamedTuple,
# which takes three times as long to create; each request that passes creates one.
WindowState = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowRule:
    """At most `limit` in each window.

    The first window begins with a key's first request; with `aligned` all windows begin at whole multiples
    of the period by the clock.
    """

    limit: int
    period_ns: int
    aligned: bool

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")

    @property
    def decision_limit(self) -> int:
        return self.limit

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

    def refund(self, state: WindowState, now_ns: int, cost: int) -> WindowState | None:
        """Gives back permits of the present window; changes nothing while a booking lies ahead.

        The state is then the booked window, and the count of the present one is gone. No request may pass
        before the booking anyway; a reservation that is not wanted is given back by `cancel`.
        """
        start_ns, used = state
        if start_ns > now_ns:
            return state
        return (start_ns, used - cost) if used > cost else None

    def status(self, state: WindowState | None, now_ns: int) -> KeyStatus:
        if state is None or now_ns >= state[0] + self.period_ns:
            return (self.limit, 0)
        start_ns, used = state
        remaining = self.limit - used if start_ns <= now_ns else 0
        return (max(0, remaining), start_ns + self.period_ns - now_ns)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> WindowRule:
        reject_burst(burst)
        return WindowRule(limit or self.limit, period_ns or self.period_ns, self.aligned)

    def pack(self, state: WindowState) -> list[int]:
        return list(state)

    def unpack(self, numbers: list[int], shift_ns: int) -> WindowState:
        """Returns a packed window, by a clock that is `shift_ns` ahead of the one it was packed by.

        An aligned window is moved on to the next start of a window by that clock, so that together with
        the time before it is never shorter than a period: of three windows that lie in one period, all
        could admit the limit.
        """
        start_ns, used = numbers[0] + shift_ns, numbers[1]
        if self.aligned and shift_ns:
            start_ns = -(-start_ns // self.period_ns) * self.period_ns
        return start_ns, used

    def convert(self, old: WindowRule, state: WindowState, now_ns: int) -> WindowState | None:
        """Keeps the window and its count; its end follows the new period.

        If windows are aligned, the count of one that is not over moves to the present window of the new
        period: also from a limiter whose windows were not aligned.
        """
        start_ns, used = state
        if not self.aligned or (self.period_ns == old.period_ns and start_ns % self.period_ns == 0):
            return state
        if now_ns >= start_ns + old.period_ns:
            return None
        at_ns = max(start_ns, now_ns)  # a start after now is a booking's
        return at_ns - at_ns % self.period_ns, used


class FixedWindow(AdmittingLimiter):
    """Fixed window counter: at most `limit` requests of a key in each window of `period`.

    Never admits more than `limit` in a window, and refuses only what would break that. The simplest
    limiter to explain, and the least exact: a stretch of one period may lie across two windows and so hold
    up to twice the limit. A key's windows begin with its first request, or with `aligned` on the clock.

    Costs some 125 bytes per key without the key itself.

    Args:
        limit: Requests that may pass in one window; a whole number from 1.
        period: Length of a window in seconds, or a timedelta; above 0.
        aligned: True begins the windows of all keys at whole multiples of the period by the clock: with
            `clock=time.time_ns` and a period of 60 at each full minute. False, the default, begins a key's
            first window with its first request.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, counts all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for keys that several processes share; None, the default, keeps them here.

    Raises:
        ValueError: A limit or `max_keys` below 1, a period below one nanosecond, or an unknown `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> window = FixedWindow(limit=2, period=60, clock=ManualClock())
        >>> [window.allow("acme") for _ in range(3)], window.check("acme").retry_after
        ([True, True, False], 60.0)
    """

    __slots__ = ()

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
        require_bool(aligned, "aligned")
        self._init(WindowRule(limit, to_ns(period), aligned), max_keys, overflow, clock, name, store)
