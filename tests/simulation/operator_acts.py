"""Acts of operators on limits and locks; see `acts`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, ClassVar

from analyzer.callers.caller_changes import (
    OverrideRequest,
    UnknownPolicy,
    add_override,
    end_override,
    stored_overrides,
)
from analyzer.judging.caller_limits import Subject
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, clear_locks, set_locks
from analyzer.judging.locks.suspension import resume, suspend
from analyzer.judging.sql.braked_policies import release_policy
from analyzer.kernel.by import By
from tests.simulation.acts import Act, Size
from tests.simulation.policies.by_hand import HandAct
from tests.simulation.policies.plans import CALLERS

if TYPE_CHECKING:
    from tests.simulation.world import World

BY_HAND = By("ann", "test")


@dataclass(frozen=True)
class Suspend(Act):
    """An operator suspends all locks."""

    seconds: float

    weight: ClassVar[int] = 1

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Suspend:
        return cls(random.choice((0.5, 4.0, 30.0, 30.0)))

    def do(self, world: World) -> bool:
        suspend(world.database.engine, int(self.seconds * 1000), "ann", "test", world.new_mark)
        return True


@dataclass(frozen=True)
class Resume(Act):
    """An operator ends a suspension."""

    weight: ClassVar[int] = 3
    cause: ClassVar[type[Act] | None] = Suspend

    def do(self, world: World) -> bool:
        return resume(world.database.engine, "ann", "test", world.new_mark)


@dataclass(frozen=True)
class Override(Act):
    """An operator gives a caller another daily limit."""

    caller: str
    limit: int

    weight: ClassVar[int] = 4

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Override:
        return cls(random.choice(CALLERS), random.choice((3, 8, 16, 60)))

    def do(self, world: World) -> bool:
        asked = OverrideRequest("limit", Subject("caller", f"api_key:{self.caller}"), "daily", self.limit)
        try:
            add_override(world.database.engine, asked, "ann", "test", world.new_mark)
        except UnknownPolicy:  # another plan is in force
            return False
        return True


@dataclass(frozen=True)
class EndOverrides(Act):
    """An operator ends all overrides."""

    weight: ClassVar[int] = 2
    cause: ClassVar[type[Act] | None] = Override

    def do(self, world: World) -> bool:
        engine = world.database.engine
        found = list(stored_overrides(engine, ("limit",)))
        for one in found:
            end_override(engine, one.id, ("limit",), "ann", "test", world.new_mark)
        return bool(found)


@dataclass(frozen=True)
class SetLock(Act):
    """An operator locks a caller."""

    caller: str
    seconds: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> SetLock:
        return cls(random.choice(CALLERS), random.choice((2.0, 9.0)))

    def do(self, world: World) -> bool:
        key, length_ms = f"api_key:{self.caller}", round(self.seconds * 1000)
        with world.truth.by_hand.doing(HandAct(key, sets_ms=length_ms)):
            set_locks(
                world.database.engine, [LockTarget("caller", key)], length_ms, Effect(), BY_HAND,
                world.new_mark,
            )  # fmt: skip
        return True


@dataclass(frozen=True)
class ClearLocks(Act):
    """An operator clears the locks of a caller, and holds them off; without a time, until their ends."""

    caller: str
    holds_off_s: float | None

    weight: ClassVar[int] = 4

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> ClearLocks:
        return cls(random.choice(CALLERS), random.choice((None, 0.0, 2.0, 10.0)))

    def do(self, world: World) -> bool:
        key = f"api_key:{self.caller}"
        holds_ms = None if self.holds_off_s is None else round(self.holds_off_s * 1000)
        with world.truth.by_hand.doing(HandAct(key, holds_off_ms=holds_ms)):
            cleared = clear_locks(
                world.database.engine, [LockTarget("caller", key)], None, holds_ms, BY_HAND, world.new_mark
            )
        return bool(cleared)


@dataclass(frozen=True)
class Release(Act):
    """An operator enforces a policy again that its brake holds; in written stories alone."""

    policy: str

    weight: ClassVar[int] = 0

    def do(self, world: World) -> bool:
        with world.truth.brakes.releasing(self.policy):
            found = release_policy(world.database.engine, self.policy, "ann", "test", world.new_mark)
        return found is not None
