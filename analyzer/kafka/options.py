"""The options of our connections: what is chosen for everybody, what may be given, and what may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

Options = Mapping[str, Any]  # in kafka-python's words

DEFAULTS: Options = {
    "client_id": "gatelock",
    # The cost at low rates is the number of fetches, not of records: a least size with a bounded wait
    # took 7 times less than kafka-python's defaults, and was fresher.
    "fetch_min_bytes": 100_000,
    "fetch_max_wait_ms": 100,
    "metadata_max_age_ms": 10_000,  # how soon new partitions and recreated topics are seen
    "reconnect_backoff_max_ms": 1_000,  # a broker that is back should not wait half a minute for us
    "bootstrap_timeout_ms": 5_000,
    # A member that has not polled for so long is let go, so that the rest of its group is not held up
    # for minutes by one that cannot reach its database.
    "max_poll_interval_ms": 30_000,
    # Everybody lets go of everything, for 0.2 s while a member comes or goes. Cooperative-sticky takes a
    # second round, at the next heartbeat: what moves stood still for 1.1 to 1.3 s. Taking over after a
    # SIGKILL takes the session's time-out either way.
    "partition_assignment_strategy": (RoundRobinPartitionAssignor,),
}
FIXED: Options = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",  # positions come from the store; a gap is for people to decide on
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "check_crcs": True,
}
# What `Client` and its callers see to, and what would break them.
RESERVED = (
    "group_id",
    "session_timeout_ms",
    "key_deserializer",
    "value_deserializer",
    "kafka_client",
    "consumer_timeout_ms",
)


def consumer_options(given: Options) -> dict[str, Any]:
    """All options of a consumer, ours and `given`. Raises ValueError for those that cannot be given."""
    if unknown := given.keys() - KafkaConsumer.DEFAULT_CONFIG.keys():
        raise ValueError(f"kafka-python knows no option {', '.join(sorted(unknown))}")
    if ours := given.keys() & {*FIXED, *RESERVED}:
        raise ValueError(f"not a matter of choice: {', '.join(sorted(ours))}")
    return {**DEFAULTS, **given, **FIXED}


def admin_options(options: Options) -> dict[str, Any]:
    """Those that a client for questions about topics and groups takes, too."""
    return {name: options[name] for name in options.keys() & KafkaAdminClient.DEFAULT_CONFIG.keys()}
