"""A topic of a real Kafka is replayed while its analyzer counts on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.schema import buckets
from tests.support.installation import Installation, RealKafka, write
from tests.support.servers.kafka import new_name

New = Callable[..., Installation]


def callers(here: Installation) -> dict[str, int]:
    with reading(here.engine) as db:
        rows = db.execute(sa.select(buckets.c.key, sa.func.sum(buckets.c.value_0)).group_by(buckets.c.key))
        return {key: int(number) for key, number in rows}


def test_a_topic_is_replayed_by_the_mapping_in_force(real_kafka: RealKafka, new: New) -> None:
    topic = real_kafka.create_topic(new_name(), partitions=2)
    here = new(topic)
    keys = write(real_kafka, topic, 0, 0, count=8) | write(real_kafka, topic, 1, 0, count=5)
    here.run_until(lambda: here.counted() == keys)
    here.stop()
    right = here.file.read_text()
    # Without a usable name every record is rejected; and back.
    replay(here, right.replace('api_key = "key"', 'api_key = "ts"'), keys)
    assert callers(here) == {}
    replay(here, right, set())
    assert callers(here) == dict.fromkeys((f"api_key:{key}" for key in keys), 1)
    here.audit()


def replay(here: Installation, configuration: str, counted: set[str]) -> None:
    """Replays the topic by another configuration."""
    here.file.write_text(configuration)
    here.gatelock("policies", "apply")
    number = started(here, "upkeep", "replay", "start", here.topic, "--from", "1h", "--json")["replay"]
    assert callers(here) == dict.fromkeys((f"api_key:{key}" for key in counted), 1), "not before the swap"
    result = here.gatelock("upkeep", "replay", "swap", str(number), "--reason", "the wrong field", "--yes")
    assert result.exit_code == 0, result.output


def started(here: Installation, *arguments: str) -> dict[str, Any]:
    result = here.gatelock(*arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document
