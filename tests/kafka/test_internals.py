"""The wall around private names of kafka-python: its table, the check of a release, what is changed."""

from __future__ import annotations

import ast
import re
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import kafka
import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.parser import KafkaProtocol

from analyzer.kernel.database.migrate import upgrade
from analyzer.kernel.errors import ReleaseUnsupported
from analyzer.kernel.model import Gap
from analyzer.sources.kafka.internals import private_names
from analyzer.sources.kafka.internals.broker_connections import READ_BYTES, LargeBytes
from analyzer.sources.kafka.internals.private_names import (
    MEMBERS,
    changed_members,
    has_member,
    require_supported_release,
)
from tests.house.reading import ROOT, Module, modules, within
from tests.support.command_line import run_command
from tests.support.installation import RealKafka
from tests.support.kafka_log import lines, open_source, produce, read_and_check
from tests.support.running import Analyzer
from tests.support.servers.kafka import MockKafka
from tests.support.source_reader import MemoryPositionStore, SourceReader

ROWS = [(owner, member) for owner, members in MEMBERS.items() for member in members]
NAME = re.compile(r"\w+")
INTERNALS = "analyzer.sources.kafka.internals"
PUBLIC_MODULES = {"kafka", "kafka.errors", "kafka.admin", "kafka.coordinator.assignors.roundrobin"}


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    require_supported_release.cache_clear()
    yield
    require_supported_release.cache_clear()


class TestTable:
    def test_the_installed_release_has_every_member(self) -> None:
        assert [*changed_members()] == []

    def test_every_member_that_is_missing_or_changed_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unnoticed = []
        for owner, member in ROWS:
            with monkeypatch.context() as patch:
                take_away(resolve(owner), member, patch)
                if has_member(owner, member):
                    unnoticed.append((owner, member))
        assert unnoticed == []

    def test_kinds_are_distinguished(self) -> None:
        assert has_member("string:Formatter", "get_value(self, key, args, kwargs)")
        assert has_member("string:Formatter", "get_value(self, key, ...)")
        assert not has_member("string:Formatter", "get_value(self, key)")
        assert not has_member("string:Formatter", "get_value(self, name, ...)")
        assert not has_member("string:Formatter", "gone(self, ...)")
        assert not has_member("string:Gone", "get_value(self, ...)")
        assert not has_member("no_such_module:Formatter", "get_value")
        assert has_member("string:Formatter", "get_value")
        assert has_member("logging:Handler", "level"), "a field that __init__ sets"
        assert has_member("logging:StreamHandler", "level"), "a field of its base class"
        assert not has_member("logging:Handler", "gone")
        assert has_member("kafka:KafkaConsumer", "DEFAULT_CONFIG[client_id]")
        assert not has_member("kafka:KafkaConsumer", "DEFAULT_CONFIG[gone]")
        assert not has_member("logging:Handler", "level[gone]")


def resolve(owner: str) -> Any:
    module, _, path = owner.partition(":")
    value: Any = __import__(module, fromlist=["_"])
    for part in path.split("."):
        value = getattr(value, part)
    return value


def take_away(owner: Any, member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes kafka-python so that the row is wrong: a method gets other parameters, all else is gone."""
    name, _, key = member.rstrip("]").partition("[")
    if key:
        monkeypatch.delitem(getattr(owner, name), key)
    elif member.endswith(")"):
        monkeypatch.setattr(owner, name.partition("(")[0], lambda: None)
    else:
        for base in owner.__mro__[:-1]:
            if name in vars(base):
                monkeypatch.delattr(base, name)
            if isinstance(vars(base).get("__init__"), FunctionType):
                monkeypatch.setattr(base, "__init__", lambda self: None)


CONFIGURATION = """
    [kafka]
    bootstrap_servers = "127.0.0.1:1"
    assign = "all"
    [[sources]]
    topic  = "access-log"
    fields = { time = { path = "ts", unit = "s" }, api_key = "key" }
"""

# A release without the class that most of the changes rest on.
RUN = """
import sys
import kafka.consumer.fetcher, kafka.consumer.group
from analyzer.faces.cli import main

kafka.__version__ = "3.4.0"
del kafka.consumer.fetcher.Fetcher
sys.argv = ["gatelock", "run"]
main()
"""


class TestRelease:
    def test_the_installed_release_is_supported(self) -> None:
        require_supported_release()

    def test_the_range_is_the_one_that_is_declared(self) -> None:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lowest, highest = (
            ".".join(map(str, numbers))
            for numbers in (private_names.SUPPORTED_FROM, private_names.SUPPORTED_BELOW)
        )
        ranges = {
            requirement.partition(">=")[2]
            for requirement in [
                *declared["dependencies"],
                *(entry for extra in declared["optional-dependencies"].values() for entry in extra),
            ]
            if requirement.startswith("kafka-python")
        }
        assert ranges == {f"{lowest},<{highest}"}

    @pytest.mark.parametrize("release", ["2.3.1", "3.0.11", "4.0.0", "4.0.0rc1"])
    def test_a_release_outside_of_the_range_is_refused(
        self, release: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kafka, "__version__", release)
        with pytest.raises(ReleaseUnsupported, match=f"kafka-python {release} is not supported; install"):
            require_supported_release()

    def test_a_release_without_a_member_ends_run_with_a_sentence(self, tmp_path: Path) -> None:
        upgrade(f"sqlite:///{tmp_path}/gatelock.db")
        analyzer = Analyzer(tmp_path, "here", CONFIGURATION, code=RUN)
        assert analyzer.process.wait(60) == 2
        assert analyzer.output.splitlines()[-1] == (
            "kafka-python 3.4.0 has changed what Gatelock uses of it: "
            "kafka.consumer.fetcher.Fetcher.PartitionRecords, "
            "kafka.consumer.fetcher.Fetcher._create_fetch_requests, "
            "kafka.consumer.fetcher.Fetcher._handle_fetch_response and 13 more; "
            "install kafka-python 3.0.12: pip install 'kafka-python==3.0.12'"
        )
        assert "Traceback" not in analyzer.output

    @pytest.mark.parametrize(
        "member",
        [
            "DEFAULT_CONFIG[kafka_client]",
            "_create_fetch_requests(self)",
            "_paused_partition_records",
            "PartitionRecords",
        ],
    )
    def test_doctor_shows_a_member_of_each_kind_that_differs(
        self, member: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gatelock.toml").write_text(
            f'database = {{ url = "sqlite:///{tmp_path}/gatelock.db" }}\n{CONFIGURATION}'
        )
        upgrade(f"sqlite:///{tmp_path}/gatelock.db")
        owner = kafka.KafkaConsumer if member.endswith("]") else Fetcher
        with monkeypatch.context() as patch:
            take_away(owner, member, patch)
            result = run_command(["doctor", "--config", str(tmp_path / "gatelock.toml")])
        assert result.exit_code == 1
        assert re.search(
            r"wrong +kafka .*has changed what Gatelock uses of it: .*"
            rf"{owner.__name__}\.{re.escape(member.partition('(')[0])}.*install kafka-python 3\.0\.12",
            " ".join(result.output.split()),
        )

    def test_an_object_of_another_class_is_refused_and_its_connection_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kafka.consumer.group.Fetcher", type("NewFetcher", (Fetcher,), {}))
        broker = MockKafka()
        source = open_source(broker, MemoryPositionStore(), broker.create_topic())
        before = threading.active_count()
        with pytest.raises(ReleaseUnsupported, match="Fetcher, in place of which it makes a NewFetcher; ins"):
            next(source.take(0.1))
        assert threading.active_count() == before
        source.close()
        broker.close()


class TestChanges:
    def test_large_answers_are_read_in_large_pieces_and_copied_once(
        self, real_kafka: RealKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        assert sum(read) > 2_000_000
        assert 4096 < max(received) <= READ_BYTES

    def test_a_partition_that_was_stopped_can_be_read_again(self, real_kafka: RealKafka) -> None:
        """kafka-python itself fetches nothing more of a partition that was paused before its last fetch was
        returned as a whole."""
        topic = real_kafka.create_topic(partitions=2)
        for partition in range(2):
            produce(real_kafka, topic, lines(40, begin=40 * partition), partition=partition)
        options = {"max_poll_records": 1}
        reader = SourceReader(
            open_source(real_kafka, store := MemoryPositionStore(), topic, options=options), store, {}
        )
        reader.run_until(lambda: bool(reader.kept))
        [stopped] = reader.kept
        reader.source.stop(stopped, Gap("too-large", 5, 6, "a batch expands beyond the bound"))
        reader.run_until(lambda: sum(map(len, reader.kept.values())) == 80)
        produce(real_kafka, topic, lines(40, begin=80), partition=stopped.number)
        reader.source.rewind([stopped])
        read_and_check([reader], lines(120), turns=200)
        reader.source.close()


OUTSIDE = [
    module
    for name, module in modules().items()
    if within(name, "analyzer.sources.kafka") and not within(name, INTERNALS)
]
INSIDE = [module for name, module in modules().items() if within(name, INTERNALS)]
FACADE = (f"{INTERNALS}.consumer", f"{INTERNALS}.private_names")


class TestWall:
    """The source is read, not run."""

    def test_the_wall_has_an_inside_and_an_outside(self) -> None:
        assert len(INSIDE) >= 5
        assert len(OUTSIDE) >= 12

    @pytest.mark.parametrize("module", OUTSIDE, ids=lambda module: module.name)
    def test_no_module_outside_uses_a_private_name_of_kafka_python(self, module: Module) -> None:
        names = [imported.name for imported in module.imports()]
        assert [name for name in names if within(name, "kafka") and not is_public(name)] == []
        assert [name for name in names if within(name, INTERNALS) and not within(name, *FACADE)] == []
        assert private_attributes(module, but_of="self") == set()

    @pytest.mark.parametrize("module", INSIDE, ids=lambda module: module.name)
    def test_every_private_name_inside_is_in_the_table(self, module: Module) -> None:
        found = private_attributes(module)
        assert found - {"__class__"} <= {NAME.match(member)[0] for _, member in ROWS}
        assert ("__class__" in found) == (module.name == f"{INTERNALS}.private_names")


def is_public(name: str) -> bool:
    return name in PUBLIC_MODULES or name.rpartition(".")[0] in PUBLIC_MODULES


def private_attributes(module: Module, but_of: str = "") -> set[str]:
    """Returns the attributes with an underscore in front, and `__class__`, of all but the name `but_of`."""
    return {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and (node.attr == "__class__" or (node.attr.startswith("_") and not node.attr.startswith("__")))
        and node.attr not in ("_replace", "_make")  # public ones of named tuples
        and not (isinstance(node.value, ast.Name) and node.value.id == but_of)
    }
