"""The wall around private names of kafka-python: its table, its rule, the analyzer without each feature."""

from __future__ import annotations

import ast
import logging
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.protocol.parser import KafkaProtocol

from analyzer.kernel.model import Gap
from analyzer.sources.kafka import KafkaRecords
from analyzer.sources.kafka.internals.class_swap import swap_class
from analyzer.sources.kafka.internals.features import (
    ALL_FEATURES,
    ATTRIBUTE,
    FEATURES,
    FIELD,
    OPTION,
    TESTED,
    FeatureName,
    changed_members,
    matches,
    report,
    supported_features,
)
from analyzer.sources.kafka.internals.large_reads import READ_BYTES, LargeBytes
from tests.house.reading import ROOT, Module, modules, within
from tests.support.installation import Installation, RealKafka, write
from tests.support.kafka_features import GONE
from tests.support.kafka_log import lines, open_source, produce, read_and_check
from tests.support.source_reader import MemoryPositionStore, SourceReader

ROWS = [
    (name, owner, member, kind)
    for name, feature in FEATURES.items()
    for owner, members in feature.members.items()
    for member, kind in members.items()
]
INTERNALS = "analyzer.sources.kafka.internals"
PUBLIC_MODULES = {"kafka", "kafka.errors", "kafka.admin", "kafka.coordinator.assignors.roundrobin"}


class TestTable:
    @pytest.mark.parametrize(("name", "owner", "member", "kind"), ROWS)
    def test_the_installed_release_has_each_member(
        self, name: str, owner: str, member: str, kind: str
    ) -> None:
        assert matches(owner, member, kind)

    @pytest.mark.parametrize(("name", "owner", "member", "kind"), ROWS)
    def test_a_missing_or_changed_member_is_found_for_its_feature(
        self, name: FeatureName, owner: str, member: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_away(resolve(owner), member, kind, monkeypatch)
        found = [*changed_members(FEATURES[name])]
        monkeypatch.undo()
        assert f"{owner.replace(':', '.')}.{member}" in found

    def test_kinds_are_distinguished(self) -> None:
        assert matches("string:Formatter", "get_value", "(self, key, args, kwargs)")
        assert matches("string:Formatter", "get_value", "(self, key, ...)")
        assert not matches("string:Formatter", "get_value", "(self, key)")
        assert not matches("string:Formatter", "get_value", "(self, name, ...)")
        assert not matches("string:Formatter", "gone", "(self, ...)")
        assert not matches("string:Gone", "get_value", "(self, ...)")
        assert not matches("no_such_module", "Formatter", ATTRIBUTE)
        assert matches("string", "Formatter", ATTRIBUTE)
        assert matches("logging:Handler", "level", FIELD)
        assert matches("logging:StreamHandler", "level", FIELD), "a field of its base class"
        assert not matches("logging:Handler", "gone", FIELD)
        assert not matches("logging:Handler", "gone", OPTION)

    def test_each_feature_says_what_is_lost_without_it(self) -> None:
        assert all(feature.lost and feature.members for feature in FEATURES.values())
        assert [line.split() for line in report().splitlines()[1:]] == [[name, "on"] for name in FEATURES]

    def test_the_page_for_operators_has_the_same_table(self) -> None:
        page = (ROOT / "docs" / "kafka.md").read_text().replace("`", "")
        assert [
            name for name, feature in FEATURES.items() if f"| {name} | {feature.lost} |" not in page
        ] == []


def resolve(owner: str) -> Any:
    module, _, path = owner.partition(":")
    found: Any = __import__(module, fromlist=["_"])
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    return found


def take_away(owner: Any, member: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes kafka-python so that the row is wrong."""
    if kind == OPTION:
        monkeypatch.delitem(owner.DEFAULT_CONFIG, member)
        return
    if kind == FIELD:
        for base in owner.__mro__[:-1]:
            if isinstance(vars(base).get("__init__"), FunctionType):
                monkeypatch.setattr(base, "__init__", lambda self: None)
    if kind.startswith("("):
        monkeypatch.setattr(owner, member, lambda: None)
        return
    for holder in getattr(owner, "__mro__", [owner]):
        if member in vars(holder):
            monkeypatch.delattr(holder, member)


class TestRule:
    @pytest.fixture(autouse=True)
    def uncached(self) -> Iterator[None]:
        supported_features.cache_clear()
        yield
        supported_features.cache_clear()

    def test_the_installed_release_supports_all_features(self, caplog: pytest.LogCaptureFixture) -> None:
        assert supported_features() == ALL_FEATURES
        assert caplog.text == ""

    @pytest.mark.parametrize("name", FEATURES)
    def test_a_feature_that_is_off_is_logged_once_with_what_is_lost(
        self, name: FeatureName, switch_off: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        switch_off(name)
        for _ in range(3):
            KafkaRecords({"t": "log"}, MemoryPositionStore(), assign="all").close()
        assert supported_features() == ALL_FEATURES - {name}
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert (
            f"{name} is off (kafka.{GONE}): {FEATURES[name].lost}; install kafka-python {TESTED}"
            in record.message
        )

    def test_an_object_of_another_class_keeps_its_class_and_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        part = string.Formatter()
        assert not swap_class(part, ConsumerCoordinator, KafkaConsumer)
        assert type(part) is string.Formatter
        assert "kafka-python made a Formatter instead of a ConsumerCoordinator" in caplog.text


class TestAnAnalyzerWithout:
    @pytest.mark.parametrize("name", FEATURES)
    def test_an_analyzer_without_one_feature_counts_each_record_once(
        self, real_kafka: RealKafka, name: FeatureName, switch_off: Callable[..., None], tmp_path: Path
    ) -> None:
        """Over new records, partitions that are read again, a restart, and as a group."""
        switch_off(name)
        topic = real_kafka.create_topic(partitions=2)
        here = Installation(tmp_path, real_kafka.bootstrap, [topic])
        try:
            truth = write(real_kafka, topic, 0, 0) | write(real_kafka, topic, 1, 0)
            here.run_until(lambda: here.counted() == truth)
            assert here.daemon is not None
            source = here.daemon.pipeline.source
            source.rewind()
            truth |= write(real_kafka, topic, 0, 10)
            here.run_until(lambda: here.counted() == truth)
            here.stop()
            truth |= write(real_kafka, topic, 1, 10)
            here.run_until(lambda: here.counted() == truth)
            assert here.daemon.pipeline.source.problems() == {}
        finally:
            here.close()
        joined = SourceReader(
            open_source(real_kafka, store := MemoryPositionStore(), topic, group_id=topic), store, {}
        )
        joined.run_until(lambda: sum(map(len, joined.kept.values())) == 40)
        assert joined.source.problems() == {}
        joined.source.close()

    @pytest.mark.parametrize("off", [(), ("large-reads",)], ids=["with", "without"])
    def test_large_answers_are_read_in_large_pieces_and_copied_once(
        self,
        real_kafka: RealKafka,
        switch_off: Callable[..., None],
        off: tuple[FeatureName, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        switch_off(*off)
        read: list[int] = []
        received: list[int] = []
        copy, receive = LargeBytes.read, KafkaProtocol.receive_bytes

        def noted_copy(buffer: LargeBytes, nbytes: int | None = None) -> bytes:
            data = copy(buffer, nbytes)
            read.append(len(data))
            return data

        def noted_receive(protocol: KafkaProtocol, data: bytes) -> Any:
            received.append(len(data))
            return receive(protocol, data)

        monkeypatch.setattr(LargeBytes, "read", noted_copy)
        monkeypatch.setattr(KafkaProtocol, "receive_bytes", noted_receive)
        topic = real_kafka.create_topic()
        wanted = [b"%06d" % number + bytes(10_000) for number in range(300)]
        produce(real_kafka, topic, wanted, partition=0, compression_type="none")
        reader = SourceReader(open_source(real_kafka, store := MemoryPositionStore(), topic), store, {})
        read_and_check([reader], wanted)
        reader.source.close()
        assert (sum(read) > 2_000_000) == (not off)
        assert off or max(received) <= READ_BYTES

    @pytest.mark.parametrize("off", [(), ("paused-records",)], ids=["with", "without"])
    def test_a_stopped_partition_can_be_read_again_with_and_without_paused_records(
        self, real_kafka: RealKafka, switch_off: Callable[..., None], off: tuple[FeatureName, ...]
    ) -> None:
        """kafka-python itself fetches nothing more of a partition that was paused while it was decoded."""
        switch_off("whole-batches", *off)
        topic = real_kafka.create_topic(partitions=2)
        for partition in range(2):
            produce(real_kafka, topic, lines(40, begin=40 * partition), partition=partition)
        options = {"max_poll_records": 5}
        reader = SourceReader(
            open_source(real_kafka, store := MemoryPositionStore(), topic, options=options), store, {}
        )
        reader.run_until(lambda: bool(reader.kept))
        [stopped] = reader.kept
        reader.source.stop(stopped, Gap("too-large", 5, 6, "a batch expands beyond the bound"))
        reader.run_until(lambda: sum(map(len, reader.kept.values())) == 45)
        reader.source.rewind([stopped])
        read_and_check([reader], lines(80), turns=200)
        reader.source.close()

    def test_the_decompression_bound_alone_is_enough_to_count_each_record_once(
        self, real_kafka: RealKafka, switch_off: Callable[..., None]
    ) -> None:
        switch_off(*(ALL_FEATURES - {"decompression-bound"}))
        topic = real_kafka.create_topic()
        produce(real_kafka, topic, lines(40))
        store = MemoryPositionStore()
        reader = SourceReader(open_source(real_kafka, store, topic), store, {})
        read_and_check([reader], lines(40))
        reader.start_over()
        produce(real_kafka, topic, lines(40, begin=40))
        read_and_check([reader], lines(80))
        reader.source.close()

    def test_without_whole_batches_and_the_bound_nothing_is_read_and_a_problem_names_it(
        self, real_kafka: RealKafka, switch_off: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        switch_off("whole-batches", "decompression-bound")
        topic = real_kafka.create_topic()
        produce(real_kafka, topic, lines(40))
        source = open_source(real_kafka, MemoryPositionStore(), topic)
        assert [*source.take(0.1), *source.take(0.1)] == []
        [(name, why)] = source.problems().items()
        assert name == "kafka-python"
        assert "install kafka-python 3.0.12" in why
        assert f"kafka-python: {why}" in caplog.messages
        source.close()


OUTSIDE = [
    module
    for name, module in modules().items()
    if within(name, "analyzer.sources.kafka") and not within(name, INTERNALS)
]
INSIDE = [module for name, module in modules().items() if within(name, INTERNALS)]
FACADE = (f"{INTERNALS}.consumer", f"{INTERNALS}.interfaces", f"{INTERNALS}.features")


class TestWall:
    """The source is read, not run."""

    def test_the_wall_has_an_inside_and_an_outside(self) -> None:
        assert len(INSIDE) >= 7
        assert len(OUTSIDE) >= 12

    @pytest.mark.parametrize("module", OUTSIDE, ids=lambda module: module.name)
    def test_no_module_outside_uses_a_private_name_of_kafka_python(self, module: Module) -> None:
        names = [imported.name for imported in module.imports()]
        assert [name for name in names if within(name, "kafka") and not is_public(name)] == []
        assert [name for name in names if within(name, INTERNALS) and not within(name, *FACADE)] == []
        assert private_attributes(module, but_of="self") == set()

    @pytest.mark.parametrize("module", INSIDE, ids=lambda module: module.name)
    def test_every_private_name_inside_is_in_the_table(self, module: Module) -> None:
        # In the facade, private names of `self` are ours; in the other modules `self` is kafka-python's.
        found = private_attributes(module, but_of="self" if module.name in FACADE else "")
        assert found - {"__class__"} <= {member for _, _, member, _ in ROWS}
        assert ("__class__" in found) == (module.name == f"{INTERNALS}.class_swap")


def is_public(name: str) -> bool:
    return name in PUBLIC_MODULES or name.rpartition(".")[0] in PUBLIC_MODULES


def private_attributes(module: Module, but_of: str) -> set[str]:
    """Returns the attributes with an underscore in front, and `__class__`, of all but the name `but_of`."""
    return {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and (node.attr == "__class__" or (node.attr.startswith("_") and not node.attr.startswith("__")))
        and node.attr not in ("_replace", "_make")  # public ones of named tuples
        and not (isinstance(node.value, ast.Name) and node.value.id == but_of)
    }


def test_the_table_has_a_row_for_each_name_of_a_feature() -> None:
    assert set(get_args(FeatureName)) == set(FEATURES)
