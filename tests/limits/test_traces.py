"""Random traces of many calls on several keys, compared with a slow oracle that forgets nothing.

A limiter forgets a key when two generations have passed since its last write. It must not lose a key that is
in use: each write rotates the generations when that is due, or the limiter keeps a generation longer
(`KeyStates.rotates_on_write`). What can break this are long stretches in which one key alone is written,
followed by newcomers, peeks, or a change of limit, which rotate.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from gatekeeper.limits.engine.key_states import KeyStates
from tests.limits.memory_kinds import KINDS, Kind
from tests.limits.oracles import StepClock

PERIOD_NS = 1000
LOOKS = ("peek", "newcomer", "check", "refund", "reset", "reserve and cancel", "configure")


class Trace:
    """One limiter beside one oracle for each key, through the same calls."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.clock = StepClock(self.chance.choice([0, 123_456_789]))
        self.limit = self.chance.randint(2, 9)
        self.limiter = kind.make(self.limit, PERIOD_NS, self.clock)
        self.oracles: dict[str, Any] = defaultdict(lambda: kind.oracle(self.limit, PERIOD_NS))
        self.newcomers = 0

    def play_and_compare(self) -> None:
        """One key is hammered for up to six periods and more, then something else happens; several times."""
        for _ in range(8):
            busy = self.chance.choice(["a", "b"])
            for _ in range(self.chance.choice([3, 30, 250])):
                self.clock.now_ns += self.chance.randint(1, 50)
                assert self.limiter.allow(busy) == self.oracles[busy].allow(self.clock.now_ns, 1), busy
            for _ in range(self.chance.randint(1, 4)):
                self.look(self.chance.choice(LOOKS))
            self.clock.now_ns += self.chance.choice([0, 0, 700, 2500])

    def decide(self, key: str, cost: int) -> None:
        call = self.chance.choice(["allow", "allow", "check"])
        decide: Callable[[str, int], Any] = getattr(self.limiter, call)
        assert bool(decide(key, cost)) == self.oracles[key].allow(self.clock.now_ns, cost), key

    def look(self, action: str) -> None:
        key, cost, now_ns = self.chance.choice("ab"), self.chance.randint(1, 2), self.clock.now_ns
        if action == "peek":
            assert self.limiter.peek(key).remaining == max(0, self.oracles[key].remaining(now_ns))
        elif action == "newcomer":
            self.newcomers += 1
            self.decide(f"new {self.newcomers}", 1)
        elif action == "check":
            self.decide(key, cost)
        elif action == "refund":
            self.limiter.refund(key, cost)
            self.oracles[key].refund(now_ns, cost)
        elif action == "reset":
            self.limiter.reset(key)
            self.oracles.pop(key, None)
        elif action == "reserve and cancel":
            booked = self.limiter.reserve(key, 1)
            assert not booked or booked.cancel()
        else:
            self.limit = self.chance.randint(2, 9)
            self.limiter.configure(limit=self.limit)
            for known, old in list(self.oracles.items()):
                self.oracles[known] = self.kind.oracle(self.limit, PERIOD_NS)
                self.oracles[known].adopt(old, now_ns)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_no_key_in_use_is_forgotten_in_any_trace(kind: Kind):
    for seed in range(40):
        trace = Trace(kind, seed)
        try:
            trace.play_and_compare()
        except AssertionError as difference:
            difference.add_note(f"seed {seed}, at {trace.clock.now_ns} ns")
            raise


class WatchedStates(dict[Any, Any]):
    """A generation that notes a write while a rotation is due."""

    keys_of: KeyStates[Any]
    late: list[str]

    def __setitem__(self, key: Any, state: Any) -> None:
        if self.keys_of.clock() >= self.keys_of.rotate_ns:
            self.late.append(key)
        super().__setitem__(key, state)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_each_write_rotates_first_unless_the_limiter_says_otherwise(kind: Kind):
    late: list[str] = []
    for seed in range(10):
        trace = Trace(kind, seed)
        keys = trace.limiter._keys

        def rotate(now_ns: int, keys: KeyStates[Any] = keys, rotate=KeyStates.rotate) -> None:
            rotate(keys, now_ns)
            keys.young = WatchedStates(keys.young)
            keys.young.keys_of, keys.young.late = keys, late

        keys.__class__ = type(
            "WatchedKeys", (KeyStates,), {"__slots__": (), "rotate": lambda _, now_ns: rotate(now_ns)}
        )
        trace.play_and_compare()
        trace.limiter.allow("late")
        booked = trace.limiter.reserve("late")
        trace.clock.now_ns += 10 * PERIOD_NS
        booked.cancel()
    if kind.make(5, PERIOD_NS, StepClock())._keys.rotates_on_write:
        assert not late
    else:
        assert late, "the exception that `rotates_on_write` makes is no longer needed"
