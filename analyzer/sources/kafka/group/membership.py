"""Membership in the consumer group: whether the group leaves this member out, or another one replaced it.

The protocol reports neither to a member, so the group is described by an admin client.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from analyzer.sources.kafka.client import KafkaClient
from analyzer.sources.kafka.connection_errors import ConnectionTrouble, FailureCause, failure_cause
from analyzer.sources.kafka.connection_health import ConnectionHealth
from analyzer.sources.kafka.metadata import TopicMetadata
from analyzer.sources.kafka.options import Options, admin_options

REPLACED = (
    "another process has joined the group {group_id} as {group_instance_id} and reads our partitions: give "
    "each analyzer a different group_instance_id, or none; this one joins again when the other has left"
)
LEFT_OUT = "the group {group_id} leaves partitions unread while this analyzer has none: it joins again"
REBALANCING = ("PreparingRebalance", "CompletingRebalance")


class Membership:
    """Membership of this process in its consumer group."""

    def __init__(self, options: Options, health: ConnectionHealth) -> None:
        self._options = options
        self._health = health
        self._is_replaced = False

    def check(self, client: KafkaClient, session_s: float) -> Exception | None:
        """Returns why this connection must be given up, if it must."""
        if client.is_fenced:
            self._is_replaced = True
            return self._trouble(REPLACED)
        if not self._health.should_check_group(session_s):
            return None
        # A member may have no partition because the others have all of them, or because it was left out.
        try:
            if leaves_partitions_unread(self._options, client.topics()):
                return self._trouble(LEFT_OUT)
        except KafkaError as error:
            return ConnectionTrouble(failure_cause([error], self._options))
        self._health.note_no_partition_is_left()
        return None

    def reason_not_to_join(self) -> Exception | None:
        """Returns an error while another process has our group_instance_id: joining would fence it."""
        if not self._is_replaced:
            return None
        try:
            self._is_replaced = is_instance_id_in_use(self._options)
        except KafkaError as error:
            return ConnectionTrouble(failure_cause([error], self._options))
        return self._trouble(REPLACED) if self._is_replaced else None

    def _trouble(self, sentence: str) -> ConnectionTrouble:
        return ConnectionTrouble(FailureCause("group", sentence.format(**self._options)))


def leaves_partitions_unread(options: Options, topics: Mapping[str, TopicMetadata]) -> bool:
    """Whether the group is not rebalancing, and no member reads one of the partitions. Raises KafkaError."""
    group = _describe(options)
    if group["group_state"] in REBALANCING:
        return False
    read = {
        (assigned["topic"], number)
        for member in group["members"]
        for assigned in member["member_assignment"]["assigned_partitions"]
        for number in assigned["partitions"]
    }
    return not {(name, number) for name, topic in topics.items() for number in topic.partitions} <= read


def is_instance_id_in_use(options: Options) -> bool:
    """Whether the group has a member with our group_instance_id. Raises KafkaError."""
    instance_id = options.get("group_instance_id")
    return any(member.get("group_instance_id") == instance_id for member in _describe(options)["members"])


def _describe(options: Options) -> Mapping[str, Any]:
    with closing(KafkaAdminClient(**admin_options(options))) as admin:
        group: Mapping[str, Any] = admin.describe_groups([options["group_id"]])[options["group_id"]]
    return group
