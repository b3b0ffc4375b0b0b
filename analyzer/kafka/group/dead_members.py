"""Members that died and that their group still waits for.

After SIGKILL a group waits for its session time-out before it gives a partition to anybody, also when the
same analyzer is back within a second. Whoever starts on the machine where such a member has died can say so
for it. (KIP-345 has lasting member names for this, but then two analyzers of one name put each other out.)
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

from analyzer.kafka.options import Options, admin_options

log = logging.getLogger(__name__)

CLIENT_ID = re.compile(r"(?P<analyzer>gatelock-.+)-(?P<pid>\d+)-[0-9a-f]{8}")
JOINING_S, CHECK_EVERY_S = 5.0, 0.05
PROCESS_TOKEN = secrets.token_hex(4)  # a container's process has the same number in each of its lives


def client_id(analyzer: str) -> str:
    """By what the members of this process, and of the lives of `analyzer` before it, are known again.

    >>> client_id("web-1").startswith(f"gatelock-web-1-{os.getpid()}-")
    True
    """
    return f"gatelock-{analyzer}-{os.getpid()}-{PROCESS_TOKEN}"


def remove_dead_members_soon(options: Options) -> None:
    """Have the group forget the members of this analyzer whose process has died, from a thread, once we are
    among those who join: a group that is empty in between would first wait for more members.

    Says nothing of those whose `client_id` is not from here. Without it, the group waits for the session's
    end as ever. One that was dismissed alive, because it runs in a container of the same name, joins again.
    """
    us = CLIENT_ID.fullmatch(str(options.get("client_id")))
    if us is not None and not options.get("group_instance_id"):
        asked = options, us["analyzer"]
        threading.Thread(target=_dismiss_quietly, args=asked, daemon=True, name="leftovers").start()


def _dismiss_quietly(options: Options, analyzer: str) -> None:
    try:
        remove_dead_members(options, analyzer)
    except Exception as failed:  # noqa: BLE001 - kafka-python raises much; it is a courtesy, whatever fails
        log.debug("the group was not asked for members that died: %r", failed)


def remove_dead_members(options: Options, analyzer: str, patience_s: float = JOINING_S) -> int:
    """How many members died and were dismissed, once we are a member ourselves. Raises KafkaError."""
    group, until_s = options["group_id"], time.monotonic() + patience_s
    with closing(KafkaAdminClient(**admin_options(options))) as admin:
        while True:
            members = admin.describe_groups([group])[group]["members"]
            dead = [each["member_id"] for each in members if _is_dead(each["client_id"], analyzer)]
            if not dead or any(each["client_id"] == options["client_id"] for each in members):
                break
            if time.monotonic() >= until_s:
                return 0
            time.sleep(CHECK_EVERY_S)
        if dead:
            admin.remove_group_members(group, [MemberToRemove(member_id=each) for each in dead])
            log.info("the group %s need not wait for %d of our members that died", group, len(dead))
        return len(dead)


def _is_dead(client: str, analyzer: str) -> bool:
    known = CLIENT_ID.fullmatch(client)
    if known is None or known["analyzer"] != analyzer:
        return False
    pid = int(known["pid"])
    return not client.endswith(PROCESS_TOKEN) if pid == os.getpid() else not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True
