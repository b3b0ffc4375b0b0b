"""Run of faults on three analyzers, a Kafka, a PostgreSQL and a shipper; then every count is checked."""

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

from tests.faults.checks import Follower, violations
from tests.faults.fault_kinds import FAULT_KINDS, POLICIES, ActiveFault, FaultKind, World
from tests.faults.fleet import Fleet
from tests.faults.kinds_of_policies import FURTHER
from tests.faults.traffic import Traffic
from tests.support.proxy import Proxy
from tests.support.servers.child import free_port
from tests.support.servers.kafka import NativeKafka
from tests.support.servers.postgres import NativePostgres

ANALYZERS, PARTITIONS = 3, 6
SECONDS_EACH = 1.4  # from one fault to the next, as observed
FREE_MIN = 2  # analyzers that no fault is using
SETTLED_S = 120.0


@contextmanager
def fault_world(random: Random, mutation: str = "") -> Iterator[World]:
    """Starts servers that faults may kill. Raises Missing."""
    with ExitStack() as stack:
        folder, to_postgres = (
            Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="gatelock-", ignore_cleanup_errors=True)
                )
            )
            for _ in range(2)  # each server may belong to another user
        )
        (folder / "kafka").mkdir()
        kafka, kafka_proxy = kafka_behind_a_proxy(folder / "kafka")
        stack.callback(kafka_proxy.close)
        stack.callback(kafka.close)
        kafka.start()
        postgres = NativePostgres(to_postgres)
        stack.callback(postgres.close)
        postgres.start()
        database_proxy = Proxy(postgres.port)
        stack.callback(database_proxy.close)
        topic = kafka.create_topic(partitions=PARTITIONS)
        database = postgres.new_database()
        analyzers_database = (
            make_url(database).set(port=database_proxy.port).render_as_string(hide_password=False)
        )
        fleet = Fleet(
            folder,
            database,
            f"127.0.0.1:{kafka_proxy.port}",
            topic,
            PARTITIONS,
            POLICIES,
            mutation=mutation,
            analyzers_database=analyzers_database,
            further=FURTHER,
        )
        stack.callback(fleet.close)
        traffic = Traffic(kafka.bootstrap, topic, PARTITIONS, Random(random.random()))
        yield World(fleet, traffic, kafka, postgres, kafka_proxy, database_proxy, random)


def kafka_behind_a_proxy(folder: Path) -> tuple[NativeKafka, Proxy]:
    """A broker with two listeners: one for shippers, and one behind a proxy, advertised to analyzers."""
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
    """Figures and violations of one run."""

    faults: Counter[str]
    records: int
    violations: Sequence[str]
    locks: int
    versions: int
    restarts: int
    seconds: float
    cpu_s: float  # of analyzers, broker and database, without this process


def cpu_s_of_others() -> float:
    """CPU time of all descendants of this process, ended or running."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return ended.ru_utime + ended.ru_stime + sum(sum(times[:4]) for times in running)


@dataclass(slots=True)
class FaultRun:
    """Injects `faults` of `kinds` while `records` are written."""

    world: World
    faults: int
    records: int
    kinds: Sequence[FaultKind] = FAULT_KINDS
    pause_s: tuple[float, float] = (0.2, 1.2)  # between two faults; the first may last longer
    log: Callable[[str], object] = lambda _: None
    injected: Counter[str] = field(default_factory=Counter)
    restarts: int = 0  # of analyzers that found no database at their start
    active: list[tuple[float, FaultKind, ActiveFault]] = field(default_factory=list)

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
            self.inject_all()
            world.fleet.activate()  # an analyzer may have started with an older configuration
        finally:
            follower.stop()
        traffic.stop()
        found = list(violations(world.fleet, traffic.expected, follower))
        for member in list(world.fleet.members):
            world.fleet.leave(member)
        version = 0 if follower.view.at is None else follower.view.at.version
        return Outcome(
            faults=self.injected,
            records=traffic.expected.records,
            violations=found,
            locks=sum(1 for _ in follower.view),
            versions=version,
            restarts=self.restarts,
            seconds=time.monotonic() - began_s,
            cpu_s=cpu_s_of_others(),
        )

    def inject_all(self) -> None:
        records = self.records // self.faults
        # Slow enough that records are in flight at nearly every fault: without any there is nothing to lose.
        self.world.traffic.rate = int(records / SECONDS_EACH)
        self.world.traffic.release(self.records - records * self.faults + records)
        self.world.fleet.wait_until_seen(min(records, 1_000))
        while (left := self.faults - self.injected.total()) > 0:
            for kind in self.world.random.sample(self.kinds, min(left, len(self.kinds))):
                self.wait(self.world.random.uniform(*self.pause_s))
                while not self.can_inject(kind):
                    self.wait(0.05)
                self.inject(kind)
                if self.injected.total() < self.faults:
                    self.world.traffic.release(records)
            self.settle()

    def can_inject(self, kind: FaultKind) -> bool:
        """Whether the target of `kind` is free."""
        if kind.target == "members":
            fleet = self.world.fleet
            return len(fleet.members) - len(self.world.reserved) >= FREE_MIN
        return all(other.target != kind.target for _, other, _ in self.active)

    def inject(self, kind: FaultKind) -> None:
        self.log(f"{self.injected.total() + 1:4} {kind}")
        self.injected[str(kind)] += 1
        self.advance(kind, kind.inject(self.world))

    def advance(self, kind: FaultKind, fault: ActiveFault) -> None:
        try:
            seconds = next(fault)
        except StopIteration:
            if not self.world.has_happened:
                self.world.has_happened = True
                self.injected[str(kind)] -= 1
            return
        self.active.append((time.monotonic() + seconds, kind, fault))

    def wait(self, seconds: float) -> None:
        """Waits, and lets each fault continue or end when it is due."""
        until_s = time.monotonic() + seconds
        while True:
            for due in [due for due in self.active if due[0] <= time.monotonic()]:
                self.active.remove(due)
                self.advance(*due[1:])
            self.restarts += self.world.fleet.restart_ended(self.world.reserved)
            if time.monotonic() >= until_s:
                return
            time.sleep(0.01)

    def settle(self) -> None:
        """Waits until every fault is over and every record has been read."""
        world, began_s = self.world, time.monotonic()
        while self.active:
            self.wait(0.05)
        world.traffic.wait_until_written(SETTLED_S)
        self.log(f"     all faults are over: {world.traffic.expected.records:,} records written")
        world.fleet.wait_until_seen(world.traffic.expected.records, SETTLED_S)
        assert len(world.fleet.members) == ANALYZERS
        self.log(f"     all of them read, {time.monotonic() - began_s:.1f} s later")
