"""Analyzers of one group join, leave and die, and together store each record once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

from analyzer.kernel.errors import PartitionLost
from analyzer.kernel.model import Partition, Position
from analyzer.sources.kafka import KafkaRecords
from analyzer.sources.kafka.source import REVOCATION_WAIT_S
from tests.support.kafka_log import lines, open_source, produce, read_and_check, stored
from tests.support.servers.kafka import GivenKafka, NativeKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

SESSION_S = 1.5
RealKafka = NativeKafka | GivenKafka


def fast_uptime_s() -> float:
    """A clock on which a minute takes three seconds."""
    return time.monotonic() * 20


class Group:
    """Members of one group over one store."""

    def __init__(self, kafka: RealKafka, topic: str, **given: Any) -> None:
        self.kafka, self.topic, self.given = kafka, topic, given
        self.positions, self.kept = MemoryPositionStore(), {}
        self.members: list[SourceReader] = []
        self.written: list[bytes] = []

    def join(self) -> SourceReader:
        source = open_source(
            self.kafka,
            self.positions,
            self.topic,
            group_id=self.topic,
            session_timeout_s=SESSION_S,
            **self.given,
        )
        self.members.append(SourceReader(source, self.positions, self.kept))
        return self.members[-1]

    def write(self, count: int = 100) -> None:
        more = lines(count, begin=len(self.written))
        self.written += more
        produce(self.kafka, self.topic, more)

    def leave(self, member: SourceReader) -> None:
        self.members.remove(member)
        member.source.close()

    def crash(self, member: SourceReader) -> None:
        """Closes the sockets and sends nothing, as a SIGKILL does."""
        self.members.remove(member)
        client(member)._consumer._client.close()

    def settle(self, shares: list[int], seconds: float = 20) -> None:
        """Reads until the members have the given numbers of partitions."""
        end_s = time.monotonic() + seconds
        while sorted(len(member.source.positions()) for member in self.members) != shares:
            assert time.monotonic() < end_s, [member.source.positions() for member in self.members]
            for member in self.members:
                member.turn()

    def read(self) -> None:
        read_and_check(self.members, self.written)


def client(member: SourceReader) -> Any:
    assert isinstance(member.source, KafkaRecords)
    return member.source._client


@pytest.fixture
def group(real_kafka: RealKafka) -> Iterator[Group]:
    group = Group(real_kafka, real_kafka.create_topic(), options={})
    yield group
    for member in list(group.members):
        group.leave(member)


@pytest.fixture(params=["eager", "cooperative"])
def either_group(request: pytest.FixtureRequest, group: Group) -> Group:
    """Eager is our default. Cooperative members keep partitions that do not move, and join in two rounds."""
    if request.param == "cooperative":
        group.given["options"] = {"partition_assignment_strategy": (CooperativeStickyAssignor,)}
    return group


def test_members_that_join_and_leave_share_the_work(either_group: Group) -> None:
    group = either_group
    group.write()
    group.join()
    group.settle([4])
    group.read()
    group.join()
    group.join()
    group.write()
    group.settle([1, 1, 2])
    group.write()
    group.read()
    group.leave(group.members[0])
    group.write()
    group.settle([2, 2])
    group.read()
    assert stored(group.members) == group.written, "each record once"


def test_partitions_that_are_taken_and_given_up_are_logged(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="analyzer.sources.kafka.source")
    group.join()
    group.settle([4])
    names = [f"{group.topic}[{number}]" for number in range(4)]
    assert f"reading {', '.join(names)}" in caplog.messages
    caplog.clear()
    group.join()
    group.settle([2, 2])
    assert f"no longer reading {', '.join(names)}" in caplog.messages
    taken = [line.removeprefix("reading ").split(", ") for line in caplog.messages if line[:7] == "reading"]
    assert sorted(taken[0] + taken[1]) == names, "each of the two reads half of them"


def test_the_partitions_of_a_dead_member_are_continued_by_the_others(either_group: Group) -> None:
    group = either_group
    for _ in range(3):
        group.join()
    group.write()
    group.settle([1, 1, 2])
    group.read()
    group.write()
    doomed = group.members[0]
    doomed.take()  # records that it never stores
    group.crash(doomed)
    died_s = time.monotonic()
    group.settle([2, 2])
    assert time.monotonic() - died_s < SESSION_S + 5
    group.read()


def test_a_member_that_was_suspended_stores_nothing_and_drops_its_partitions(
    either_group: Group,
) -> None:
    group = either_group
    group.given["options"] = {**group.given["options"], "max_poll_interval_ms": 2_000}
    suspended = group.join()
    group.join()
    group.write()
    group.settle([2, 2])
    group.read()
    group.write()
    assert any(suspended.take() for _ in range(100))
    taken = set(suspended.taken)
    suspended.lost.clear()

    group.members.remove(suspended)
    group.settle([4])
    group.read()
    group.members.append(suspended)
    with pytest.raises(PartitionLost):
        suspended.store()
    assert any(suspended.lost for _ in range(100) if suspended.take() >= 0)
    assert taken <= set(suspended.lost)
    assert not taken & suspended.taken.keys(), "the loss comes before records that were read after it"
    suspended.start_over()
    group.write()
    group.settle([2, 2])
    group.read()


def test_positions_are_set_during_the_rebalance(group: Group) -> None:
    """One poll later would be too late: the client would look for a committed offset, or fetch from one."""
    first = group.join()
    group.write()
    group.settle([4])
    group.read()
    group.leave(first)

    threads: list[str] = []
    positions = group.positions.positions

    def noted(parts: Collection[Partition]) -> Mapping[Partition, Position]:
        threads.append(threading.current_thread().name)
        return positions(parts)

    group.positions.positions = noted  # type: ignore[method-assign]  # of this one
    group.write()
    group.join()
    group.settle([4])
    group.read()
    assert threads
    assert all(name.startswith("kafka-io-") for name in threads)


def test_a_database_that_is_down_during_a_rebalance_is_asked_again(group: Group) -> None:
    first = group.join()
    group.write()
    group.settle([4])
    group.read()
    group.leave(first)

    group.positions.away = True
    group.write()
    member = group.join()
    refused = 0
    for _ in range(40):
        try:
            assert member.take() == 0
        except Exception:  # noqa: BLE001 - StoreAway, as soon as our thread asks
            refused += 1
    assert refused > 0
    assert member.source.positions() == {}
    assert client(member).assignment(), "it stays in the group"
    group.positions.away = False
    group.read()


def test_a_spare_member_has_no_problem_and_stays(real_kafka: RealKafka) -> None:
    group = Group(real_kafka, real_kafka.create_topic(partitions=1), uptime_s=fast_uptime_s)
    group.join()
    group.join()
    group.settle([0, 1])
    spare = next(member for member in group.members if not member.source.positions())
    connection = client(spare)
    began_s = fast_uptime_s()
    while fast_uptime_s() - began_s < 40:
        for member in group.members:
            member.turn()
    assert spare.source.problems() == {}
    assert client(spare) is connection, "it did not leave and join again"
    for member in list(group.members):
        group.leave(member)


def test_a_member_that_was_left_out_joins_again(real_kafka: RealKafka) -> None:
    """The group leaves partitions unread and a member without one: seen once in eight starts under load."""

    class AssignsNothingAtFirst(RangePartitionAssignor):
        name = "nothing-at-first"
        rounds = 0

        @classmethod
        def assign(cls, cluster: Any, members: Any) -> Any:
            assignments = super().assign(cluster, members)
            cls.rounds += 1
            if cls.rounds == 1:
                for assignment in assignments.values():
                    assignment.assigned_partitions.clear()
            return assignments

    options = {"partition_assignment_strategy": (AssignsNothingAtFirst,)}
    group = Group(real_kafka, real_kafka.create_topic(), options=options, uptime_s=fast_uptime_s)
    member = group.join()
    group.write()
    group.settle([4])
    # More than 2 on a busy machine: by this clock a member gives up waiting after half a second.
    assert AssignsNothingAtFirst.rounds >= 2
    group.read()
    member.run_until(lambda: member.source.problems() == {})
    assert member.source.problems() == {}
    group.leave(member)


def test_a_session_timeout_below_the_brokers_minimum_is_raised(real_kafka: RealKafka) -> None:
    topic = real_kafka.create_topic()
    positions = MemoryPositionStore()
    source = open_source(real_kafka, positions, topic, group_id=topic, session_timeout_s=0.3)
    produce(real_kafka, topic, lines(40))
    reader = SourceReader(source, positions, {})
    read_and_check([reader], lines(40))
    assert source.problems() == {}
    source.close()


def test_stored_offsets_are_committed_for_lag_monitors(real_kafka: RealKafka) -> None:
    topic = real_kafka.create_topic()
    positions = MemoryPositionStore()
    reader = SourceReader(open_source(real_kafka, positions, topic, group_id=topic), positions, {})
    produce(real_kafka, topic, lines(40))
    read_and_check([reader], lines(40))
    began_s = time.monotonic()
    while committed(real_kafka, topic) != dict.fromkeys(range(4), 10):
        reader.turn()
        assert time.monotonic() - began_s < 10
    produce(real_kafka, topic, lines(40, begin=40))
    read_and_check([reader], lines(80))
    reader.source.close()  # commits at once, not in the next second
    assert committed(real_kafka, topic) == dict.fromkeys(range(4), 20)


def committed(kafka: RealKafka, group_id: str) -> dict[int, int]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        offsets = admin.list_group_offsets(
            {group_id: [TopicPartition(group_id, number) for number in range(4)]}
        )
    finally:
        admin.close()
    return {tp.partition: metadata.offset for tp, metadata in offsets[group_id].items()}


def test_every_record_is_stored_once_while_members_join_leave_and_die(group: Group) -> None:
    acts: list[Callable[[], object]] = [
        group.join,
        group.join,
        lambda: group.crash(group.members[0]),
        group.join,
        lambda: group.leave(group.members[0]),
        lambda: group.crash(group.members[-1]),
        group.join,
    ]
    group.join()
    for act in acts:
        group.write()
        for _ in range(4):
            for member in group.members:
                member.turn()
        for member in group.members:
            member.take()  # records that are not stored when it happens
        act()
    group.read()
    assert stored(group.members) == sorted(group.written)


def test_a_revocation_waits_for_the_flush_in_flight(real_kafka: Any) -> None:
    """The next member then reads the position that this flush stores."""
    topic = real_kafka.create_topic(partitions=2)
    positions = MemoryPositionStore()
    source = open_source(real_kafka, positions, topic, group_id=topic)
    reader = SourceReader(source, positions, {})
    reader.run_until(lambda: len(source.positions()) == 2)
    positions.waited_s.clear()
    other_source = open_source(real_kafka, positions, topic, group_id=topic)
    other = SourceReader(other_source, positions, {})
    while not other_source.positions():
        reader.turn()
        other.turn()
    assert REVOCATION_WAIT_S in positions.waited_s
    source.close()
    other_source.close()
