"""Damaged batches on a real broker: fetched once more, then reported by offset, and skipped on request."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.fault_run import kafka_behind_a_proxy
from tests.support.installation import Installation, fill, write
from tests.support.proxy import Proxy
from tests.support.segments import (
    Damage,
    cut,
    damage,
    flip_payload,
    raise_last_offset,
    raise_leader_epoch,
    shorten_length,
)
from tests.support.servers import Missing
from tests.support.servers.kafka import NativeKafka
from tests.support.servers.report import ServersUsed

New = Callable[[str], Installation]


@pytest.fixture(scope="module")
def servers_of_module(servers: ServersUsed) -> Iterator[tuple[NativeKafka, Proxy]]:
    """A separate broker, whose files may be changed, and a proxy between it and the analyzers."""
    with tempfile.TemporaryDirectory(prefix="gatelock-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            broker, proxy = kafka_behind_a_proxy(Path(folder))
        except Missing as missing:
            servers.lacks("kafka", missing)
        broker.start()
        servers.found("kafka", broker.kind)
        yield broker, proxy
        broker.close()
        proxy.close()


@pytest.fixture
def broker(servers_of_module: tuple[NativeKafka, Proxy]) -> NativeKafka:
    return servers_of_module[0]


@pytest.fixture
def proxy(servers_of_module: tuple[NativeKafka, Proxy]) -> Proxy:
    return servers_of_module[1]


@pytest.fixture
def new(proxy: Proxy, tmp_path: Path) -> Iterator[New]:
    made = []

    def new(topic: str) -> Installation:
        made.append(Installation(tmp_path, f"127.0.0.1:{proxy.port}", [topic]))
        return made[-1]

    yield new
    for installation in made:
        installation.close()


def read_again(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """Returns how often each partition was read again, by the log."""
    lines = (record.getMessage() for record in caplog.records)
    return Counter(line.partition(":")[0] for line in lines if line.endswith("reading it again"))


class Topic(NamedTuple):
    """Four batches of ten records in each partition; in some partitions one batch is damaged."""

    name: str
    keys: dict[int, list[set[str]]]


# By partition, which batch is damaged, and how.
DAMAGES: dict[str, dict[int, tuple[int, Damage]]] = {
    "several": {
        0: (1, flip_payload),
        1: (1, raise_last_offset),
        2: (1, shorten_length),
        3: (3, flip_payload),
    },
    "repaired": {0: (1, flip_payload)},
    "unknown leader": {0: (3, raise_leader_epoch)},
}


@pytest.fixture(scope="module")
def damaged(servers_of_module: tuple[NativeKafka, Proxy]) -> dict[str, Topic]:
    """All topics are prepared at once, because a broker takes seconds to restart."""
    broker, _ = servers_of_module
    topics = {}
    for name, damages in DAMAGES.items():
        topic = broker.create_topic(partitions=max(damages) + 2)
        topics[name] = Topic(topic, fill(broker, topic, range(max(damages) + 2), 4))
    broker.stop()
    for name, damages in DAMAGES.items():
        for partition, (batch, change) in damages.items():
            damage(broker, topics[name].name, partition, batch, change)
    broker.start()
    return topics


def test_a_damaged_batch_is_reported_by_its_offsets_and_can_be_skipped(
    broker: NativeKafka,
    damaged: dict[str, Topic],
    new: New,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (topic, keys), damages = damaged["several"], DAMAGES["several"]
    here = new(topic)
    sizes = {p: (10 * batch, 10 * batch + 10) for p, (batch, _) in damages.items()}
    expected = {f"{topic}[{p}]": ("corrupt", *sizes[p]) for p in damages}
    here.run_until(lambda: here.open_gaps() == expected, seconds=60)
    before = {
        key for p in keys for batch in keys[p][: sizes[p][0] // 10 if p in damages else 4] for key in batch
    }
    here.run_until(lambda: here.counted() == before)
    assert {gap.kind for gap in here.health.gaps.values()} == {"corrupt"}
    assert read_again(caplog) == {f"{topic}[{p}]": 1 for p in damages}
    listed = here.gatelock("upkeep", "sources", "list", "--gaps").output
    assert re.search(rf"{topic}\[0\]\tcorrupt\t10\t20\t", listed)
    assert f"gatelock upkeep sources resume '{topic}[0]' --to next --reason TEXT " in listed

    assert here.accept(0, "9").exit_code == 2
    beyond = here.accept(0, "999")
    assert (beyond.exit_code, beyond.stderr) == (
        2,
        f"{topic}[0]: 999 is outside the log, which has [0, 40) now\n",
    )
    assert here.accept(max(keys), "next").exit_code == 1, "nothing waits for a decision there"
    for p in damages:
        accepted = here.accept(p, "next")
        assert (accepted.exit_code, accepted.stderr) == (0, "")
        assert "10 offsets are skipped" in accepted.output
        assert here.accept(p, "next").exit_code == 1, "accepted twice"
    lost = {key for p in damages for key in keys[p][sizes[p][0] // 10]}
    # A broker that starts with a wrong length takes it for the end of its log, and serves nothing behind it.
    shortened = [p for p in damages if damages[p][1] is shorten_length]
    lost |= {key for p in shortened for batch in keys[p][2:] for key in batch}
    truth = {key for p in keys for batch in keys[p] for key in batch} - lost
    truth |= write(broker, topic, 3, 40)
    here.run_until(lambda: here.counted() >= truth)
    assert here.counted() == truth
    assert here.open_gaps() == {}
    assert here.skipped() == dict.fromkeys(damages, 10)
    assert Counter((act["act"], act["why"]) for act in here.acts()) == {
        ("gap accepted", "it is gone"): len(damages)
    }


def test_a_repaired_log_is_read_again_and_nothing_is_skipped(
    broker: NativeKafka, damaged: dict[str, Topic], new: New
) -> None:
    topic, keys = damaged["repaired"]
    here = new(topic)
    here.run_until(lambda: here.open_gaps() == {f"{topic}[0]": ("corrupt", 10, 20)})
    assert "reading again from 10" in here.accept(0, "again", "a replica had it").output
    # The broker is not repaired yet.
    here.run_until(lambda: here.open_gaps() == {f"{topic}[0]": ("corrupt", 10, 20)})
    here.stop()
    broker.stop()
    damage(broker, topic, 0, 1, flip_payload)  # flips the same bits back
    broker.start()
    assert here.accept(0, "10", "repaired").exit_code == 0
    here.run_until(lambda: here.counted() == {key for p in keys for batch in keys[p] for key in batch})
    assert here.skipped() == {}
    assert [act["why"] for act in here.acts()] == ["repaired", "a replica had it"]


def test_damage_on_the_way_disappears_by_fetching_again(
    broker: NativeKafka, proxy: Proxy, new: New, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic(partitions=2)
    here = new(topic)
    truth = write(broker, topic, 0, 0) | write(broker, topic, 1, 0)
    here.run_until(lambda: here.counted() == truth)
    spoilt = proxy.spoil(f"{topic}-1-10".encode())
    truth |= write(broker, topic, 1, 10) | write(broker, topic, 0, 10)
    here.run_until(lambda: here.counted() == truth)
    assert spoilt.is_set()
    assert read_again(caplog) == {f"{topic}[1]": 1}
    assert here.gatelock("upkeep", "sources", "list", "--gaps", "--all").output == "no partition is stopped\n"
    here.run_until(lambda: not here.health.gaps)


def test_a_truncated_log_is_noticed_before_a_later_record_is_counted(
    broker: NativeKafka, new: New, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the log is longer again than what was counted: partition 1 while the analyzer runs, partition
    2 while it is stopped."""
    topic = broker.create_topic(partitions=4)
    old = fill(broker, topic, range(4), 4)
    here = new(topic)
    here.run_until(lambda: here.counted() == set().union(*(batch for p in old for batch in old[p])))
    here.stop()
    # This analyzer fetches nothing of 0 and 1 at first: kafka-python forgets the leader's epoch over that.
    more = here.counted() | write(broker, topic, 3, 40)
    here.run_until(lambda: here.counted() == more)

    broker.stop()
    cut(broker, topic, 0, 3)
    cut(broker, topic, 1, 1)
    broker.start()
    new_1 = set().union(*fill(broker, topic, [1], 4, 100)[1])
    expected = {f"{topic}[0]": ("past-end", 30, 40), f"{topic}[1]": ("past-end", 10, 40)}
    here.run_until(lambda: here.open_gaps() == expected)
    here.stop()

    broker.stop()
    cut(broker, topic, 2, 2)
    broker.start()
    new_2 = set().union(*fill(broker, topic, [2], 4, 100)[2])
    expected[f"{topic}[2]"] = ("past-end", 20, 40)
    truth = here.counted() | write(broker, topic, 3, 50)
    here.run_until(lambda: here.open_gaps() == expected)
    here.run_until(lambda: here.counted() >= truth)
    assert here.counted() == truth
    assert "written again from there" in caplog.text

    assert here.accept(1, "9").exit_code == 2
    assert here.accept(1, "again").exit_code == 2
    assert here.accept("*", "20").exit_code == 2
    assert here.accept("*", "next").exit_code == 0
    truth |= new_1 | new_2 | write(broker, topic, 0, 100)
    here.run_until(lambda: here.counted() >= truth)
    assert here.counted() == truth
    assert here.skipped() == {}


def test_an_impossible_leader_epoch_does_not_stop_a_partition(
    broker: NativeKafka, damaged: dict[str, Topic], new: New
) -> None:
    """The checksum does not cover the epoch. For an epoch that never existed, the broker would answer
    that our position does not exist."""
    topic, keys = damaged["unknown leader"]
    here = new(topic)
    truth = {key for p in keys for batch in keys[p] for key in batch}
    here.run_until(lambda: here.counted() == truth)
    here.stop()
    truth |= write(broker, topic, 0, 40)
    here.run_until(lambda: here.counted() == truth)
    assert here.open_gaps() == {}
