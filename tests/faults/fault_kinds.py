"""Faults of analyzers, brokers, databases, networks and shippers.

Each fault is a generator: it injects the fault, yields how many seconds it lasts, and repairs it. Afterwards
nothing may be lost or counted twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

import psycopg
from kafka import KafkaAdminClient

from tests.faults.fleet import Fleet, Member
from tests.faults.traffic import Traffic
from tests.support.proxy import Proxy
from tests.support.servers.kafka import NativeKafka
from tests.support.servers.postgres import NativePostgres, dsn_of

Target = Literal["members", "broker", "database", "network to Kafka", "network to the database", "records"]
ActiveFault = Generator[float, None, None]
DAYS_S = 86_400.0
POLICIES = {("daily", "day"): 2_000, ("hourly", "hour"): 500, ("minutely", "minute"): 100}


@dataclass(slots=True)
class World:
    """Everything that a fault can affect."""

    fleet: Fleet
    traffic: Traffic
    kafka: NativeKafka
    postgres: NativePostgres
    kafka_proxy: Proxy
    database_proxy: Proxy
    random: Random
    reserved: list[Member] = field(default_factory=list)  # analyzers that a fault is using
    has_happened: bool = True  # False if a fault found no occasion, for example no COMMIT

    @contextmanager
    def free_member(self) -> Iterator[Member]:
        """An analyzer that no other fault is using."""
        free = [member for member in self.fleet.members if member not in self.reserved]
        member = self.random.choice(free)
        self.reserved.append(member)
        try:
            yield member
        finally:
            self.reserved.remove(member)

    def sql(self, statement: str, *values: object) -> None:
        with psycopg.connect(dsn_of(self.fleet.database), autocommit=True) as db:
            db.execute(statement, values)  # type: ignore[arg-type]  # constants


# Analyzers


def killed(world: World) -> ActiveFault:
    """SIGKILL at any moment; another analyzer starts."""
    with world.free_member() as member:
        world.fleet.kill(member)
    world.fleet.join()
    yield 0.0


def suspended_beyond_its_session_timeout(world: World) -> ActiveFault:
    """SIGSTOP; the analyzer continues with records in memory that others have counted meanwhile."""
    with world.free_member() as member:
        world.fleet.pause(member)
        yield world.fleet.session_s + world.random.uniform(1.0, 2.0)
        world.fleet.resume(member)


def stopped_by_sigterm(world: World) -> ActiveFault:
    """SIGTERM; the analyzer ends within ten seconds, even while something else is broken."""
    with world.free_member() as member:
        member.terminate()
        world.fleet.join()
        for _ in range(100):
            if member.poll() is not None:
                break
            yield 0.1
        world.fleet.wait_until_left(member)


def a_storm_of_rebalances(world: World) -> ActiveFault:
    """Two analyzers join, and each leaves again soon."""
    joined = [world.fleet.join() for _ in range(2)]
    world.reserved += joined
    for member in joined:
        yield world.random.uniform(0.8, 1.5)
        world.reserved.remove(member)
        world.fleet.leave(member)


def two_owners(world: World) -> ActiveFault:
    """An analyzer of another group, which also gets every partition."""
    twin = world.fleet.join(config=world.fleet.configure("twin"))
    world.reserved.append(twin)
    counted = False
    for _ in range(150):
        counted = counted or world.fleet.has_stored(twin)
        if counted:
            break
        yield 0.1
    yield world.random.uniform(0.5, 1.5)
    world.reserved.remove(twin)
    world.fleet.kill(twin)
    world.has_happened = counted


def a_clock_wrong_by_a_day(world: World) -> ActiveFault:
    """An analyzer with a wrong clock replaces another one."""
    with world.free_member() as member:
        world.fleet.kill(member)
    world.fleet.join(world.random.choice(["a_day_ahead", "a_day_behind"]))
    yield 0.0


# The broker, and the network to it


def broker_killed(world: World) -> ActiveFault:
    world.kafka.kill()
    yield world.random.uniform(0.0, 1.5)
    world.kafka.start()


def broker_paused(world: World) -> ActiveFault:
    world.kafka.pause()
    yield world.random.uniform(1.0, 3.5)
    world.kafka.resume()


def connections_to_kafka_cut(world: World) -> ActiveFault:
    world.kafka_proxy.cut()
    yield 0.0


def network_to_kafka_silent(world: World) -> ActiveFault:
    """The proxy forwards nothing; after the session time-out the group rebalances."""
    world.kafka_proxy.stall()
    yield world.random.uniform(1.0, 4.0)
    world.kafka_proxy.flow()


def network_to_kafka_slow(world: World) -> ActiveFault:
    world.kafka_proxy.slow(0.1)
    yield world.random.uniform(1.0, 3.0)
    world.kafka_proxy.slow(0.0)


def network_to_kafka_fragmented(world: World) -> ActiveFault:
    """A few bytes at a time: every message arrives in parts."""
    world.kafka_proxy.shred(world.random.randint(3, 60))
    yield world.random.uniform(1.0, 2.0)
    world.kafka_proxy.shred()


# The database, and the network to it


def database_killed(world: World) -> ActiveFault:
    world.postgres.kill()
    yield world.random.uniform(0.0, 2.0)
    world.postgres.start()


def connections_terminated(world: World) -> ActiveFault:
    """All at once, as by an administrator or by a pooler that restarts."""
    world.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    yield 0.0


def connections_to_the_database_cut(world: World) -> ActiveFault:
    world.database_proxy.cut()
    yield 0.0


def network_to_the_database_silent(world: World) -> ActiveFault:
    """Analyzers wait for an answer in the middle of a flush; then it comes, or the connection is cut."""
    world.database_proxy.stall()
    yield world.random.uniform(1.0, 4.0)
    if world.random.random() < 0.5:
        world.database_proxy.cut()
    world.database_proxy.flow()


def a_commit_that_never_arrives(world: World) -> ActiveFault:
    yield from _at_a_commit(world, world.database_proxy.lose(b"COMMIT", "request"))


def a_commit_whose_reply_is_lost(world: World) -> ActiveFault:
    """The counts are stored, but the analyzer cannot know that."""
    yield from _at_a_commit(world, world.database_proxy.lose(b"COMMIT", "reply"))


def stopped_in_the_middle_of_a_flush(world: World) -> ActiveFault:
    """Everything is written and locked, but COMMIT is 7 seconds late; the database gives up after 5."""
    yield from _at_a_commit(world, world.database_proxy.lose(b"COMMIT", "time", 7.0))
    yield 5.5


def _at_a_commit(world: World, triggered: threading.Event) -> ActiveFault:
    """Waits until an analyzer commits."""
    for _ in range(100):
        if triggered.is_set():
            return
        yield 0.05
    world.has_happened = False


def rows_locked_by_another_client(world: World) -> ActiveFault:
    """For longer than the lock time-out, and in another order than the analyzers'."""
    with (
        suppress(psycopg.errors.DeadlockDetected),  # one of the two has to give way
        psycopg.connect(dsn_of(world.fleet.database)) as client,
    ):
        client.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        client.execute("select 1 from offsets order by random() limit 2 for update")
        client.execute("select 1 from totals order by random() limit 20 for update")
        yield world.random.uniform(2.2, 3.0)


def another_plan(world: World) -> ActiveFault:
    """A policy gets another limit. Every analyzer adopts it, flush by flush, and the totals that are summed
    up again contain everything that is counted meanwhile."""
    fleet = world.fleet
    policy = world.random.choice(sorted(fleet.policies))
    usual = POLICIES[policy]
    limits = [limit for limit in (usual // 2, usual, usual * 2) if limit != fleet.policies[policy]]
    fleet.policies = {**fleet.policies, policy: world.random.choice(limits)}
    fleet.configure()
    fleet.activate()
    yield 0.0


# Records and shippers


def partitions_added(world: World) -> ActiveFault:
    admin = KafkaAdminClient(bootstrap_servers=world.kafka.bootstrap)
    try:
        admin.create_partitions({world.fleet.topic: world.fleet.partitions + 1})
    finally:
        admin.close()
    world.fleet.partitions += 1
    yield 1.5  # shippers refresh their metadata every half second
    world.traffic.partitions += 1


def a_transaction_that_is_aborted(world: World) -> ActiveFault:
    with world.traffic.transaction(200, world.random, commit=False):
        yield world.random.uniform(0.0, 1.0)


def a_transaction_that_stays_open(world: World) -> ActiveFault:
    """Until its commit, later records in its partitions are not read, of all shippers."""
    with world.traffic.transaction(200, world.random, commit=True):
        yield world.random.uniform(1.0, 3.0)


def records_sent_twice(world: World) -> ActiveFault:
    world.traffic.send_again(100, world.random)
    yield 0.0


def records_that_cannot_be_read(world: World) -> ActiveFault:
    world.traffic.send_unreadable(100, world.random)
    yield 0.0


def a_shippers_clock_jumps(world: World) -> ActiveFault:
    """Over midnight, into the future, or too far back."""
    world.traffic.event_clock_offset_s = world.random.choice([-1.5 * DAYS_S, -40 * DAYS_S, 60.0, 600.0])
    yield 0.3
    world.traffic.event_clock_offset_s = 0.0


def records_of_1970(world: World) -> ActiveFault:
    """From a machine whose clock was never set."""
    world.traffic.clock_offset_s = -DAYS_S * 365 * 56
    yield 0.3
    world.traffic.clock_offset_s = 0.0


class FaultKind(NamedTuple):
    """A fault and its target. A target has one fault at a time, except members, which have any number."""

    target: Target
    inject: Callable[[World], ActiveFault]

    def __str__(self) -> str:
        return self.inject.__name__.replace("_", " ")


FAULT_KINDS = (
    FaultKind("members", killed),
    FaultKind("members", suspended_beyond_its_session_timeout),
    FaultKind("members", stopped_by_sigterm),
    FaultKind("members", a_storm_of_rebalances),
    FaultKind("members", two_owners),
    FaultKind("members", a_clock_wrong_by_a_day),
    FaultKind("broker", broker_killed),
    FaultKind("broker", broker_paused),
    FaultKind("network to Kafka", connections_to_kafka_cut),
    FaultKind("network to Kafka", network_to_kafka_silent),
    FaultKind("network to Kafka", network_to_kafka_slow),
    FaultKind("network to Kafka", network_to_kafka_fragmented),
    FaultKind("database", database_killed),
    FaultKind("database", connections_terminated),
    FaultKind("database", rows_locked_by_another_client),
    FaultKind("database", another_plan),
    FaultKind("network to the database", connections_to_the_database_cut),
    FaultKind("network to the database", network_to_the_database_silent),
    FaultKind("network to the database", a_commit_that_never_arrives),
    FaultKind("network to the database", a_commit_whose_reply_is_lost),
    FaultKind("network to the database", stopped_in_the_middle_of_a_flush),
    FaultKind("broker", partitions_added),
    FaultKind("broker", a_transaction_that_is_aborted),
    FaultKind("broker", a_transaction_that_stays_open),
    FaultKind("broker", records_sent_twice),
    FaultKind("broker", records_that_cannot_be_read),
    FaultKind("records", a_shippers_clock_jumps),
    FaultKind("records", records_of_1970),
)
