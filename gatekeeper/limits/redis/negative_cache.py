"""Who is known to be refused, and until when: for them nobody asks the store."""

from __future__ import annotations

from typing import Final, NamedTuple

from gatekeeper.limits.engine.protocol import Key, NanosecondClock
from gatekeeper.limits.engine.units import MICROSECOND_NS, SECOND_NS, to_seconds
from gatekeeper.model import Decision

REFUSALS_MAX: Final = 100_000  # some 30 MB; who is forgotten costs a round trip more, no answer changes


class CachedRefusal(NamedTuple):
    """What a store said, and for how long that holds if nobody gives anything back."""

    decision: Decision
    cost: int
    heard_ns: int
    until_ns: int


class RefusalCache:
    """The latest refusals, at most `REFUSALS_MAX` of them in two generations, by this process's clock.

    A refusal holds from the moment at which the question was *sent*: the store decided no earlier,
    so its own wait ends no earlier either, and nobody is refused for longer than by asking.
    """

    __slots__ = ("_clock", "_longest_ns", "_old", "_young")

    def __init__(self, clock: NanosecondClock, longest_ns: int | None) -> None:
        self._clock = clock
        self._longest_ns = longest_ns  # how long a refusal is believed; None: to its end
        self._young: dict[Key, CachedRefusal] = {}
        self._old: dict[Key, CachedRefusal] = {}

    def find(self, key: Key, cost: int) -> Decision | None:
        """What the store would say about `cost`, when that is known: as it said, with less time left."""
        known = self._young.get(key) or self._old.get(key)
        if known is None or known.cost != cost:
            return None
        now_ns = self._clock()
        if now_ns >= known.until_ns:
            return None
        passed_ns = now_ns - known.heard_ns
        said = known.decision
        return said._replace(
            retry_after=_less(said.retry_after, passed_ns), reset_after=_less(said.reset_after, passed_ns)
        )

    def refuses(self, key: Key, cost: int) -> bool:
        """Whether `cost` is known to be refused, because it was or because less was."""
        known = self._young.get(key) or self._old.get(key)
        return known is not None and cost >= known.cost and self._clock() < known.until_ns

    def add(self, key: Key, cost: int, decision: Decision, asked_ns: int, wait_us: int) -> None:
        """Remember what was said to a question that was sent at `asked_ns`."""
        wait_ns = wait_us * MICROSECOND_NS
        if self._longest_ns is not None:
            wait_ns = min(wait_ns, self._longest_ns)
        if len(self._young) >= REFUSALS_MAX // 2:
            self._old, self._young = self._young, {}
        self._young[key] = CachedRefusal(decision, cost, self._clock(), asked_ns + wait_ns)

    def forget(self, key: Key) -> None:
        """Something was given back to `key`."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """The limit is another one."""
        self._young, self._old = {}, {}


def _less(duration: float | None, passed_ns: int) -> float:
    return to_seconds(max(0, round((duration or 0.0) * SECOND_NS) - passed_ns))
