"""Three days on real servers, whose clock is moved, with analyzers that are killed at random.

The truth is kept outside: each record that was written, with its partition and offset. A day's report must
be, byte for byte, what a recount of the records before the day's cut gives; the others are corrections.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.tables.billing_tables import day_positions, days, frozen_counts
from analyzer.kernel.tables.schema import offsets
from tests.support.moved_clock import MovedClock
from tests.support.running import Analyzer
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.servers.postgres import Postgres
from tests.support.waiting import wait_until

RealKafka = NativeKafka | GivenKafka
DAY_S, HOUR_S = 86_400, 3_600
PARTITIONS, ANALYZERS, WAIT_S_MAX = 3, 3, 120.0
CALLERS = ("acme", "bob", "zoë", "=1+1", "dan, the man")
SEED = 20_261_123
CONFIGURATION = """
[kafka]
bootstrap_servers = "{kafka}"
group_id = "{topic}"
session_timeout = "6s"
[billing]
grace = "5m"
[[sources]]
topic = "{topic}"
id = "id"
stop_after_rejected = 100000
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
id = "id"
"""


class Written(NamedTuple):
    """A record that was written; `caller` is "" for one that cannot be read."""

    partition: int
    offset: int
    day: str
    caller: str
    id: str


class Log:
    """Writes records by the moved clock, and keeps which."""

    def __init__(self, kafka: RealKafka, topic: str, clock: MovedClock, random: Random) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        self._topic, self._clock, self._random = topic, clock, random
        self._ids = 0
        self.written: list[Written] = []

    def write(self, count: int, ago_s: int = 0) -> None:
        """Writes requests of now, or from a time ago; some twice, and some that cannot be read."""
        for _ in range(count):
            partition = self._random.randrange(PARTITIONS)
            at_s = self._clock.now_s() - ago_s - self._random.randrange(600)
            caller, self._ids = self._random.choice(CALLERS), self._ids + 1
            value = json.dumps({"ts": int(at_s * 1000), "key": caller, "id": f"id-{self._ids}"}).encode()
            day = f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"
            self._send(partition, value, day, f"api_key:{caller}", f"id-{self._ids}")
            if self._random.random() < 0.1:
                self._send(partition, value, day, f"api_key:{caller}", f"id-{self._ids}")
            if self._random.random() < 0.05:
                self._send(partition, b'{"ts": "unreadable"}', "", "", "")
        assert self._producer.flush(30) == 0

    def _send(self, partition: int, value: bytes, day: str, caller: str, id_: str) -> None:
        def noted(error: object, message: object) -> None:
            assert error is None
            offset = message.offset()  # type: ignore[attr-defined] # a Message, which has no public type
            self.written.append(Written(partition, offset, day, caller, id_))

        now_ms = int(self._clock.now_s() * 1000)
        self._producer.produce(self._topic, value, partition=partition, timestamp=now_ms, on_delivery=noted)
        self._producer.poll(0)

    def counted(self) -> list[Written]:
        """Returns the records that count: of each id the first one in its partition."""
        found: dict[tuple[int, str], Written] = {}
        for record in sorted(self.written):
            if record.caller:
                found.setdefault((record.partition, record.id), record)
        return sorted(found.values())


class Fleet:
    """Analyzers that are killed at random, and started again."""

    def __init__(
        self, folder: Path, configuration: str, database: str, clock: MovedClock, random: Random
    ) -> None:
        self._given = folder, configuration, database
        self._code, self._random = clock.code_of("run"), random
        self._running: dict[int, Analyzer] = {}
        self.kills = 0
        for number in range(ANALYZERS):
            self.start(number)

    def start(self, number: int) -> None:
        folder, configuration, database = self._given
        self._running[number] = Analyzer(folder, f"analyzer{number}", configuration, database, self._code)

    def disturb(self) -> None:
        """Kills one of them, and starts it again."""
        number = self._random.randrange(ANALYZERS)
        self._running[number].kill()
        self.kills += 1
        self.start(number)

    def log(self) -> list[object]:
        return [line for one in self._running.values() for line in one.log[-4:]]

    def end(self) -> None:
        for one in self._running.values():
            one.end()


class World(NamedTuple):
    clock: MovedClock
    log: Log
    fleet: Fleet
    engine: sa.Engine
    folder: Path

    def gatelock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"GATELOCK_CONFIG": str(self.folder / "analyzer0.toml"), "PATH": ""}
        command = [sys.executable, "-c", self.clock.code_of(*arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)

    def seen(self) -> int:
        with self.engine.connect() as db:
            return int(db.execute(sa.select(sa.func.coalesce(sa.func.sum(offsets.c.seen), 0))).scalar_one())

    def states(self) -> dict[str, str]:
        with self.engine.connect() as db:
            return {row.date: row.state for row in db.execute(sa.select(days.c.date, days.c.state))}

    def wait_until_closed(self, date: str) -> None:
        wait_until(
            lambda: self.states().get(date) == "closed",
            WAIT_S_MAX,
            lambda: (self.states(), self.seen(), len(self.log.written), self.fleet.log()),
        )

    def cuts(self, date: str) -> dict[int, int]:
        of = day_positions.c
        wanted = sa.select(of.partition, of.cut).join(days, days.c.id == of.day).where(days.c.date == date)
        with self.engine.connect() as db:
            return {partition: cut or 0 for partition, cut in db.execute(wanted)}


@pytest.fixture
def world(real_kafka: RealKafka, postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    random, url = Random(SEED), postgres.new_database()
    begin_s = int(time.time()) // DAY_S * DAY_S - 5 * DAY_S + 20 * HOUR_S
    clock = MovedClock(tmp_path, url, begin_s)
    upgrade(url)
    engine = open_engine(url)
    topic = real_kafka.create_topic(partitions=PARTITIONS)
    log = Log(real_kafka, topic, clock, random)
    configuration = CONFIGURATION.format(kafka=real_kafka.bootstrap, topic=topic)
    fleet = Fleet(tmp_path, configuration, url, clock, random)
    yield World(clock, log, fleet, engine, tmp_path)
    fleet.end()
    engine.dispose()
    postgres.drop(url)


def quoted(text: str) -> str:
    """Returns a cell of CSV, which no spreadsheet executes."""
    shown = f"'{text}" if text[0] in "=+-@" else text
    return f'"{shown}"' if "," in shown else shown


def csv_of(date: str, amounts: Mapping[str, int]) -> bytes:
    lines = ["from,to,zone,caller,meter,unit,value,denied,provisional"]
    in_order = sorted(amounts, key=str.encode)
    lines += [f"{date},{date},UTC,{quoted(name)},requests,,{amounts[name]},0,false" for name in in_order]
    return "".join(f"{line}\r\n" for line in lines).encode()


@pytest.mark.deep("three days on real servers")
def test_each_days_report_is_a_recount_of_its_records_to_the_byte(world: World) -> None:
    begin_s = int(world.clock.now_s()) // DAY_S * DAY_S
    dates = [f"{datetime.fromtimestamp(begin_s + n * DAY_S, UTC):%Y-%m-%d}" for n in range(3)]
    wait_until(lambda: dates[0] in world.states(), WAIT_S_MAX, world.fleet.log)
    for number, date in enumerate(dates):
        world.log.write(400)
        world.fleet.disturb()
        world.clock.move_to(begin_s + number * DAY_S + DAY_S - 60)
        world.log.write(300)
        world.clock.move_to(begin_s + (number + 1) * DAY_S + 20)
        world.log.write(200, ago_s=HOUR_S)  # late, but before the day is asked for its end
        world.fleet.disturb()
        world.clock.move_to(begin_s + (number + 1) * DAY_S + 301)
        world.log.write(100, ago_s=HOUR_S)  # while it closes
        world.fleet.disturb()
        world.wait_until_closed(date)
        world.log.write(100, ago_s=HOUR_S)  # too late: a correction
        world.log.write(50, ago_s=DAY_S + HOUR_S)
        world.clock.move_to(begin_s + (number + 1) * DAY_S + 20 * HOUR_S)
    wait_until(
        lambda: world.seen() == len(world.log.written), WAIT_S_MAX, lambda: (world.seen(), world.fleet.log())
    )
    assert world.fleet.kills == 9
    reports = {date: report_of(world, date) for date in dates}
    frozen = Counter[str]()
    for date in dates:
        cuts = world.cuts(date)
        before = [one for one in world.log.counted() if one.offset < cuts[one.partition] and one.day == date]
        assert reports[date] == csv_of(date, Counter(one.caller for one in before)), date
        assert len(before) > 500
        frozen[date] = len(before)
    late = Counter(one.day for one in world.log.counted() if one.day in dates)
    late.subtract(frozen)
    assert corrections(world, dates[0]) == {day: count for day, count in late.items() if count}
    assert min(late[date] for date in dates) >= 100
    assert world.gatelock("billing", "audit").returncode == 0
    for date in dates:
        checked = world.gatelock("billing", "audit", "--day", date)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert report_of(world, date) == reports[date]
    shave_one_bill(world)
    tampered = [world.gatelock("billing", "audit", "--day", date) for date in dates]
    assert sorted(one.returncode for one in tampered) == [0, 0, 1]
    assert "api_key:acme" in next(one.stdout for one in tampered if one.returncode)


def report_of(world: World, date: str) -> bytes:
    file = world.folder / f"{date}.csv"
    done = world.gatelock("billing", "report", "day", date, "--final", "--out", str(file))
    assert done.returncode == 0, done.stderr
    return file.read_bytes()


def corrections(world: World, since: str) -> dict[str, int]:
    """Returns the number of requests that came after the cut, by the day that they are of."""
    until = f"{datetime.fromtimestamp(world.clock.now_s(), UTC):%Y-%m-%d}"
    done = world.gatelock("billing", "report", "corrections", f"{since}..{until}", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    found = Counter[str]()
    for line in map(json.loads, done.stdout.splitlines()):
        found[line["day"]] += line["value"]
    return dict(found)


def shave_one_bill(world: World) -> None:
    """Takes a request from acme on one day, as a superuser who switches the triggers off."""
    with world.engine.begin() as db:
        db.exec_driver_sql("set local session_replication_role = replica")
        name = "select reference from referenced_names where name = 'api_key:acme'"
        row = db.exec_driver_sql(f"select day from frozen_counts where reference = ({name}) limit 1").one()
        of = frozen_counts.c
        is_row = sa.and_(of.day == row.day, of.reference == sa.text(f"({name})"))
        db.execute(sa.update(frozen_counts).where(is_row).values(value_0=of.value_0 - 1))
