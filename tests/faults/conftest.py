"""Fixtures: a seed that is printed, and fleets that end with their test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.fleet import Fleet

PARTITIONS = 6


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("GATELOCK_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}: repeat with GATELOCK_TEST_SEED={seed}")
    return seed


@pytest.fixture
def random(seed: int) -> Random:
    return Random(seed)


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets on a Kafka and a PostgreSQL, each with a new topic and a new database."""
    fleets: list[Fleet] = []

    def make(kafka: object, postgres: object, **options: object) -> Fleet:
        topic = kafka.create_topic(partitions=PARTITIONS)
        fleet = Fleet(tmp_path, postgres.new_database(), kafka.bootstrap, topic, PARTITIONS, **options)
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()
