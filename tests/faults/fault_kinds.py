"""What may befall analyzers, brokers, databases, networks, shippers. Each fault is a generator: it strikes,
yields how many seconds it lasts, and makes good again; then nothing may have been lost, or counted twice."""

from __future__ import annotations

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

Touched = Literal["members", "broker", "database", "way to Kafka", "way to the database", "records"]
Lasting = Generator[float, None, None]
DAYS_S = 86_400.0
POLICIES = {("daily", "day"): 2_000, ("hourly", "hour"): 500, ("minutely", "minute"): 100}


@dataclass(slots=True)
class World:
    """Everything that a fault may lay its hands on."""

    fleet: Fleet
    traffic: Traffic
    kafka: NativeKafka
    postgres: NativePostgres
    way_to_kafka: Proxy
    way_to_database: Proxy
    random: Random
    spoken_for: list[Member] = field(default_factory=list)
    came_to_pass: bool = True  # a trap may be one that nobody walks into

    @contextmanager
    def somebody(self) -> Iterator[Member]:
        """An analyzer that no other fault has in its hands."""
        member = self.random.choice([each for each in self.fleet.members if each not in self.spoken_for])
        self.spoken_for.append(member)
        try:
            yield member
        finally:
            self.spoken_for.remove(member)

    def sql(self, statement: str, *values: object) -> None:
        with psycopg.connect(dsn_of(self.fleet.database), autocommit=True) as db:
            db.execute(statement, values)  # type: ignore[arg-type]  # of ours, all of them


# Analyzers


def killed(world: World) -> Lasting:
    """SIGKILL, wherever it is; another one starts."""
    with world.somebody() as member:
        world.fleet.kill(member)
    world.fleet.join()
    yield 0.0


def stopped_beyond_its_session(world: World) -> Lasting:
    """SIGSTOP, and it wakes with records in hand that others have counted."""
    with world.somebody() as member:
        world.fleet.pause(member)
        yield world.fleet.session_s + world.random.uniform(1.0, 2.0)
        world.fleet.resume(member)


def ended_in_good_order(world: World) -> Lasting:
    """SIGTERM; it is gone within ten seconds, whatever else is broken."""
    with world.somebody() as member:
        member.terminate()
        world.fleet.join()
        for _ in range(100):
            if member.poll() is not None:
                break
            yield 0.1
        world.fleet.left(member)


def a_storm_of_rebalances(world: World) -> Lasting:
    """Two come, and each goes again at once."""
    guests = [world.fleet.join() for _ in range(2)]
    world.spoken_for += guests
    for guest in guests:
        yield world.random.uniform(0.8, 1.5)
        world.spoken_for.remove(guest)
        world.fleet.leave(guest)


def two_owners(world: World) -> Lasting:
    """An analyzer of another group: it, too, was told that every partition is its own."""
    twin = world.fleet.join(config=world.fleet.configure("twin"))
    world.spoken_for.append(twin)
    counted = False
    for _ in range(150):
        counted = counted or world.fleet.has_stored(twin)
        if counted:
            break
        yield 0.1
    yield world.random.uniform(0.5, 1.5)
    world.spoken_for.remove(twin)
    world.fleet.kill(twin)
    world.came_to_pass = counted


def a_clock_that_is_a_day_off(world: World) -> Lasting:
    """An analyzer whose clock is wrong takes the place of another one."""
    with world.somebody() as member:
        world.fleet.kill(member)
    world.fleet.join(world.random.choice(["a_day_ahead", "a_day_behind"]))
    yield 0.0


# The broker, and the way to it


def broker_killed(world: World) -> Lasting:
    world.kafka.kill()
    yield world.random.uniform(0.0, 1.5)
    world.kafka.start()


def broker_stands_still(world: World) -> Lasting:
    world.kafka.pause()
    yield world.random.uniform(1.0, 3.5)
    world.kafka.resume()


def connections_to_kafka_cut(world: World) -> Lasting:
    world.way_to_kafka.cut()
    yield 0.0


def network_to_kafka_silent(world: World) -> Lasting:
    """Bytes go in and none come out; beyond the session, a group is made anew meanwhile."""
    world.way_to_kafka.stall()
    yield world.random.uniform(1.0, 4.0)
    world.way_to_kafka.flow()


def network_to_kafka_slow(world: World) -> Lasting:
    world.way_to_kafka.slow(0.1)
    yield world.random.uniform(1.0, 3.0)
    world.way_to_kafka.slow(0.0)


def network_to_kafka_in_shreds(world: World) -> Lasting:
    """A few bytes at a time, so that every message arrives in parts."""
    world.way_to_kafka.shred(world.random.randint(3, 60))
    yield world.random.uniform(1.0, 2.0)
    world.way_to_kafka.shred()


# The database, and the way to it


def database_killed(world: World) -> Lasting:
    world.postgres.kill()
    yield world.random.uniform(0.0, 2.0)
    world.postgres.start()


def connections_terminated(world: World) -> Lasting:
    """As an administrator does, or a pooler that restarts."""
    world.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    yield 0.0


def connections_to_the_database_cut(world: World) -> Lasting:
    world.way_to_database.cut()
    yield 0.0


def network_to_the_database_silent(world: World) -> Lasting:
    """Analyzers wait for an answer in mid-flush; then it comes, or the connection is gone."""
    world.way_to_database.stall()
    yield world.random.uniform(1.0, 4.0)
    if world.random.random() < 0.5:
        world.way_to_database.cut()
    world.way_to_database.flow()


def a_commit_that_never_arrives(world: World) -> Lasting:
    yield from _at_a_commit(world, world.way_to_database.lose(b"COMMIT", "request"))


def a_commit_whose_reply_is_lost(world: World) -> Lasting:
    """The counts are stored; the analyzer cannot know."""
    yield from _at_a_commit(world, world.way_to_database.lose(b"COMMIT", "reply"))


def stopped_in_mid_flush(world: World) -> Lasting:
    """Everything written and locked, and no COMMIT for seven seconds; the database gives it up after five."""
    yield from _at_a_commit(world, world.way_to_database.lose(b"COMMIT", "time", 7.0))
    yield 5.5


def _at_a_commit(world: World, sprung: object) -> Lasting:
    """Wait until somebody commits."""
    for _ in range(100):
        if sprung.is_set():  # type: ignore[attr-defined]  # threading.Event
            return
        yield 0.05
    world.came_to_pass = False


def rows_that_a_stranger_holds(world: World) -> Lasting:
    """Beyond the lock's time-out, and without asking in which order others take them."""
    with (
        suppress(psycopg.errors.DeadlockDetected),  # one of us must give way
        psycopg.connect(dsn_of(world.fleet.database)) as stranger,
    ):
        stranger.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        stranger.execute("select 1 from offsets order by random() limit 2 for update")
        stranger.execute("select 1 from totals order by random() limit 20 for update")
        yield world.random.uniform(2.2, 3.0)


def another_plan(world: World) -> Lasting:
    """A limit is another one from now on: everybody agrees on it, flush by flush, and nothing that is counted
    meanwhile is left out of the totals that are added up anew."""
    fleet = world.fleet
    at = world.random.choice(sorted(fleet.policies))
    usual = POLICIES[at]
    limits = [limit for limit in (usual // 2, usual, usual * 2) if limit != fleet.policies[at]]
    fleet.policies = {**fleet.policies, at: world.random.choice(limits)}
    fleet.configure()
    fleet.activate()
    yield 0.0


# Records, and who writes them


def partitions_added(world: World) -> Lasting:
    admin = KafkaAdminClient(bootstrap_servers=world.kafka.bootstrap)
    try:
        admin.create_partitions({world.fleet.topic: world.fleet.partitions + 1})
    finally:
        admin.close()
    world.fleet.partitions += 1
    yield 1.5  # shippers look every half second
    world.traffic.partitions += 1


def a_transaction_that_is_aborted(world: World) -> Lasting:
    with world.traffic.transaction(200, world.random, commit=False):
        yield world.random.uniform(0.0, 1.0)


def a_transaction_that_stays_open(world: World) -> Lasting:
    """Nothing behind it may be read, of whoever it is, until it is committed."""
    with world.traffic.transaction(200, world.random, commit=True):
        yield world.random.uniform(1.0, 3.0)


def records_sent_again(world: World) -> Lasting:
    world.traffic.send_again(100, world.random)
    yield 0.0


def records_that_cannot_be_read(world: World) -> Lasting:
    world.traffic.send_unreadable(100, world.random)
    yield 0.0


def a_shippers_clock_jumps(world: World) -> Lasting:
    """Over midnight, into the future, too far back; or the requests' clock and Kafka's both."""
    world.traffic.clock_off_s = world.random.choice([-1.5 * DAYS_S, -40 * DAYS_S, 60.0, 600.0])
    yield 0.3
    world.traffic.clock_off_s = 0.0


def records_of_1970(world: World) -> Lasting:
    """From a machine that does not know what day it is."""
    world.traffic.both_off_s = -DAYS_S * 365 * 56
    yield 0.3
    world.traffic.both_off_s = 0.0


class Kind(NamedTuple):
    """A fault, and what it touches; of one thing there is one fault at a time, of members any number."""

    touches: Touched
    strike: Callable[[World], Lasting]

    def __str__(self) -> str:
        return self.strike.__name__.replace("_", " ")


KINDS = (
    Kind("members", killed),
    Kind("members", stopped_beyond_its_session),
    Kind("members", ended_in_good_order),
    Kind("members", a_storm_of_rebalances),
    Kind("members", two_owners),
    Kind("members", a_clock_that_is_a_day_off),
    Kind("broker", broker_killed),
    Kind("broker", broker_stands_still),
    Kind("way to Kafka", connections_to_kafka_cut),
    Kind("way to Kafka", network_to_kafka_silent),
    Kind("way to Kafka", network_to_kafka_slow),
    Kind("way to Kafka", network_to_kafka_in_shreds),
    Kind("database", database_killed),
    Kind("database", connections_terminated),
    Kind("database", rows_that_a_stranger_holds),
    Kind("database", another_plan),
    Kind("way to the database", connections_to_the_database_cut),
    Kind("way to the database", network_to_the_database_silent),
    Kind("way to the database", a_commit_that_never_arrives),
    Kind("way to the database", a_commit_whose_reply_is_lost),
    Kind("way to the database", stopped_in_mid_flush),
    Kind("broker", partitions_added),
    Kind("broker", a_transaction_that_is_aborted),
    Kind("broker", a_transaction_that_stays_open),
    Kind("broker", records_sent_again),
    Kind("broker", records_that_cannot_be_read),
    Kind("records", a_shippers_clock_jumps),
    Kind("records", records_of_1970),
)
