"""Negative cache: keys that the store refuses, and until when, so that they cost no round trip."""

from __future__ import annotations

from typing import Final, NamedTuple

from gatekeeper.limits.engine.protocol import Key, NanosecondClock
from gatekeeper.limits.engine.units import MICROSECOND_NS, SECOND_NS, to_seconds
from gatekeeper.model import Decision

# Some 30 MB. A refusal that is dropped costs one more round trip; no decision changes.
REFUSALS_MAX: Final = 100_000


class CachedRefusal(NamedTuple):
    """A refusal, and how long it holds unless permits are given back."""

    decision: Decision
    cost: int
    received_ns: int
    until_ns: int


class RefusalCache:
    """The latest refusals, at most `REFUSALS_MAX` in two generations, by this process's clock.

    A refusal holds from the moment at which the call was *sent*: the store decided no earlier, so its wait
    ends no earlier either, and no request is refused for longer than the store would refuse it.
    """

    __slots__ = ("_clock", "_longest_ns", "_old", "_young")

    def __init__(self, clock: NanosecondClock, longest_ns: int | None) -> None:
        self._clock = clock
        self._longest_ns = longest_ns  # None: to the refusal's end
        self._young: dict[Key, CachedRefusal] = {}
        self._old: dict[Key, CachedRefusal] = {}

    def find(self, key: Key, cost: int) -> Decision | None:
        """Returns the store's refusal of `cost`, with the time that is left by now; None when not known."""
        cached = self._young.get(key) or self._old.get(key)
        if cached is None or cached.cost != cost:
            return None
        now_ns = self._clock()
        if now_ns >= cached.until_ns:
            return None
        passed_ns = now_ns - cached.received_ns
        decision = cached.decision
        return decision._replace(
            retry_after=_reduced(decision.retry_after, passed_ns),
            reset_after=_reduced(decision.reset_after, passed_ns),
        )

    def refuses(self, key: Key, cost: int) -> bool:
        """Whether `cost` is known to be refused, because this or a lower cost was."""
        cached = self._young.get(key) or self._old.get(key)
        return cached is not None and cost >= cached.cost and self._clock() < cached.until_ns

    def add(self, key: Key, cost: int, decision: Decision, sent_ns: int, wait_us: int) -> None:
        """Stores a refusal of a call that was sent at `sent_ns`; it holds for `wait_us`."""
        wait_ns = wait_us * MICROSECOND_NS
        if self._longest_ns is not None:
            wait_ns = min(wait_ns, self._longest_ns)
        if len(self._young) >= REFUSALS_MAX // 2:
            self._old, self._young = self._young, {}
        self._young[key] = CachedRefusal(decision, cost, self._clock(), sent_ns + wait_ns)

    def forget(self, key: Key) -> None:
        """Drops the refusal of `key`, because permits were given back."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drops all refusals, because the limit changed."""
        self._young, self._old = {}, {}


def _reduced(duration: float | None, passed_ns: int) -> float:
    return to_seconds(max(0, round((duration or 0.0) * SECOND_NS) - passed_ns))
