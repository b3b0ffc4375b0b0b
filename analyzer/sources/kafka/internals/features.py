"""The private names of kafka-python that the analyzer uses, by the feature that needs them.

`FEATURES` is the table, and one rule holds for every row. At its first use each member is compared with the
installed kafka-python. A feature whose members all match is on. Any other feature is off: the log names it
once with what is lost, and the analyzer does without it. Nothing raises, and no module that needs a private
name is imported for a feature that is off. Only where no record could be read is it a problem in `/readyz`:
without both `whole-batches` and `decompression-bound`.

    python analyzer/sources/kafka/internals/features.py

prints the comparison, for a release of kafka-python that the analyzer was not tested with.
"""

from __future__ import annotations

import dis
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, Literal, NamedTuple

import kafka

log = logging.getLogger(__name__)

FeatureName = Literal[
    "whole-batches",
    "decompression-bound",
    "leader-epochs",
    "group-membership",
    "failure-reasons",
    "cached-metadata",
    "paused-records",
    "damaged-partition",
    "large-reads",
]

# What a member is, unless its parameters are given: "(self, name)", or "(self, ...)" for any further ones.
FIELD = "set by __init__, or a slot"
ATTRIBUTE = "an attribute of the class or module"
OPTION = "a key of DEFAULT_CONFIG"

FETCHER = "kafka.consumer.fetcher:Fetcher"
RECORDS = "kafka.consumer.fetcher:Fetcher.PartitionRecords"
FETCH_REQUEST = "kafka.protocol.consumer:FetchRequest"
FETCH_RESPONSE = "kafka.protocol.consumer:FetchResponse"
CONSUMER = "kafka:KafkaConsumer"
COORDINATOR = "kafka.coordinator.consumer:ConsumerCoordinator"
CLUSTER = "kafka.cluster:ClusterMetadata"
MANAGER = "kafka.net.manager:KafkaConnectionManager"
SELECTOR = "kafka.net.selector:NetworkSelector"
SUBSCRIPTION = "kafka.consumer.subscription_state:SubscriptionState"


class Feature(NamedTuple):
    """A row of the table: what is lost without the feature, and its members.

    Members are grouped by owner ("module" or "module:Class"), with their names and kinds.
    """

    lost: str
    members: Mapping[str, Mapping[str, str]]


FEATURES: Mapping[FeatureName, Feature] = {
    "whole-batches": Feature(
        "kafka-python decodes the records, which takes several times the CPU time; a topic that was deleted "
        "and created again is found by its metadata, not before the first fetch",
        {
            CONSUMER: {"_fetcher": FIELD},
            FETCHER: {
                "PartitionRecords": ATTRIBUTE,
                "_create_fetch_requests": "(self)",
                "_handle_fetch_response": "(self, node_id, fetch_offsets, send_time, response)",
                "_parse_fetched_data": "(self, completed_fetch)",
            },
            RECORDS: {
                "_unpack_records": "(self, tp, records, key_deserializer, value_deserializer)",
                "_maybe_skip_record": "(self, record)",
                "drain": "(self)",
                "topic_partition": FIELD,
                "fetch_offset": FIELD,
                "next_fetch_offset": FIELD,
                "bytes_read": FIELD,
                "aborted_transactions": FIELD,
                "leader_epoch": FIELD,
            },
            "kafka.record:MemoryRecords": {"_buffer": FIELD},
            "kafka.consumer.fetcher:CompletedFetch": {
                "topic_partition": ATTRIBUTE,
                "partition_data": ATTRIBUTE,
            },
            FETCH_REQUEST: {
                "_max_version": FIELD,
                "topics": ATTRIBUTE,
                "forgotten_topics_data": ATTRIBUTE,
            },
            f"{FETCH_REQUEST}.FetchTopic": {"topic": ATTRIBUTE, "topic_id": ATTRIBUTE},
            f"{FETCH_REQUEST}.ForgottenTopic": {"topic": ATTRIBUTE, "topic_id": ATTRIBUTE},
            FETCH_RESPONSE: {"API_VERSION": ATTRIBUTE, "responses": ATTRIBUTE},
            f"{FETCH_RESPONSE}.FetchableTopicResponse": {"topic": ATTRIBUTE, "topic_id": ATTRIBUTE},
            f"{FETCH_RESPONSE}.FetchableTopicResponse.PartitionData": {
                "error_code": ATTRIBUTE,
                "high_watermark": ATTRIBUTE,
                "last_stable_offset": ATTRIBUTE,
            },
        },
    ),
    "decompression-bound": Feature(
        "kafka-python decompresses batches without a bound, so without whole-batches nothing is read",
        {
            "kafka.record.default_records": {
                "gzip_decode": ATTRIBUTE,
                "snappy_decode": ATTRIBUTE,
                "lz4_decode": ATTRIBUTE,
                "zstd_decode": ATTRIBUTE,
            },
            "kafka.record.legacy_records": {
                "gzip_decode": ATTRIBUTE,
                "snappy_decode": ATTRIBUTE,
                "lz4_decode": ATTRIBUTE,
                "lz4_decode_old_kafka": ATTRIBUTE,
            },
            "kafka.record:MemoryRecords": {"next_batch": "(self, ...)"},
            "kafka.record.memory_records:MemoryRecordsBuilder": {
                "__init__": "(self, magic, compression_type, batch_size, ...)",
                "append": "(self, timestamp, key, value, ...)",
                "close": "(self)",
                "buffer": "(self)",
            },
        },
    ),
    "leader-epochs": Feature(
        "a log that was cut off and written again while no analyzer read it is not noticed, and is continued "
        "at the old offset",
        {
            CONSUMER: {"_subscription": FIELD},
            SUBSCRIPTION: {"seek": "(self, partition, offset)", "assignment": FIELD},
            "kafka.consumer.subscription_state:TopicPartitionState": {"position": ATTRIBUTE},
            FETCHER: {"_manager": FIELD, "_subscriptions": FIELD},
            MANAGER: {"cluster": FIELD},
            CLUSTER: {"leader_epoch_for_partition": "(self, partition)"},
        },
    ),
    "group-membership": Feature(
        "a consumer group takes longer to settle, and a second process with the same group_instance_id is "
        "not noticed",
        {
            CONSUMER: {"_coordinator": FIELD},
            COORDINATOR: {
                "need_rejoin": "(self)",
                "ensure_active_group_async": "(self, timeout_ms)",
                "_do_join_and_sync_async": "(self)",
                "_send_heartbeat_request": "(self)",
                "rejoining": FIELD,
                "_net": FIELD,
            },
            SELECTOR: {"sleep": "(self, delay)"},
        },
    ),
    "failure-reasons": Feature(
        "a connection that fails is reported without the reason and the option to change",
        {
            CONSUMER: {"kafka_client": OPTION},
            "kafka.net.compat:KafkaNetClient": {"_manager": FIELD, "close": "(self, ...)"},
            MANAGER: {"get_connection": "(self, node_id, ...)"},
            "kafka.net.connection:KafkaConnection": {"init_future": ATTRIBUTE, "close_future": ATTRIBUTE},
            "kafka.future:Future": {"add_callback": "(self, f, ...)", "add_errback": "(self, f, ...)"},
        },
    ),
    "cached-metadata": Feature(
        "topic ids come over a second connection",
        {
            CONSUMER: {"_cluster": FIELD, "_net": FIELD, "_manager": FIELD, "config": FIELD},
            CLUSTER: {
                "cluster_id": FIELD,
                "unauthorized_topics": FIELD,
                "add_topic": "(self, topic)",
                "topic_id": "(self, topic_name)",
                "partitions_for_topic": "(self, topic)",
                "request_update": "(self)",
                "metadata_refresh_in_progress": ATTRIBUTE,
            },
            SELECTOR: {"run": "(self, coro, ...)"},
            MANAGER: {"wait_for": "(self, future, timeout_ms)"},
        },
    ),
    "paused-records": Feature(
        "a partition that is read again takes a new connection",
        {CONSUMER: {"_fetcher": FIELD}, FETCHER: {"_paused_partition_records": FIELD}},
    ),
    "damaged-partition": Feature(
        "without whole-batches, a batch that cannot be decompressed stops all partitions, not only its own",
        {
            CONSUMER: {"_fetcher": FIELD},
            FETCHER: {"_next_partition_records": FIELD},
            RECORDS: {"topic_partition": FIELD},
        },
    ),
    "large-reads": Feature(
        "sockets are read in pieces of 4 KiB and answers are copied twice, which takes more CPU time, most "
        "for uncompressed topics",
        {
            CONSUMER: {"kafka_client": OPTION},
            "kafka.net.compat:KafkaNetClient": {"_manager": FIELD},
            MANAGER: {"_build_transport": "(self, node, ...)"},
            "kafka.net.transport:KafkaTCPTransport": {
                "_sock": FIELD,
                "_sock_recv": "(self)",
                "_protocol": FIELD,
            },
            "kafka.net.connection:KafkaConnection": {"parser": FIELD},
            "kafka.protocol.parser:KafkaProtocol": {"_rbuffer": FIELD},
            "kafka.protocol.frame:KafkaBytes": {"_idx": FIELD, "read": "(self, nbytes)"},
        },
    ),
}
TESTED = "3.0.12"  # the release that all tests use
ALL_FEATURES: AbstractSet[FeatureName] = frozenset(FEATURES)


@cache
def supported_features() -> AbstractSet[FeatureName]:
    """Returns the features that the installed kafka-python supports; the first call logs the others."""
    supported = set[FeatureName]()
    for name, feature in FEATURES.items():
        if changed := [*changed_members(feature)]:
            advice = f"{feature.lost}; install kafka-python {TESTED}"
            log.warning("kafka-python %s: %s is off (%s): %s", version(), name, ", ".join(changed), advice)
        else:
            supported.add(name)
    return frozenset(supported)


def changed_members(feature: Feature) -> Iterator[str]:
    """Yields the members that the installed kafka-python lacks, or has otherwise."""
    for owner, members in feature.members.items():
        for name, kind in members.items():
            if not matches(owner, name, kind):
                yield f"{owner.replace(':', '.')}.{name}"


def matches(owner: str, name: str, kind: str) -> bool:
    """Whether the installed kafka-python has this member as the table says.

    >>> matches("string:Formatter", "get_value", "(self, key, args, kwargs)")
    True
    >>> matches("string:Formatter", "get_value", "(self, key)")
    False
    """
    module, _, path = owner.partition(":")
    try:
        target: Any = import_module(module)
        for part in filter(None, path.split(".")):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        return False
    if kind == FIELD:
        return hasattr(target, name) or name in _assigned_fields(target)
    if kind == OPTION:
        return name in getattr(target, "DEFAULT_CONFIG", {})
    if kind == ATTRIBUTE:
        return hasattr(target, name)
    return _has_parameters(getattr(target, name, None), kind)


def _assigned_fields(owner: type) -> set[str]:
    """Returns the names that `__init__` of the class or of one of its bases assigns to."""
    inits = [vars(base).get("__init__") for base in owner.__mro__]
    return {
        step.argval
        for init in inits
        if isinstance(init, FunctionType)
        for step in dis.get_instructions(init)
        if step.opname == "STORE_ATTR"
    }


def _has_parameters(method: object, kind: str) -> bool:
    if not callable(method):
        return False
    expected, actual = kind.strip("()").split(", "), list(inspect.signature(method).parameters)
    return actual[: len(expected) - 1] == expected[:-1] if expected[-1] == "..." else actual == expected


def version() -> str:
    """Returns the version of the installed kafka-python."""
    return str(kafka.__version__)


def report() -> str:
    """Returns a line for each feature: on, or off with the members that differ."""
    lines = [f"kafka-python {version()}"]
    for name, feature in FEATURES.items():
        changed = ", ".join(changed_members(feature))
        lines.append(f"  {name:20} {f'off: {changed}' if changed else 'on'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
