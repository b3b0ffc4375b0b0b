"""Encoding of a rule for its Lua script, and decoding of the script's numbers.

A store counts whole microseconds, so a rule is first converted to them; a period that is not a whole number
of microseconds becomes the next longer one, which never admits more. In this module the `..._ns` fields of
such converted rules contain microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gatekeeper.limits.algorithms.fixed_window import WindowRule
from gatekeeper.limits.algorithms.gcra import GcraRule
from gatekeeper.limits.algorithms.leaky_queue import QueueRule
from gatekeeper.limits.algorithms.sliding_counter import CounterRule
from gatekeeper.limits.algorithms.sliding_log import LogRule
from gatekeeper.limits.engine.protocol import KeyStatus, Rule
from gatekeeper.limits.engine.units import MICROSECOND_NS

# Lua has doubles for numbers: whole ones are exact below 2**53.
PERIOD_US_MAX: Final = 1 << 43  # 101 days
CAPACITY_US_MAX: Final = 1 << 52  # 142 years until a bucket is full
LIMIT_MAX: Final = 1 << 40


class ScriptProtocol(Protocol):
    """The script's arguments and results for one rule."""

    @property
    def kind(self) -> str:
        """The Lua file that decides by such rules, without its suffix."""

    @property
    def size(self) -> int:
        """Count of the numbers that it returns."""

    def arguments(self, cost: int) -> tuple[int, ...]:
        """Returns the script's arguments after the kind."""

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        """Returns what the key has left, in microseconds, from the numbers that the script returned."""


@dataclass(frozen=True, slots=True)
class GcraScript:
    rule: GcraRule
    kind: str = "gcra"
    size: int = 2

    def arguments(self, cost: int) -> tuple[int, ...]:
        rule = self.rule
        ticks = (*divmod(cost * rule.interval, rule.scale), *divmod(rule.capacity, rule.scale))
        return (rule.scale, rule.rate, rule.period_ns, rule.burst, 0, -1, *ticks)

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        due_us, part = numbers
        rule = self.rule
        missing = max(0, (due_us - now_us) * rule.scale + part)
        return (max(0, (rule.capacity - missing) // rule.interval), -(-missing // rule.scale))


@dataclass(frozen=True, slots=True)
class QueueScript:
    """A queue as a bucket of one permit, in which bookings lie a bounded number of turns ahead."""

    rule: QueueRule
    kind: str = "gcra"
    size: int = 2

    def arguments(self, cost: int) -> tuple[int, ...]:
        rule = self.rule
        ticks = (*divmod(cost * rule.interval, rule.scale), *divmod(rule.interval, rule.scale))
        return (rule.scale, rule.limit, rule.period_ns, 1, 1, rule.max_ahead_ns, *ticks)

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        due_us, part = numbers
        ahead_us = max(0, due_us - now_us + (part > 0))
        return (int(not ahead_us), ahead_us)


@dataclass(frozen=True, slots=True)
class WindowScript:
    rule: WindowRule
    kind: str = "window"
    size: int = 2

    def arguments(self, cost: int) -> tuple[int, ...]:
        return (self.rule.limit, self.rule.period_ns, int(self.rule.aligned))

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        start_us, used = numbers
        end_us = start_us + self.rule.period_ns
        if start_us < 0 or now_us >= end_us:
            return (self.rule.limit, 0)
        remaining = max(0, self.rule.limit - used) if start_us <= now_us else 0
        return (remaining, end_us - now_us)


@dataclass(frozen=True, slots=True)
class CounterScript:
    rule: CounterRule
    kind: str = "counter"
    size: int = 3

    def arguments(self, cost: int) -> tuple[int, ...]:
        return (self.rule.limit, self.rule.period_ns)

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        index, previous, used = numbers
        period_us = self.rule.period_ns
        start_us = index * period_us
        end_us = start_us + period_us
        if not used and not previous:
            ahead_us = max(0, start_us - now_us)  # the empty windows of a booking that was refunded
            return (0 if ahead_us else self.rule.limit, ahead_us)
        # Until the last of them weighs less than one whole request.
        reset_us = (end_us if used else start_us) + period_us - (period_us - 1) // (used or previous)
        weighed = previous * (end_us - now_us) // period_us
        remaining = self.rule.limit - used - weighed if start_us <= now_us else 0
        return (max(0, remaining), max(0, reset_us - now_us))


@dataclass(frozen=True, slots=True)
class LogScript:
    rule: LogRule
    kind: str = "log"
    size: int = 2

    def arguments(self, cost: int) -> tuple[int, ...]:
        return (self.rule.limit, self.rule.period_ns)

    def status(self, numbers: Sequence[int], now_us: int) -> KeyStatus:
        live, newest_us = numbers
        if not live:
            return (self.rule.limit, 0)
        remaining = self.rule.limit - live if newest_us <= now_us else 0
        return (max(0, remaining), newest_us + self.rule.period_ns - now_us)


def choose_script(rule: Rule[Any]) -> ScriptProtocol:
    """Returns the protocol for `rule`.

    Raises ValueError for numbers that a script cannot hold, TypeError for a rule without a script.
    """
    match _in_microseconds(rule):
        case GcraRule() as bucket:
            if bucket.forget_after_ns >= CAPACITY_US_MAX:
                raise ValueError("burst: expected a bucket in a store to be full again within 142 years")
            return GcraScript(bucket)
        case QueueRule() as queue:
            return QueueScript(queue)
        case WindowRule() as window:
            return WindowScript(window)
        case CounterRule() as counter:
            return CounterScript(counter)
        case LogRule() as log:
            return LogScript(LogRule(log.limit, log.period_ns))
        case unsupported:
            raise TypeError(f"store: limiters with a {type(unsupported).__name__} cannot be kept in a store")


def _in_microseconds(rule: Any) -> Any:
    period_us = -(-rule.period_ns // MICROSECOND_NS)
    if period_us >= PERIOD_US_MAX:
        raise ValueError("period: expected at most 100 days in a store")
    if rule.limit >= LIMIT_MAX:
        raise ValueError(f"limit: expected less than {LIMIT_MAX:,} in a store, got {rule.limit:,}")
    return rule.with_limits(None, period_us, None)
