"""Which log a name stands for, and what is said when it is another one."""

from __future__ import annotations

from kafka import TopicPartition

from analyzer.core.model import Gap, Partition
from analyzer.kafka.metadata import TopicMetadata
from analyzer.kafka.topic_ids import TopicIds
from tests.support.places import MemoryPlaces

AT = TopicPartition("access-log", 1)
TWO = frozenset({0, 1})


def seen(places: MemoryPlaces, cluster: str, topic_id: str) -> TopicIds:
    logs = TopicIds({"access-log": "log"}, places)
    logs.update(cluster, {"access-log": TopicMetadata(topic_id, TWO)})
    return logs


def test_offsets_of_another_cluster_are_not_believed() -> None:
    places = MemoryPlaces()
    places.begin(Partition("here", "id-1", 1, "log", "access-log"), 40)
    logs = seen(places, "there", "id-1")
    assert logs.is_counted("access-log")
    assert logs.parts([AT]) == {}
    [why] = logs.problems().values()
    assert why == "topic access-log was in another cluster: it was in here, now it is in there"
    assert set(logs.gaps().values()) == {Gap("recreated", 0, None, why)}
    assert {(part.cluster, part.number) for part in logs.gaps()} == {("there", 0), ("there", 1)}


def test_another_id_is_another_log_until_somebody_says_that_it_may_be_read() -> None:
    logs = seen(MemoryPlaces(), "here", "id-1")
    logs.update("here", {"access-log": TopicMetadata("id-2", TWO)})
    [why] = logs.problems().values()
    assert why == "topic access-log was deleted and created again: its id was id-1, now id-2"
    logs.update("here", {"access-log": TopicMetadata("id-3", TWO)})
    assert {part.topic_id for part in logs.gaps()} == {"id-3"}, "and again, while it waited"
    assert {gap.why for gap in logs.gaps().values()} == {why.replace("id-2", "id-3")}
    logs.accept(["access-log"])
    assert logs.gaps() == {}
    assert [part.topic_id for part in logs.parts([AT])] == ["id-3"]


def test_the_same_log_is_read_whatever_partitions_it_has_got() -> None:
    logs = seen(MemoryPlaces(), "here", "id-1")
    logs.update("here", {"access-log": TopicMetadata("id-1", frozenset({0, 1, 2}))})
    assert logs.problems() == {}
    assert list(logs.parts([AT]).values()) == [AT]
