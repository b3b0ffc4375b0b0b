"""Acts: what happens to the installation from outside, and to its processes.

An act refers to processes by number and does nothing where it cannot be done, so that a story stays valid
when acts are left out: a story that fails is shortened that way. `drawn` draws one of its kind, `weight` says
how often, `cause` which kind must come before each act of this kind, for it to do something.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from analyzer.plan.meters import DAY_S
from tests.simulation.applications import AnswerFault
from tests.simulation.database import FaultKind, SimulatedDatabase, StepFault
from tests.simulation.kafka_log import Logged, Topic
from tests.simulation.policies.plans import CALLERS, PLANS, RESOURCES

if TYPE_CHECKING:
    from tests.simulation.analyzers import SimulatedAnalyzer
    from tests.simulation.scheduler import Scheduler
    from tests.simulation.world import World

APPLICATIONS = 2
BAD_VALUES = (b"{", None, b'{"ts": "x"}', b'{"ts": 1795176000000, "key": "eve", "weight": -1}')


class Size(NamedTuple):
    """The size of an installation."""

    analyzers: int
    partitions: int


class Analyzers(Protocol):
    """Analyzers, and the log and the database that they use: all that a fault needs."""

    scheduler: Scheduler
    database: SimulatedDatabase
    topic: Topic
    analyzers: list[SimulatedAnalyzer]


class Act(ABC):
    """One act."""

    weight: ClassVar[int]  # the share of this kind among all acts that are drawn, compared with others
    cause: ClassVar[type[Act] | None] = None

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Act:
        """Returns an act of this kind; one without fields needs no chance."""
        return cls()

    @abstractmethod
    def do(self, world: World) -> bool:
        """Does it; returns whether that has an effect. Raises StoreAway where an operator's command fails."""


@dataclass(frozen=True)
class Requests(Act):
    """A caller asks an application, some times at once; the records arrive in the log later."""

    application: int
    caller: str
    resource: str
    count: int
    shipping_s: float
    partition: int
    size: int
    transaction: Literal["", "committed", "aborted"] = ""
    clock_s: float = 0.0  # added to the time in the records
    # The policy by which the records say that a gate denied them; None: they do not.
    forged: str | None = None
    stands_for: int = 1  # requests, by each record
    ids: str = ""  # what the ids of the records begin with; "": they have none

    weight: ClassVar[int] = 52

    def __str__(self) -> str:
        return (
            f"{self.caller} asks application {self.application} {self.count} times for {self.resource}; "
            f"logged {self.shipping_s:.2f} s later in partition {self.partition}"
            + (f", {self.transaction} transaction" if self.transaction else "")
            + (f", with a clock {self.clock_s:+g} s wrong" if self.clock_s else "")
            + (f", logged as denied by {self.forged!r}" if self.forged is not None else "")
            + (f", each for {self.stands_for}" if self.stands_for != 1 else "")
            + (f", with the ids {self.ids}0 and so on" if self.ids else "")
        )

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Requests:
        calm = cls.calm(random, size)
        return replace(
            calm,
            forged={3: "daily", 8: ""}.get(calm.size % 20),
            transaction=random.choice(("",) * 8 + ("committed", "aborted")),
            clock_s=random.choice((0.0,) * 12 + (-70.0, -9.0, 45.0, 100.0, -7_200.0)),
            stands_for=random.choice((1, 1, 1, 1, 1, 3)),
        )

    @classmethod
    def calm(cls, random: Random, size: Size) -> Requests:
        """Returns requests whose records have the right time, and are in no transaction."""
        drawn = cls(
            application=random.randrange(APPLICATIONS),
            caller=random.choice(CALLERS),
            resource=random.choice(RESOURCES),
            count=random.randrange(1, 9),
            shipping_s=random.choice((0.05, 0.2, 0.6)) * random.random(),
            partition=random.randrange(size.partitions),
            size=random.randrange(1_000),
        )
        return replace(drawn, resource="") if drawn.size % 8 == 0 else drawn  # without a path

    def do(self, world: World) -> bool:
        application = world.applications[self.application]
        records = [
            application.request(
                self.caller,
                self.resource,
                self.size,
                self.clock_s,
                self.forged,
                self.stands_for,
                f"{self.ids}{number}" if self.ids else "",
            )
            for number in range(self.count)
        ]
        world.note_requests(records, self.shipping_s)
        world.later(self.shipping_s, "records arrive", partial(self._ship, world, records))
        return True

    def _ship(self, world: World, records: list[Logged]) -> None:
        log = world.log(self.partition)
        if not self.transaction or log.open_from is not None:
            world.append(log, records)
            return
        producer = next(world.producers)
        log.begin_transaction(producer)
        log.append(records, world.wall_ms(), producer)
        end = partial(world.end_transaction, log, producer, commits=self.transaction == "committed")
        world.later(1.0, f"the transaction is {self.transaction}", end)


@dataclass(frozen=True)
class Backlog(Act):
    """Records of some time ago can be read at last, one batch each."""

    partition: int
    batches: int
    age_s: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Backlog:
        return cls(random.randrange(size.partitions), random.choice((20, 60)), random.choice((15.0, 90.0)))

    def do(self, world: World) -> bool:
        log = world.log(self.partition)
        if log.open_from is not None:
            return False
        at_ms = world.wall_ms() - round(self.age_s * 1000)
        for number in range(self.batches):
            caller = CALLERS[number % len(CALLERS)]
            record = world.applications[0].record(caller, RESOURCES[0], number, at_ms, is_denied=False)
            log.append([record], at_ms)
        world.truth.old_records_came(world.scheduler.now_s)
        world.announce()
        return True


@dataclass(frozen=True)
class BadRecords(Act):
    """Records that cannot be counted are written; the last ones could be with another mapping."""

    partition: int
    count: int

    weight: ClassVar[int] = 4

    @classmethod
    def drawn(cls, random: Random, size: Size) -> BadRecords:
        return cls(random.randrange(size.partitions), random.randrange(1, 6))

    def do(self, world: World) -> bool:
        records = [Logged(value, None) for value in BAD_VALUES[: self.count]]
        record = world.applications[0].record("eve", RESOURCES[0], 7, world.wall_ms(), is_denied=False)
        assert record.value is not None
        misnamed = record.value.replace(b'"ts"', b'"when"')
        world.append(world.log(self.partition), [*records, Logged(misnamed, None, record.expected)])
        return True


@dataclass(frozen=True)
class Retry(Act):
    """An operator retries all rejected records with a corrected mapping."""

    weight: ClassVar[int] = 3
    cause: ClassVar[type[Act] | None] = BadRecords

    def do(self, world: World) -> bool:
        return world.retry()


@dataclass(frozen=True)
class Fault(Act):
    """A process is killed, or its connection fails, some statements from now."""

    analyzer: int
    kind: FaultKind
    steps: int

    weight: ClassVar[int] = 8

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Fault:
        kind: FaultKind = random.choice(("kill", "kill", "cut", "lose the reply"))
        return cls(random.randrange(size.analyzers), kind, random.randrange(1, 60))

    def do(self, world: Analyzers) -> bool:
        analyzer = world.analyzers[self.analyzer]
        if analyzer.process.is_alive:
            world.database.faults[analyzer.name] = StepFault(self.kind, self.steps)
        return analyzer.process.is_alive


@dataclass(frozen=True)
class Kill(Act):
    """An analyzer is killed between two steps, and started again after a while."""

    analyzer: int
    away_s: float

    weight: ClassVar[int] = 4

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Kill:
        return cls(random.randrange(size.analyzers), random.choice((0.2, 1.0, 8.0)))

    def do(self, world: Analyzers) -> bool:
        analyzer = world.analyzers[self.analyzer]
        if not analyzer.process.is_alive:
            return False
        analyzer.restart_s = self.away_s
        analyzer.process.die()
        return True


@dataclass(frozen=True)
class Stop(Act):
    """An analyzer is stopped in good order, and started with another configuration file."""

    analyzer: int
    plan: int

    weight: ClassVar[int] = 6

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Act:
        """Returns a restart, or for every third plan that the running analyzer reads its file again."""
        analyzer, plan = random.randrange(size.analyzers), random.randrange(len(PLANS))
        return cls(analyzer, plan) if plan % 3 else Reload(analyzer, plan)

    def do(self, world: World) -> bool:
        analyzer = world.analyzers[self.analyzer]
        analyzer.plan = PLANS[self.plan]
        if analyzer.process.is_alive:
            analyzer.later(0.0, "stop", analyzer.stop)
        return analyzer.process.is_alive


@dataclass(frozen=True)
class Reload(Act):
    """A running analyzer reads its configuration file again, which has changed. Drawn by `Stop`."""

    analyzer: int
    plan: int

    weight: ClassVar[int] = 0

    def do(self, world: World) -> bool:
        analyzer = world.analyzers[self.analyzer]
        is_changed = analyzer.daemon is not None and analyzer.plan != PLANS[self.plan]
        analyzer.edit(PLANS[self.plan])
        return is_changed


@dataclass(frozen=True)
class Pause(Act):
    """An analyzer is stopped by SIGSTOP for a while."""

    analyzer: int
    seconds: float

    weight: ClassVar[int] = 3

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Pause:
        return cls(random.randrange(size.analyzers), random.choice((0.3, 3.0, 8.0)))

    def do(self, world: Analyzers) -> bool:
        process = world.analyzers[self.analyzer].process
        process.paused_until_s = world.scheduler.now_s + self.seconds
        return process.is_alive


@dataclass(frozen=True)
class SlowFlush(Act):
    """The next transaction of an analyzer begins late; perhaps its waits for it time out."""

    analyzer: int
    seconds: float
    is_impatient: bool

    weight: ClassVar[int] = 4

    @classmethod
    def drawn(cls, random: Random, size: Size) -> SlowFlush:
        return cls(random.randrange(size.analyzers), random.choice((0.3, 2.0, 7.0)), random.random() < 0.5)

    def do(self, world: Analyzers) -> bool:
        analyzer = world.analyzers[self.analyzer]
        analyzer.slow_flush_s, analyzer.is_impatient = self.seconds, self.is_impatient
        return analyzer.process.is_alive


@dataclass(frozen=True)
class Rebalance(Act):
    """Partitions move between analyzers; by force before their owners know."""

    by_force: bool

    weight: ClassVar[int] = 5

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Rebalance:
        return cls(random.random() < 0.5)

    def do(self, world: Analyzers) -> bool:
        return world.topic.group.move(by_force=self.by_force)


@dataclass(frozen=True)
class Outage(Act):
    """The database is away."""

    seconds: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Outage:
        return cls(random.choice((0.05, 0.5, 3.0)))

    def do(self, world: Analyzers) -> bool:
        world.database.away_until_s = world.scheduler.now_s + self.seconds
        return True


@dataclass(frozen=True)
class AnswerFaults(Act):
    """The next answers to a gate are lost, late, repeated, or incomplete."""

    application: int
    kinds: tuple[AnswerFault, ...]

    weight: ClassVar[int] = 5

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> AnswerFaults:
        kinds: list[AnswerFault] = ["lost", "away", "repeated", "cut short", "late"]
        chosen = random.choices(kinds, k=random.randrange(1, 4))
        return cls(random.randrange(APPLICATIONS), tuple(chosen))

    def do(self, world: World) -> bool:
        world.applications[self.application].link.faults += self.kinds
        return True


@dataclass(frozen=True)
class NewApplication(Act):
    """An application is killed and started."""

    application: int

    weight: ClassVar[int] = 1

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> NewApplication:
        return cls(random.randrange(APPLICATIONS))

    def do(self, world: World) -> bool:
        world.applications[self.application].restart()
        world.ranks.pop(world.applications[self.application].name, None)
        return True


@dataclass(frozen=True)
class WrongClock(Act):
    """The clock of an application's machine is set."""

    application: int
    seconds: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> WrongClock:
        return cls(random.randrange(APPLICATIONS), random.choice((-30.0, -2.0, 0.0, 0.0, 2.0, 30.0)))

    def do(self, world: World) -> bool:
        return world.applications[self.application].clock.set(self.seconds)


@dataclass(frozen=True)
class ClockLeap(Act):
    """The database's clock is three days ahead for a while, and until an analyzer has been the warden."""

    seconds: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> ClockLeap:
        return cls(random.choice((3.0, 8.0, 15.0)))

    def do(self, world: World) -> bool:
        if world.database.clock_ahead_s:
            return False
        world.database.clock_ahead_s = 3.0 * DAY_S
        world.later(self.seconds, "the database's clock is right again", partial(self._end, world))
        return True

    def _end(self, world: World) -> None:
        if world.truth.is_clock_believed():  # what happened meanwhile is noted nowhere
            world.later(1.0, "the database's clock is right again", partial(self._end, world))
        else:
            world.database.clock_ahead_s = 0.0


@dataclass(frozen=True)
class Dump(Act):
    """The database is copied."""

    weight: ClassVar[int] = 3

    def do(self, world: World) -> bool:
        if world.database.clock_ahead_s:
            return False
        world.dump = world.database.dump(), world.truth.copy()
        return True


@dataclass(frozen=True)
class Restore(Act):
    """The last copy of the database takes its place.

    Perhaps one analyzer is killed before and started afterwards, with another configuration file.
    """

    restarted: int | None
    plan: int

    weight: ClassVar[int] = 4
    cause: ClassVar[type[Act] | None] = Dump

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Restore:
        restarted = random.choice((None, *range(size.analyzers)))
        return cls(restarted, random.randrange(len(PLANS)))

    def do(self, world: World) -> bool:
        if world.dump is None:
            return False
        copy, stored = world.dump
        world.database.restore(copy)
        world.truth.restore(stored)
        world.restored_s = world.scheduler.uptime_s
        for application in world.applications:
            application.link.earlier.clear()
        if self.restarted is not None:
            analyzer = world.analyzers[self.restarted]
            analyzer.plan, analyzer.restart_s = PLANS[self.plan], 0.0
            analyzer.process.die()
        return True


@dataclass(frozen=True)
class DeleteOld(Act):
    """Kafka deletes the older half of a partition, or all but the last batch before it is read: a gap."""

    partition: int
    is_unread: bool

    weight: ClassVar[int] = 1

    @classmethod
    def drawn(cls, random: Random, size: Size) -> DeleteOld:
        return cls(random.randrange(size.partitions), random.random() < 0.75)

    def do(self, world: World) -> bool:
        log = world.log(self.partition)
        before = log.start
        if self.is_unread and log.open_from is None:
            for _ in range(2):
                record = world.applications[0].record(
                    "eve", RESOURCES[0], 7, world.wall_ms(), is_denied=False
                )
                world.append(log, [record])
            log.delete_to(log.end)
        else:
            log.delete_to((log.start + log.end) // 2)
        return log.start > before


@dataclass(frozen=True)
class AcceptGaps(Act):
    """An operator accepts every gap."""

    weight: ClassVar[int] = 3
    cause: ClassVar[type[Act] | None] = DeleteOld

    def do(self, world: World) -> bool:
        return world.accept_gaps()


@dataclass(frozen=True)
class Sleep(Act):
    """All machines are suspended."""

    seconds: float

    weight: ClassVar[int] = 2

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Sleep:
        return cls(random.choice((20.0, 900.0, 3_600.0, 90_000.0, 700_000.0)))

    def do(self, world: World) -> bool:
        world.sleep(self.seconds)
        return True
