"""Stories of days that end, drawn from a seed: zones, what is logged late, what fails, what is corrected."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

from tests.simulation.acts import Fault, Kill, Outage, Pause, Rebalance, Size, SlowFlush
from tests.simulation.database import FaultKind, StepFault
from tests.simulation.days.day_world import DayAct, DayStory, Visit
from tests.simulation.kafka_log import Logged

if TYPE_CHECKING:
    from tests.simulation.days.day_world import DayWorld

HOUR_S, DAY_S = 3_600, 86_400
CALLERS, RESOURCES = ("acme", "ann", "zoë"), ("/v1/items", "/v1/search")
# Zones, and the date on which stories with them begin; awkward days come soon after.
CALENDARS = (
    (("Pacific/Apia",), "2011-12-28"),  # 30 December was left out
    (("Africa/Casablanca", "Asia/Kathmandu"), "2026-02-13"),  # 25 hours, because Ramadan begins
    (("America/St_Johns", "Australia/Lord_Howe"), "2026-04-03"),  # a day of 24 hours and a half
    (("America/St_Johns", "UTC"), "2026-10-30"),  # 25 hours, and an offset of 2 h 30 min
    (("Europe/Berlin", "Asia/Kathmandu"), "2026-03-27"),  # 23 hours, and an offset of 5 h 45 min
    (("America/Santiago",), "2026-09-04"),  # clocks are set forward at midnight: a day begins at 1
    (("Pacific/Kiritimati", "Pacific/Pago_Pago"), "2026-11-20"),  # 25 hours apart
)
DAYS = 3
BEFORE_S, VISIT_S, NOON_S = 3, 18.0, 3.0  # a visit to the end of a day, and one between two ends
APART_S = 10 * HOUR_S  # the longest time between two visits: a partition believes its clock within a day
PAUSES_S = ((0.0,), (0.0, 0.0, 0.2, 1.5), (0.0, 0.3, 3.0), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 310.0))


@dataclass(frozen=True)
class Write:
    """Requests are logged, some of them late, some of them twice."""

    partition: int
    caller: str
    resource: str
    count: int
    size: int
    age_s: float
    weight: int
    # "": without ids; "soon": repeated within the horizon; "late": only in later visits, long after it.
    ids: Literal["", "soon", "late"]

    @classmethod
    def drawn(cls, random: Random, size: Size) -> Write:
        return cls(
            random.randrange(size.partitions),
            random.choice(CALLERS),
            random.choice(RESOURCES),
            random.randrange(1, 4),
            random.randrange(1_000),
            random.choice((0.0, 0.0, 0.0, 3.0, 8.0, 40.0, HOUR_S, DAY_S, 1.9 * DAY_S)),
            random.choice((1, 1, 1, 5)),
            random.choice(("", "", "soon", "late")),
        )

    def do(self, world: DayWorld) -> bool:
        ids = self.ids and world.id_of(self.ids)
        records = [
            world.record(
                self.caller,
                self.resource,
                self.size + number,
                self.age_s,
                self.weight,
                f"{ids} {number}" if ids else "",
            )
            for number in range(self.count)
        ]
        world.write(self.partition, records)
        return True


@dataclass(frozen=True)
class WriteUnreadable:
    """A record that has to be rejected."""

    partition: int

    @classmethod
    def drawn(cls, random: Random, size: Size) -> WriteUnreadable:
        return cls(random.randrange(size.partitions))

    def do(self, world: DayWorld) -> bool:
        world.write(self.partition, [Logged(b'{"ts": "x"}', None)])
        return True


@dataclass(frozen=True)
class CloseByHand:
    """An operator closes a day, while analyzers may be closing it; perhaps the command fails at some step."""

    fault: FaultKind | None
    steps: int

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> CloseByHand:
        return cls(random.choice((None, None, "cut", "lose the reply")), random.randrange(1, 60))

    def do(self, world: DayWorld) -> bool:
        if self.fault is not None:
            world.database.faults[world.operator.name] = StepFault(self.fault, self.steps)
        return world.close_by_hand()


@dataclass(frozen=True)
class Correct:
    """An operator corrects an amount of a day; perhaps the command fails at some step."""

    zone: int
    days_ago: int
    caller: str
    amount: int
    fault: FaultKind | None
    steps: int

    @classmethod
    def drawn(cls, random: Random, _size: Size) -> Correct:
        return cls(
            random.randrange(2),
            random.choice((1, 1, 2)),
            random.choice(CALLERS),
            random.choice((-3, -1, 2, 10)),
            random.choice((None, None, "kill", "cut", "lose the reply")),
            random.randrange(1, 25),
        )

    def do(self, world: DayWorld) -> bool:
        zones = world.story.zones
        known = world.truth.days(zones[self.zone % len(zones)])
        if len(known) <= self.days_ago:
            return False
        if self.fault is not None:
            world.database.faults[world.outside.name] = StepFault(self.fault, self.steps)
        try:
            return world.correct(known[-1 - self.days_ago], f"api_key:{self.caller}", self.amount)
        finally:
            world.database.faults.pop(world.outside.name, None)


# Kinds of acts, and how often each is drawn.
KINDS = {
    Write: 40, WriteUnreadable: 2, CloseByHand: 3, Correct: 6, Fault: 6, Kill: 2, Pause: 3, SlowFlush: 4,
    Rebalance: 3, Outage: 1,
}  # fmt: skip


def draw(seed: int) -> DayStory:
    """Returns the story of a seed."""
    random = Random(seed)
    zones, date = CALENDARS[seed % len(CALENDARS)]
    size = Size(random.choice((1, 2, 2, 3)), random.choice((1, 2, 2)))
    # Each story has some kinds of acts often and others not at all, as in `tests/simulation/stories.py`.
    weights = [weight * random.choice((0, 1, 1, 2)) for weight in KINDS.values()]
    weights[0] = KINDS[Write]
    visits = []
    for begins_s, seconds in visits_to(zones, date):
        acts: list[tuple[float, DayAct]] = []
        for at_s in sorted(random.uniform(0.2, seconds - 0.5) for _ in range(round(seconds / 1.2))):
            [kind] = random.choices(list(KINDS), weights)
            acts.append((at_s, kind.drawn(random, size)))
        visits.append(Visit(begins_s, seconds, tuple(acts)))
    return DayStory(seed, zones, *size, tuple(visits), random.choice(PAUSES_S))


def visits_to(zones: tuple[str, ...], date: str) -> list[tuple[int, float]]:
    """Returns the visits to the ends of days of all zones, and to times between them."""
    begin_s = midnight_s(zones[0], date, 0) + 7 * HOUR_S
    ends_s = {midnight_s(zone, date, days) for zone in zones for days in range(1, DAYS + 3)}
    wanted = [(begin_s, NOON_S)]
    last_s = begin_s + DAYS * DAY_S
    for end_s in sorted(end_s for end_s in ends_s if begin_s + HOUR_S < end_s < last_s):
        while end_s - wanted[-1][0] > APART_S:
            wanted.append((wanted[-1][0] + APART_S - HOUR_S, NOON_S))
        if end_s - BEFORE_S > wanted[-1][0] + VISIT_S:
            wanted.append((end_s - BEFORE_S, VISIT_S))
    return wanted


def midnight_s(zone: str, date: str, days: int) -> int:
    """Returns when a date that is so many days later begins, as the clocks of a zone show it."""
    later = datetime.fromisoformat(date) + timedelta(days=days)
    at = later.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return int(at.timestamp())
