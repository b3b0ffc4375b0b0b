"""An installation whose days end: analyzers with the jobs of days, operators who correct, and the truth.

A closing waits between two of its transactions, while other processes run: analyzers count, one of them may
begin to close as well, any of them may be killed.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Literal, NamedTuple, Protocol
from unittest.mock import patch

from analyzer.billing.audit.audit_outcomes import DayAudits
from analyzer.billing.days import by_hand, frozen_rows
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.kernel.database.engine import reading
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import AnalyzerError, CorrectionRefused, StoreAway
from analyzer.kernel.model import Partition
from analyzer.maintenance.job_runner import Job
from analyzer.maintenance.job_table import schedules
from analyzer.plan.mapping import EventIdRule, SourceMapping
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan
from tests.simulation.analyzers import RETENTION, SimulatedAnalyzer
from tests.simulation.days.day_database import DayDatabase
from tests.simulation.days.day_truth import GROUPINGS, Booking, DayTruth, StoredDay
from tests.simulation.kafka_log import SOURCE, Expected, Logged, Topic
from tests.simulation.policies.rolling_truth import Wrong
from tests.simulation.scheduler import Process, Scheduler
from tests.support.step_faults import Killed

GRACE_S = 2.0
LONG_S = 4.0  # of a longer pause of a closing, all machines sleep through the beginning
QUIET_MAX_S = 400.0  # the lease of a closing that was killed lasts for 300 s
IDS = EventIdRule("id", horizon_ms=5_000, ids_max=10_000)
REPEATED_S = 4.0  # in which ids are repeated
FORGOTTEN_S = 12.0  # after the first record of a visit, all ids of earlier visits are forgotten
METERS = [Meter("bytes", "bytes"), Meter("largest", "bytes", "max")]
PLAN = make_plan(["caller+resource"], METERS, [], {SOURCE: SourceMapping(id=IDS)})
KEY = DigestKey(b"kept outside of the database")


class DayAct(Protocol):
    """Something that happens: a fault of the simulation, or an act of `day_acts`."""

    def do(self, world: DayWorld) -> bool:
        """Does it; returns whether that has an effect. Raises StoreAway."""


class Visit(NamedTuple):
    """A stretch of time that is played; nothing happens until the next one."""

    begins_s: int
    seconds: float
    acts: tuple[tuple[float, DayAct], ...]  # with seconds from its beginning


class DayStory(NamedTuple):
    """Everything that a run depends on."""

    seed: int
    zones: tuple[str, ...]
    analyzers: int
    partitions: int
    visits: tuple[Visit, ...]
    pauses_s: tuple[float, ...]  # of closings, one of them drawn behind each transaction


class PausedClosing(DayClosing):
    """A closing that waits between its transactions, while others run."""

    def __init__(self, world: DayWorld, process: Process) -> None:
        super().__init__(
            world.database.engine,
            Billing(world.story.zones, GRACE_S, GROUPINGS, KEY),
            world.ends,
            world.new_mark,
            world.wall_ms,
        )
        self._snapshots = world.database.snapshots
        self._world = world
        self._process = process
        self._random = Random(f"{world.story.seed} {process.name} {world.scheduler.now_s}")

    def close(self, day: Day) -> bool:
        pauses = self._world.database.pauses
        pauses[self._process.name] = self._pause
        try:
            return super().close(day)
        finally:
            pauses.pop(self._process.name, None)

    def _pause(self) -> None:
        scheduler, pauses = self._world.scheduler, self._world.database.pauses
        seconds = self._random.choice(self._world.story.pauses_s)
        if not seconds or self._world.is_healed:
            return
        del pauses[self._process.name]  # other threads of the process do not wait
        self._world.done["pauses"] += 1
        current, scheduler.current = scheduler.current, None
        if seconds > LONG_S:
            scheduler.sleep(seconds)
        scheduler.run_until(scheduler.now_s + min(seconds, LONG_S))
        scheduler.current = current
        if not self._process.is_alive:
            raise Killed
        pauses[self._process.name] = self._pause


class DayAnalyzer(SimulatedAnalyzer):
    """An analyzer with the jobs of days alone."""

    def __init__(self, world: DayWorld, number: int) -> None:
        self._world = world
        super().__init__(
            f"analyzer {number}",
            PLAN,
            world.scheduler,
            world.database,
            world.topic,
            world.wall_s,
            world.new_mark,
            Random(f"{world.story.seed} {number}"),
        )

    def _new_jobs(self, _plan: Plan) -> list[Job]:
        closing = PausedClosing(self._world, self.process)
        audits = DayAudits(self._world.database.engine, [KEY], self.name)
        at = schedules(RETENTION)
        return [
            Job("close-days", closing.step, at["close-days"], takes_turns=False),
            Job("audit-days", audits.step, at["audit-days"]),
        ]


class DayWorld:
    """The installation of one story."""

    def __init__(self, story: DayStory) -> None:
        self.story = story
        self.scheduler = Scheduler()
        self.database = DayDatabase(self.scheduler, self.wall_s, after_commit=self._committed)
        self.topic = Topic(story.partitions, self.scheduler)
        self.truth = DayTruth(self.database, self.topic, PLAN, KEY)
        self.outside = Process("outside")
        self.operator = Process("operator")
        self.visits_from_s: list[float] = []
        self.is_healed = False  # every fault is over, and closings do not wait any more
        self.done: Counter[str] = Counter()  # acts that had an effect, and what closings did
        marks = itertools.count(1)
        self.new_mark: Callable[[], str] = lambda: f"m{next(marks)}"
        self.analyzers: list[SimulatedAnalyzer] = [
            DayAnalyzer(self, number) for number in range(story.analyzers)
        ]

    def wall_s(self) -> float:
        return self.story.visits[0].begins_s + self.scheduler.now_s

    def wall_ms(self) -> int:
        return int(self.wall_s() * 1000)

    def _committed(self) -> None:
        self.truth.committed()

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Plays the story. Raises Wrong, and errors of the product."""
        with patch.object(frozen_rows, "ROWS_AT_ONCE", 2):
            for visit in self.story.visits:
                self.scheduler.sleep(max(0.0, visit.begins_s - self.wall_s()))
                self.visits_from_s.append(self.wall_s())
                self._write_everywhere()
                for after_s, act in visit.acts:
                    self.scheduler.after(after_s, self.outside, str(act), partial(self._do, act))
                self.scheduler.run_until(self.scheduler.now_s + visit.seconds)
            self._heal()
            self._rest()
        self.truth.check(self.story.zones, GRACE_S, self.wall_s())
        for analyzer in self.analyzers:
            for job, outcome in analyzer.observer.seen:
                if outcome != "recovered" and "server closed" not in outcome:
                    raise Wrong(f"{analyzer.name}: {job}: {outcome}")

    def _do(self, act: DayAct) -> None:
        with suppress(StoreAway):
            if act.do(self):
                self.done[type(act).__name__] += 1

    def _heal(self) -> None:
        self.database.away_until_s = 0.0
        self.database.faults.clear()
        self.is_healed = True
        for analyzer in self.analyzers:
            analyzer.process.paused_until_s = 0.0
            analyzer.is_impatient = False
            analyzer.records_arrived()

    def _rest(self) -> None:
        """Lets time pass until each day that is over is closed and audited."""
        end_s = self.scheduler.now_s + QUIET_MAX_S
        while unfinished := self._unfinished():
            if self.scheduler.now_s > end_s:
                raise Wrong(f"not at rest after {QUIET_MAX_S} s: {unfinished}")
            self.scheduler.run_until(self.scheduler.now_s + 1.0)

    def _unfinished(self) -> str:
        positions = self.truth.positions()
        for log in self.topic.logs.values():
            if positions.get(log.number) != log.end:
                return f"partition {log.number} is at {positions.get(log.number)} of {log.end}"
        for zone in self.story.zones:
            for day in self.truth.days(zone):
                if day.state != "closed" and day.end_s + GRACE_S < self.wall_s():
                    return f"{day} is {day.state}"
        closed = "select count(*) from days where state = 'closed'"
        audited = "select count(*) from day_audits"
        if self.database.read(closed) != self.database.read(audited):
            return "an audit"
        return ""

    # -- for acts --------------------------------------------------------------------------------

    def ends(self, _followed: Sequence[Partition]) -> Mapping[Partition, int | None]:
        """Returns the end of each log, as Kafka says it."""
        return {log.part: log.stable_end for log in self.topic.logs.values()}

    def write(self, number: int, records: Sequence[Logged]) -> None:
        """Writes records now."""
        log = next(log for log in self.topic.logs.values() if log.number == number)
        self.truth.arrived_s[number, log.end] = self.wall_s()
        log.append(records, self.wall_ms())
        for analyzer in self.analyzers:
            analyzer.records_arrived()

    def _write_everywhere(self) -> None:
        """Writes to each partition: its time is that of its records, and later ids make it forget."""
        for number in range(self.story.partitions):
            self.write(number, [self.record("eve", "/v1/items", 5, 0.0, id_=f"visit {self.wall_s()}")])

    def record(
        self, caller: str, resource: str, size: int, age_s: float, weight: int = 1, id_: str = ""
    ) -> Logged:
        """Returns the record of a request some time ago."""
        at_ms = int((self.wall_s() - age_s) * 1000)
        fields = {"ts": at_ms, "key": caller, "path": resource, "bytes": size, "weight": weight, "id": id_}
        expected = Expected(
            at_ms // 1000, f"api_key:{caller}", resource, size, is_denied=False, weight=weight, id=id_
        )
        return Logged(json.dumps(fields).encode(), expected)

    def id_of(self, kind: Literal["soon", "late"]) -> str:
        """Returns an id that is repeated within seconds, or in every visit; "" while that is not sure."""
        at_s = self.wall_s() - self.visits_from_s[-1]
        if kind == "late":
            return f"late {at_s // REPEATED_S}" if at_s >= FORGOTTEN_S else ""
        return f"soon {self.visits_from_s[-1]} {at_s // REPEATED_S}"

    def close_by_hand(self) -> bool:
        """Has an operator run `gatelock billing days close`; returns True."""
        self.scheduler.after(0.0, self.operator, "close a day", self._close_by_hand)
        return True

    def _close_by_hand(self) -> None:
        if self.operator.name in self.database.pauses:
            return  # the command is still running
        with suppress(AnalyzerError):
            self.done["closed by hand"] += PausedClosing(self, self.operator).step()

    def correct(self, day: StoredDay, caller: str, amount: int) -> bool:
        """Has an operator correct a day, and notes what is known about the outcome."""
        reason = f"ticket {len(self.truth.bookings) + 1}"
        asked = by_hand.Correction("caller", caller, "", "requests", amount)
        outcome, before = "unknown", self.truth.amount(day, caller, "requests")
        try:
            with reading(self.database.engine) as db:
                [stored] = [one for one in stored_days(db) if one.id == day.id]
            done = by_hand.correct(self.database.engine, stored, asked, "ann", reason)
            outcome = "stored"
            if (done.before, done.after) != (before, before + amount):
                raise Wrong(f"{day}: {caller} had {before}, and {done} says otherwise")
        except CorrectionRefused:
            outcome = "refused"
            if day.state == "closed" and before + amount >= 0:
                raise Wrong(f"{day}: {caller} has {before}, and {amount} is refused") from None
        except (StoreAway, Killed):
            pass
        self.truth.bookings.append(Booking(reason, amount, outcome))
        return outcome == "stored"
