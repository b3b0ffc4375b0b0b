"""Three analyzers, a Kafka, a PostgreSQL, a shipper; one fault upon another, and then it is counted."""

from __future__ import annotations

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import psutil
from sqlalchemy.engine import make_url

from tests.faults.checks import Follower, wrongs
from tests.faults.fault_kinds import KINDS, POLICIES, Kind, Lasting, World
from tests.faults.fleet import Fleet
from tests.faults.traffic import Traffic
from tests.support.proxy import Proxy
from tests.support.servers.child import free_port
from tests.support.servers.kafka import NativeKafka
from tests.support.servers.postgres import NativePostgres

ANALYZERS, PARTITIONS = 3, 6
SECONDS_EACH = 1.4  # from one fault to the next, as it turns out
AT_LEAST_FREE = 2  # analyzers that no fault has in its hands
SETTLED_S = 120.0


@contextmanager
def a_world(random: Random, mutation: str = "") -> Iterator[World]:
    """Servers of its own, to kill. Raises Missing."""
    with ExitStack() as held:
        folder, to_postgres = (
            Path(
                held.enter_context(
                    tempfile.TemporaryDirectory(prefix="gatelock-", ignore_cleanup_errors=True)
                )
            )
            for _ in range(2)  # each server may belong to another user
        )
        (folder / "kafka").mkdir()
        kafka, way_to_kafka = kafka_behind_a_proxy(folder / "kafka")
        held.callback(way_to_kafka.close)
        held.callback(kafka.close)
        kafka.start()
        postgres = NativePostgres(to_postgres)
        held.callback(postgres.close)
        postgres.start()
        way_to_database = Proxy(postgres.port)
        held.callback(way_to_database.close)
        topic = kafka.create_topic(partitions=PARTITIONS)
        database = postgres.new_database()
        seen_as = make_url(database).set(port=way_to_database.port).render_as_string(hide_password=False)
        fleet = Fleet(
            folder,
            database,
            f"127.0.0.1:{way_to_kafka.port}",
            topic,
            PARTITIONS,
            POLICIES,
            mutation=mutation,
            seen_as=seen_as,
        )
        held.callback(fleet.close)
        traffic = Traffic(kafka.bootstrap, topic, PARTITIONS, Random(random.random()))
        yield World(fleet, traffic, kafka, postgres, way_to_kafka, way_to_database, random)


def kafka_behind_a_proxy(folder: Path) -> tuple[NativeKafka, Proxy]:
    """A broker with two doors: one for shippers, and one through a proxy, which it tells analyzers."""
    near, far, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
    proxy = Proxy(int(far.rpartition(":")[2]))
    config = {
        "controller.quorum.voters": f"1@{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": f"PLAINTEXT://{near},FAR://{far},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{near},FAR://127.0.0.1:{proxy.port}",
    }
    return NativeKafka(folder, int(near.rpartition(":")[2]), config), proxy


class Outcome(NamedTuple):
    """How it went."""

    faults: Counter[str]
    records: int
    wrong: Sequence[str]
    locks: int
    versions: int
    restarts: int
    seconds: float
    cpu_s: float  # of analyzers, broker and database; not of who strikes


def cpu_s_of_others() -> float:
    """What processes have used that we, or they, started: those that ended, and those that go on."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = (each.cpu_times() for each in psutil.Process().children(recursive=True))
    return ended.ru_utime + ended.ru_stime + sum(sum(times[:4]) for times in running)


@dataclass(slots=True)
class Story:
    """Strikes `faults` of `kinds` while `records` are written."""

    world: World
    faults: int
    records: int
    kinds: Sequence[Kind] = KINDS
    pause_s: tuple[float, float] = (0.2, 1.2)  # between one fault and the next; the earlier one may last on
    say: Callable[[str], object] = lambda _: None
    struck: Counter[str] = field(default_factory=Counter)
    restarts: int = 0  # of analyzers that began while there was no database
    lasting: list[tuple[float, Kind, Lasting]] = field(default_factory=list)

    def run(self) -> Outcome:
        world, began_s = self.world, time.monotonic()
        follower = Follower(world.fleet.database)
        traffic = world.traffic
        traffic.release(0)
        for _ in range(ANALYZERS):
            world.fleet.join()
        traffic.start()
        follower.start()
        try:
            self.strike_all()
            world.fleet.activate()  # somebody may have begun with the configuration of a moment before
        finally:
            follower.stop()
        traffic.stop()
        wrong = list(wrongs(world.fleet, traffic.truth, follower))
        for member in list(world.fleet.members):
            world.fleet.leave(member)
        version = 0 if follower.view.at is None else follower.view.at.version
        return Outcome(
            faults=self.struck,
            records=traffic.truth.records,
            wrong=wrong,
            locks=sum(1 for _ in follower.view),
            versions=version,
            restarts=self.restarts,
            seconds=time.monotonic() - began_s,
            cpu_s=cpu_s_of_others(),
        )

    def strike_all(self) -> None:
        each = self.records // self.faults
        # So slowly that hardly a fault strikes in silence: who has nothing in hand cannot lose it.
        self.world.traffic.rate = int(each / SECONDS_EACH)
        self.world.traffic.release(self.records - each * self.faults + each)
        self.world.fleet.wait_until_seen(min(each, 1_000))
        while (left := self.faults - self.struck.total()) > 0:
            for kind in self.world.random.sample(self.kinds, min(left, len(self.kinds))):
                self.wait(self.world.random.uniform(*self.pause_s))
                while not self.may(kind):
                    self.wait(0.05)
                self.strike(kind)
                if self.struck.total() < self.faults:
                    self.world.traffic.release(each)
            self.settle()

    def may(self, kind: Kind) -> bool:
        """Whether nothing else has the same thing in its hands."""
        if kind.touches == "members":
            fleet = self.world.fleet
            return len(fleet.members) - len(self.world.spoken_for) >= AT_LEAST_FREE
        return all(other.touches != kind.touches for _, other, _ in self.lasting)

    def strike(self, kind: Kind) -> None:
        self.say(f"{self.struck.total() + 1:4} {kind}")
        self.struck[str(kind)] += 1
        self.go_on(kind, kind.strike(self.world))

    def go_on(self, kind: Kind, lasting: Lasting) -> None:
        try:
            seconds = next(lasting)
        except StopIteration:
            if not self.world.came_to_pass:
                self.world.came_to_pass = True
                self.struck[str(kind)] -= 1
            return
        self.lasting.append((time.monotonic() + seconds, kind, lasting))

    def wait(self, seconds: float) -> None:
        """Let time pass, and each fault end when it is time."""
        until_s = time.monotonic() + seconds
        while True:
            for each in [each for each in self.lasting if each[0] <= time.monotonic()]:
                self.lasting.remove(each)
                self.go_on(*each[1:])
            self.restarts += self.world.fleet.tend(self.world.spoken_for)
            if time.monotonic() >= until_s:
                return
            time.sleep(0.01)

    def settle(self) -> None:
        """All is well again: everything is counted in a while, and everybody who should be there is."""
        world, began_s = self.world, time.monotonic()
        while self.lasting:
            self.wait(0.05)
        world.traffic.wait_until_written(SETTLED_S)
        self.say(f"     all faults are over: {world.traffic.truth.records:,} records written")
        world.fleet.wait_until_seen(world.traffic.truth.records, SETTLED_S)
        assert len(world.fleet.members) == ANALYZERS
        self.say(f"     all of them seen, {time.monotonic() - began_s:.1f} s later")
