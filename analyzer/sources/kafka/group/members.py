"""The members of the consumer group and the partitions that each of them reads, as the broker knows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from analyzer.sources.kafka.options import Options, admin_options


class GroupMember(NamedTuple):
    """A member of the group."""

    client_id: str
    host: str
    partitions: frozenset[tuple[str, int]]  # topic and number


def group_members(options: Options) -> list[GroupMember]:
    """Returns the members of the group `group_id`; none where the broker does not tell."""
    group = str(options["group_id"])
    try:
        with closing(KafkaAdminClient(**admin_options(options))) as admin:
            members = admin.describe_groups([group])[group]["members"]
    except (KafkaError, KeyError, ValueError):
        return []
    return [
        GroupMember(member["client_id"], member["client_host"].lstrip("/"), _assigned_partitions(member))
        for member in members
    ]


def _assigned_partitions(member: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    assignment = member.get("member_assignment")
    if not isinstance(assignment, Mapping):
        return frozenset()
    assigned = assignment.get("assigned_partitions") or ()
    return frozenset((topic["topic"], number) for topic in assigned for number in topic["partitions"])
