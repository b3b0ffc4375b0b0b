"""The truth about locks that operators set and clear.

An act says what it is about to do; the next commit must do exactly that. Everything else keeps the locks that
were set by hand and the hold-offs as they are, until they end by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from analyzer.judging.locks.lock_feed import MANUAL
from gatekeeper.model import LockKey
from tests.simulation.database import SimulatedDatabase
from tests.simulation.policies.commits import Wrong

HOLD_OFFS = "select scope, key, resource, policy, until_ms from hold_offs where until_ms > ?"
LOCKS = "select scope, key, resource, policy, until_ms, action from locks where until_ms > ?"


class PresentLock(NamedTuple):
    """The end and the action of a lock in force."""

    until_ms: int
    action: str


class HandAct(NamedTuple):
    """An operator locks a caller for a time, or clears its locks and holds them off."""

    caller: str
    sets_ms: int = 0  # the length of a lock; 0: it clears
    holds_off_ms: int | None = None  # from the act on; None: until the lock would have ended


@dataclass
class HandState:
    """Hold-offs and locks by hand, by their ends; goes back with the database when a dump is restored."""

    held_off: dict[LockKey, int] = field(default_factory=dict)
    manual: dict[LockKey, int] = field(default_factory=dict)
    locks: dict[LockKey, PresentLock] = field(default_factory=dict)  # all that were in force
    has_cleared: bool = False  # an operator, at any time


class HandTruth:
    """Compares hold-offs and locks by hand after each commit. Raises Wrong."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self.state = HandState()
        self._database = database
        self.cleared: Collection[LockKey] = ()  # by the commit that was checked last
        self._act: HandAct | None = None

    @contextmanager
    def doing(self, act: HandAct) -> Iterator[None]:
        """Commits within are by this act."""
        self._act = act
        try:
            yield
        finally:
            self._act = None

    def check(self, *, is_clock_believed: bool) -> None:
        """Compares the hold-offs and the locks in force with those before the commit and the act.

        While the database's clock is ahead, or was and no analyzer knows it yet, hold-offs may end by it.
        """
        self.cleared = ()
        state, now_ms = self.state, round(self._database.clock_s() * 1000)
        found = {LockKey(*row[:4]): row[4] for row in self._database.read(HOLD_OFFS, now_ms)}
        locks = {LockKey(*row[:4]): PresentLock(*row[4:]) for row in self._database.read(LOCKS, now_ms)}
        if self._act is not None:
            self._do(self._act, locks, now_ms)
        for name, expected, there in (
            ("hold-offs", state.held_off, found),
            ("locks by hand", state.manual, {at: locks[at].until_ms for at in locks if at.policy == MANUAL}),
        ):
            lasting = {at: until_ms for at, until_ms in expected.items() if until_ms > now_ms}
            if there != lasting and is_clock_believed:
                raise Wrong(f"{name}: {there}, and must be {lasting}")
            expected.clear()
            expected.update(there)
        for at in locks.keys() & found.keys():
            if locks[at] != state.locks.get(at):
                raise Wrong(f"{at}: locked, and held off until {found[at]}")
        state.locks = locks

    def _do(self, act: HandAct, locks: Mapping[LockKey, PresentLock], now_ms: int) -> None:
        state = self.state
        if act.sets_ms:
            at = LockKey("caller", act.caller, "", MANUAL)
            if at in locks:  # committed
                state.manual[at] = now_ms + act.sets_ms
            return
        for at, before in state.locks.items():
            is_cleared = (at.scope, at.key) == ("caller", act.caller) and before.until_ms > now_ms
            if not is_cleared or before.action == "shadow":
                continue
            if at in locks:
                raise Wrong(f"{at}: cleared, and there is {locks[at]}")
            self.cleared = {*self.cleared, at}
            state.manual.pop(at, None)
            state.has_cleared = True
            if at.policy != MANUAL and act.holds_off_ms != 0:
                holds_ms = act.holds_off_ms
                state.held_off[at] = before.until_ms if holds_ms is None else now_ms + holds_ms

    def held_off(self, now_ms: int) -> Collection[LockKey]:
        """Returns the locks that must not be set now, and those that were cleared just now."""
        return {*self.cleared, *(at for at, until_ms in self.state.held_off.items() if until_ms > now_ms)}
