"""Leaky bucket as a queue: callers wait their turn and leave one by one, evenly."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import gcd

from gatekeeper.limits.engine.key_states import KEYS_MAX
from gatekeeper.limits.engine.protocol import KeyStatus, LimiterStore, NanosecondClock, Overflow, Period
from gatekeeper.limits.engine.rate_limiter import AdmittingLimiter
from gatekeeper.limits.engine.units import format_seconds, reject_burst, to_ns, whole_number


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Schedule of one departure every period / limit, booked at most `queue` departures ahead.

    The state is when the next may leave, in ticks as in `GcraRule`: nothing rounds.
    """

    limit: int
    period_ns: int
    queue: int
    scale: int = field(init=False)  # ticks per nanosecond
    interval: int = field(init=False)  # ticks between departures

    def __post_init__(self) -> None:
        whole_number(self.limit, "limit")
        whole_number(self.queue, "queue", least=0)
        common = gcd(self.limit, self.period_ns)
        object.__setattr__(self, "scale", self.limit // common)
        object.__setattr__(self, "interval", self.period_ns // common)

    @property
    def decision_limit(self) -> int:
        return self.limit

    @property
    def description(self) -> str:
        return f"{self.limit} per {format_seconds(self.period_ns)}, one by one"

    @property
    def forget_after_ns(self) -> int:
        return -(-self.interval // self.scale)

    @property
    def max_ahead_ns(self) -> int:
        return -(-self.queue * self.interval // self.scale)

    def wait_ns(self, state: int | None, now_ns: int, cost: int) -> int | None:
        if cost > 1:
            return None  # they leave one by one
        ahead = 0 if state is None or not cost else state - now_ns * self.scale
        return -(-ahead // self.scale) if ahead > 0 else 0

    def spend(self, state: int | None, at_ns: int, cost: int) -> int:
        moment = at_ns * self.scale
        return (moment if state is None or state < moment else state) + cost * self.interval

    def admit(self, state: int | None, now_ns: int, cost: int) -> int | None:
        now = now_ns * self.scale
        if cost > 1 or (state is not None and state > now):
            return None
        return now + cost * self.interval

    def refund(self, state: int, now_ns: int, cost: int) -> int | None:
        """Changes nothing: with a departure taken back, two others would lie less than a turn apart."""
        return state

    def status(self, state: int | None, now_ns: int) -> KeyStatus:
        ahead = self.wait_ns(state, now_ns, 1) or 0
        return (int(not ahead), ahead)

    def with_limits(self, limit: int | None, period_ns: int | None, burst: int | None) -> QueueRule:
        reject_burst(burst)
        return QueueRule(limit or self.limit, period_ns or self.period_ns, self.queue)

    def pack(self, state: int) -> list[int]:
        return [state]

    def unpack(self, numbers: list[int], shift_ns: int) -> int:
        return numbers[0] + shift_ns * self.scale

    def convert(self, old: QueueRule, state: int, now_ns: int) -> int | None:
        """Keeps the time of the next turn; the turns after it follow at the new rate."""
        wait_ns = old.wait_ns(state, now_ns, 1)
        return (now_ns + wait_ns) * self.scale if wait_ns else None


class LeakyQueue(AdmittingLimiter):
    """Leaky bucket as a queue: requests of one key leave one by one, period / limit apart.

    Departures are never closer than period / limit, in order of arrival, and a request is turned away only
    when `queue` wait already. `wait` and `guard` wait for the turn; `reserve` books one, at most `queue`
    turns ahead; `allow` and `check` pass when no wait is necessary. A cost above 1 never passes, and a
    refund changes nothing: a departure cannot be taken back.

    Source: the leaky bucket as Tanenbaum's "Computer Networks" has it, as a schedule of departures. Costs
    some 75 bytes per key without the key itself.

    Args:
        limit: Departures per period; a whole number from 1.
        period: Seconds in which `limit` requests leave, or a timedelta; above 0.
        queue: Requests of one key that may wait; a whole number from 0, 100 by default.
        max_keys: Keys that are held at most; one million by default.
        overflow: Decides about a key that finds `max_keys` live keys: "shared", the default, queues all such
            keys as one; "deny" refuses them, "allow" admits them. `overflowed` counts their requests.
        clock: Returns the time in whole nanoseconds since any moment; `time.monotonic_ns` by default.
        name: The policy that refusals name; with a store also the name that processes share it by.
        store: A `RedisStore` for keys that several processes share; None, the default, keeps them here.

    Raises:
        ValueError: A limit or `max_keys` below 1, a queue below 0, a period below one nanosecond, or an
            unknown `overflow`.

    Example:
        >>> from gatekeeper.testing import ManualClock
        >>> queue = LeakyQueue(limit=10, period=1, queue=2, clock=ManualClock())
        >>> [queue.reserve("printer").delay for _ in range(3)], bool(queue.reserve("printer"))
        ([0.0, 0.1, 0.2], False)
    """

    __slots__ = ()

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
        self._init(QueueRule(limit, to_ns(period), queue), max_keys, overflow, clock, name, store)
        self._keys.max_waiters = queue
