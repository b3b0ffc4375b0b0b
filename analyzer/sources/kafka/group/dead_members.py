"""Removes members from the consumer group whose process has died.

After a SIGKILL a group waits for the session time-out before it assigns the dead member's partitions, also
when the same analyzer is back within a second. An analyzer that starts on the machine where such a member
has died can see that, and have the member removed. (Static membership, KIP-345, solves this as well, but two
analyzers with one group.instance.id fence each other.)
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from contextlib import closing

from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from analyzer.sources.kafka.options import Options, admin_options

log = logging.getLogger(__name__)

CLIENT_ID = re.compile(r"(?P<analyzer>gatelock-.+)-(?P<pid>\d+)-[0-9a-f]{8}")
JOIN_S_MAX, CHECK_EVERY_S = 5.0, 0.05
PROCESS_TOKEN = secrets.token_hex(4)  # in a container, every process may have the same number


def client_id(analyzer: str) -> str:
    """Returns the client id of this process, by which later processes of `analyzer` recognise its members.

    >>> client_id("web-1").startswith(f"gatelock-web-1-{os.getpid()}-")
    True
    """
    return f"gatelock-{analyzer}-{os.getpid()}-{PROCESS_TOKEN}"


def remove_dead_members_soon(options: Options) -> None:
    """Removes the dead members of this analyzer from the group, in a thread, as soon as we have joined.

    Not before: a group that is empty in between would first wait for more members. Does nothing for a
    `client_id` of another form, or with a group_instance_id. If it fails, the group waits for the session
    time-out. A member that is removed alive, from a container of the same name, joins again.
    """
    client_id = CLIENT_ID.fullmatch(str(options.get("client_id")))
    if client_id is not None and not options.get("group_instance_id"):
        arguments = options, client_id["analyzer"]
        threading.Thread(target=_remove_quietly, args=arguments, daemon=True, name="dead members").start()


def _remove_quietly(options: Options, analyzer: str) -> None:
    try:
        remove_dead_members(options, analyzer)
    except Exception as error:  # noqa: BLE001 - kafka-python raises many types, and nothing depends on it
        log.debug("dead members could not be removed from the group: %r", error)


def remove_dead_members(options: Options, analyzer: str, join_s_max: float = JOIN_S_MAX) -> int:
    """Waits until we are a member, then removes the dead ones; returns how many. Raises KafkaError."""
    group, until_s = options["group_id"], time.monotonic() + join_s_max
    with closing(KafkaAdminClient(**admin_options(options))) as admin:
        while True:
            members = admin.describe_groups([group])[group]["members"]
            dead = [member["member_id"] for member in members if _is_dead(member["client_id"], analyzer)]
            if not dead or any(member["client_id"] == options["client_id"] for member in members):
                break
            if time.monotonic() >= until_s:
                return 0
            time.sleep(CHECK_EVERY_S)
        if dead:
            admin.remove_group_members(group, [MemberToRemove(member_id=member) for member in dead])
            log.info("removed %d dead members of this analyzer from the group %s", len(dead), group)
        return len(dead)


def _is_dead(client: str, analyzer: str) -> bool:
    match = CLIENT_ID.fullmatch(client)
    if match is None or match["analyzer"] != analyzer:
        return False
    pid = int(match["pid"])
    return not client.endswith(PROCESS_TOKEN) if pid == os.getpid() else not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True
