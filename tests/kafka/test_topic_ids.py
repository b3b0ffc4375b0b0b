"""Logs that are not the one that was counted under a topic's name are refused."""

from __future__ import annotations

from kafka import TopicPartition

from analyzer.kernel.model import Gap, Partition
from analyzer.sources.kafka.metadata import TopicMetadata
from analyzer.sources.kafka.topic_ids import TopicIds
from tests.support.source_reader import MemoryPositionStore

TP = TopicPartition("access-log", 1)
TWO = frozenset({0, 1})


def seen(positions: MemoryPositionStore, cluster: str, topic_id: str) -> TopicIds:
    topic_ids = TopicIds({"access-log": "log"}, positions)
    topic_ids.update(cluster, {"access-log": TopicMetadata(topic_id, TWO)})
    return topic_ids


def test_a_log_of_another_cluster_is_refused() -> None:
    positions = MemoryPositionStore()
    positions.begin(Partition("here", "id-1", 1, "log", "access-log"), 40)
    topic_ids = seen(positions, "there", "id-1")
    assert topic_ids.is_counted("access-log")
    assert topic_ids.parts([TP]) == {}
    [why] = topic_ids.problems().values()
    assert why == "topic access-log was in another cluster: it was in here, now it is in there"
    assert set(topic_ids.gaps().values()) == {Gap("recreated", 0, None, why)}
    assert {(part.cluster, part.number) for part in topic_ids.gaps()} == {("there", 0), ("there", 1)}


def test_a_log_with_another_id_is_refused_until_an_operator_accepts_it() -> None:
    topic_ids = seen(MemoryPositionStore(), "here", "id-1")
    topic_ids.update("here", {"access-log": TopicMetadata("id-2", TWO)})
    [why] = topic_ids.problems().values()
    assert why == "topic access-log was deleted and created again: its id was id-1, now id-2"
    topic_ids.update("here", {"access-log": TopicMetadata("id-3", TWO)})
    assert {part.topic_id for part in topic_ids.gaps()} == {"id-3"}, "recreated once more while it waited"
    assert {gap.why for gap in topic_ids.gaps().values()} == {why.replace("id-2", "id-3")}
    topic_ids.accept(["access-log"])
    assert topic_ids.gaps() == {}
    assert [part.topic_id for part in topic_ids.parts([TP])] == ["id-3"]


def test_a_log_with_more_partitions_is_still_the_same_log() -> None:
    topic_ids = seen(MemoryPositionStore(), "here", "id-1")
    topic_ids.update("here", {"access-log": TopicMetadata("id-1", frozenset({0, 1, 2}))})
    assert topic_ids.problems() == {}
    assert list(topic_ids.parts([TP]).values()) == [TP]
