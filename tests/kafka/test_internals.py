"""A kafka-python that is built otherwise than ours is read all the same, in its own way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.manager import KafkaConnectionManager

from analyzer.kafka.connection_errors import ReportingConnectionManager, failures_of
from analyzer.kafka.internals import patient_coordinator, raw_fetcher
from analyzer.kafka.internals.patient_coordinator import PatientCoordinator, join_patiently


@pytest.fixture
def consumer() -> SimpleNamespace:
    coordinator = object.__new__(ConsumerCoordinator)
    coordinator.rejoining = False
    return SimpleNamespace(_coordinator=coordinator)


@pytest.fixture
def net() -> SimpleNamespace:
    return SimpleNamespace(_manager=object.__new__(KafkaConnectionManager))


def test_ours_is_as_we_know_it(consumer: SimpleNamespace, net: SimpleNamespace) -> None:
    raw_fetcher.check()
    assert join_patiently(consumer)
    assert type(consumer._coordinator) is PatientCoordinator
    failures_of(net)
    assert type(net._manager) is ReportingConnectionManager


@pytest.mark.parametrize("name", patient_coordinator.FACES)
def test_members_join_as_ever_without_a_method_or_with_another_one(
    name: str, consumer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerCoordinator, name, lambda self, more: None)
    assert not join_patiently(consumer)
    monkeypatch.undo()
    for each in ConsumerCoordinator.__mro__:
        if name in vars(each):
            monkeypatch.delattr(each, name)
    assert not join_patiently(consumer)
    assert type(consumer._coordinator) is ConsumerCoordinator


def test_connections_that_cannot_be_watched_are_made_all_the_same(
    net: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(KafkaConnectionManager, "get_connection")
    assert failures_of(net).last == ()
    assert type(net._manager) is KafkaConnectionManager


@pytest.mark.parametrize("name", [*raw_fetcher.CALLS, *raw_fetcher.FACES])
def test_record_sets_are_not_to_be_had_from_another_fetcher(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = raw_fetcher.Fetcher if name in raw_fetcher.CALLS else raw_fetcher.Fetcher.PartitionRecords
    monkeypatch.delattr(owner, name)
    with pytest.raises(ImportError, match=f"kafka-python's fetcher has changed: .*{name}"):
        raw_fetcher.check()
