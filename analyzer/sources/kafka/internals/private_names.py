"""The private names of kafka-python that the analyzer uses, compared with the installed release.

One range of releases is supported. Each member of `MEMBERS` is compared with the installed release before the
first use of Kafka; a release with another member is refused, because what rests on it would fail later, or
silently do something else.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

import kafka

from analyzer.kernel.errors import ReleaseUnsupported

SUPPORTED_FROM, SUPPORTED_BELOW = (3, 0, 12), (4,)  # as in pyproject.toml
TESTED = "3.0.12"
CURE = f"install kafka-python {TESTED}: pip install 'kafka-python=={TESTED}'"
NAMES_MAX = 3  # in a sentence

FETCHER = "kafka.consumer.fetcher:Fetcher"
FETCH_REQUEST = "kafka.protocol.consumer:FetchRequest"
FETCH_RESPONSE = "kafka.protocol.consumer:FetchResponse"

# Members by owner ("module:Class"):
#   "name"             an attribute of the class, or a field that its __init__ sets
#   "name(self, a)"    a method with these parameters; "..." stands for any further ones
#   "name[key]"        a key of a mapping
MEMBERS: Mapping[str, Sequence[str]] = {
    "kafka:KafkaConsumer": (
        "DEFAULT_CONFIG[kafka_client]",
        "config",
        "_cluster",
        "_coordinator",
        "_fetcher",
        "_subscription",
    ),
    # Whole batches, with the leader epoch of each position.
    FETCHER: (
        "PartitionRecords",
        "_create_fetch_requests(self)",
        "_handle_fetch_response(self, node_id, fetch_offsets, send_time, response)",
        "_parse_fetched_data(self, completed_fetch)",
        "_manager",
        "_paused_partition_records",
        "_subscriptions",
    ),
    f"{FETCHER}.PartitionRecords": (
        "_unpack_records(self, tp, records, key_deserializer, value_deserializer)",
        "_maybe_skip_record(self, record)",
        "drain(self)",
        "aborted_transactions",
        "bytes_read",
        "fetch_offset",
        "leader_epoch",
        "next_fetch_offset",
        "topic_partition",
    ),
    "kafka.consumer.fetcher:CompletedFetch": ("partition_data", "topic_partition"),
    "kafka.record:MemoryRecords": ("_buffer",),
    FETCH_REQUEST: ("_max_version", "forgotten_topics_data", "max_wait_ms", "min_bytes", "topics"),
    f"{FETCH_REQUEST}.FetchTopic": ("topic", "topic_id"),
    f"{FETCH_REQUEST}.ForgottenTopic": ("topic", "topic_id"),
    FETCH_RESPONSE: ("API_VERSION", "responses"),
    f"{FETCH_RESPONSE}.FetchableTopicResponse": ("partitions", "topic", "topic_id"),
    f"{FETCH_RESPONSE}.FetchableTopicResponse.PartitionData": (
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "records",
    ),
    "kafka.consumer.subscription_state:SubscriptionState": ("assignment", "seek(self, partition, offset)"),
    "kafka.consumer.subscription_state:TopicPartitionState": ("position",),
    # The metadata that a consumer keeps up to date.
    "kafka.cluster:ClusterMetadata": (
        "add_topic(self, topic)",
        "cluster_id",
        "leader_epoch_for_partition(self, partition)",
        "partitions_for_topic(self, topic)",
        "topic_id(self, topic_name)",
        "unauthorized_topics",
    ),
    # Joins that survive short polls.
    "kafka.coordinator.consumer:ConsumerCoordinator": (
        "_do_join_and_sync_async(self)",
        "_net",
        "_send_heartbeat_request(self)",
        "ensure_active_group_async(self, timeout_ms)",
        "need_rejoin(self)",
        "rejoining",
    ),
    "kafka.net.selector:NetworkSelector": ("sleep(self, delay)",),
    # Connections that report why they fail, and read much at once.
    "kafka.net.compat:KafkaNetClient": ("_manager", "close(self, ...)"),
    "kafka.net.manager:KafkaConnectionManager": (
        "_build_transport(self, node, ...)",
        "cluster",
        "get_connection(self, node_id, ...)",
    ),
    "kafka.net.connection:KafkaConnection": ("close_future", "init_future", "parser"),
    "kafka.future:Future": ("add_callback(self, f, ...)", "add_errback(self, f, ...)"),
    "kafka.net.transport:KafkaTCPTransport": ("_protocol", "_sock", "_sock_recv(self)"),
    "kafka.protocol.parser:KafkaProtocol": ("_rbuffer",),
    "kafka.protocol.frame:KafkaBytes": ("_idx", "read(self, nbytes)"),
}


@cache
def require_supported_release() -> None:
    """Raises ReleaseUnsupported unless the installed kafka-python can be used. Compares once."""
    numbers = tuple(map(int, re.findall(r"\d+", kafka.__version__)[:3]))
    if not SUPPORTED_FROM <= numbers < SUPPORTED_BELOW:
        raise ReleaseUnsupported(f"kafka-python {kafka.__version__} is not supported; {CURE}")
    if changed := list(changed_members()):
        raise _changed(changed)


def swap_class(part: object, expected: type, replacement: type) -> None:
    """Makes `part`, an `expected` that kafka-python has created, a `replacement`.

    kafka-python creates its fetcher, coordinator and connections itself, and takes no others as arguments.
    To find what runs after such a change, look for the subclass: in `consumer`, `raw_fetcher` and
    `broker_connections`. Raises ReleaseUnsupported for an object of another class.
    """
    if type(part) is not expected:
        raise _changed([f"{expected.__name__}, in place of which it makes a {type(part).__name__}"])
    part.__class__ = replacement


def _changed(names: Sequence[str]) -> ReleaseUnsupported:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    listed = ", ".join(names[:NAMES_MAX]) + more
    return ReleaseUnsupported(
        f"kafka-python {kafka.__version__} has changed what Gatelock uses of it: {listed}; {CURE}"
    )


def changed_members() -> Iterator[str]:
    """Yields the members that the installed kafka-python lacks, or has otherwise."""
    for owner, members in MEMBERS.items():
        for member in members:
            if not has_member(owner, member):
                yield f"{owner.replace(':', '.')}.{member.partition('(')[0]}"


def has_member(owner: str, member: str) -> bool:
    """Whether `owner` has this member as it is written in `MEMBERS`.

    >>> has_member("string:Formatter", "get_value(self, key, ...)")
    True
    >>> has_member("string:Formatter", "get_value(self, key)")
    False
    """
    module, _, path = owner.partition(":")
    try:
        target: Any = import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        return False
    name, _, parameters = member.rstrip(")]").partition("(")
    name, _, key = name.partition("[")
    value = getattr(target, name, None)
    if key:
        return isinstance(value, Mapping) and key in value
    if parameters:
        return callable(value) and _has_parameters(value, parameters.split(", "))
    return hasattr(target, name) or name in _assigned_fields(target)


def _has_parameters(method: Any, expected: Sequence[str]) -> bool:
    actual = list(inspect.signature(method).parameters)
    return actual[: len(expected) - 1] == expected[:-1] if expected[-1] == "..." else actual == expected


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
