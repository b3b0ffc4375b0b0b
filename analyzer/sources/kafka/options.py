"""The options of our connections: our defaults, what may be configured, and what may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

Options = Mapping[str, Any]  # named as kafka-python names them

DEFAULTS: Options = {
    "client_id": "gatelock",
    # At low rates the number of fetches costs CPU time, not the number of records: a least size with a
    # bounded wait took 7 times less than kafka-python's defaults, and counted records sooner.
    "fetch_min_bytes": 100_000,
    "fetch_max_wait_ms": 100,
    "metadata_max_age_ms": 10_000,  # the delay until new partitions and recreated topics are noticed
    "reconnect_backoff_max_ms": 1_000,  # or a broker that is back waits up to 30 s for us
    "bootstrap_timeout_ms": 5_000,
    # A member leaves its group when its last poll is older than this: one that cannot reach its database must
    # not keep its partitions for minutes.
    "max_poll_interval_ms": 30_000,
    # Eager rebalancing: all members give up all partitions, for 0.2 s, whenever a member joins or leaves.
    # Cooperative-sticky takes a second round, at the next heartbeat: partitions that move stalled for 1.1 to
    # 1.3 s. After a SIGKILL both wait for the session time-out.
    "partition_assignment_strategy": (RoundRobinPartitionAssignor,),
}
FIXED: Options = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",  # positions come from the store, and an operator decides about a gap
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "check_crcs": True,
}
PROBE_CONNECT_MS = 3_000
# Set by `KafkaClient` and its callers, or in conflict with how they work.
RESERVED = (
    "group_id",
    "session_timeout_ms",
    "key_deserializer",
    "value_deserializer",
    "kafka_client",
    "consumer_timeout_ms",
)


def consumer_options(options: Options) -> dict[str, Any]:
    """Returns all options of a consumer: our defaults, then `options`, then the fixed ones.

    Raises ValueError for an option that kafka-python does not have, or that must not be set.
    """
    if unknown := options.keys() - KafkaConsumer.DEFAULT_CONFIG.keys():
        raise ValueError(f"kafka-python has no option {', '.join(sorted(unknown))}; check the spelling")
    if fixed := options.keys() & {*FIXED, *RESERVED}:
        raise ValueError(f"must not be set, because Gatelock sets it: {', '.join(sorted(fixed))}; remove it")
    return {**DEFAULTS, **options, **FIXED}


def probe_options(options: Options) -> dict[str, Any]:
    """Returns the options of a connection for a few requests, which gives up within seconds.

    Raises ValueError as `consumer_options`.
    """
    return consumer_options({"bootstrap_timeout_ms": PROBE_CONNECT_MS, **options})


def admin_options(options: Options) -> dict[str, Any]:
    """Returns the options that an admin client takes as well."""
    return {name: options[name] for name in options.keys() & KafkaAdminClient.DEFAULT_CONFIG.keys()}
