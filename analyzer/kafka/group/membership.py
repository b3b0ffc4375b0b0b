"""What a consumer group does not tell its members: that one was left out, or that another took its name."""

from __future__ import annotations

from kafka.errors import KafkaError

from analyzer.kafka.client import KafkaClient
from analyzer.kafka.connection_errors import ConnectionTrouble, FailureCause, cause_of
from analyzer.kafka.connection_health import ConnectionHealth
from analyzer.kafka.metadata import is_instance_id_in_use
from analyzer.kafka.options import Options

REPLACED = (
    "another process has joined the group {group_id} as {group_instance_id} and reads what we read: give "
    "each analyzer a group_instance_id of its own, or leave it out; we come back when the other is gone"
)
LEFT_OUT = "the group {group_id} leaves partitions unread, and us without one; joining again"


class Membership:
    """Looks at our place in the group."""

    def __init__(self, options: Options, watch: ConnectionHealth) -> None:
        self._options = options
        self._watch = watch
        self._replaced = False

    def look(self, client: KafkaClient, session_s: float) -> Exception | None:
        """Why this connection is to be given up, if it is."""
        if client.fenced:
            self._replaced = True
            return self._trouble(REPLACED)
        if not self._watch.left_out(session_s):
            return None
        # Having no partition is right when others have them all. Members have been seen left out, too.
        try:
            if client.unread():
                return self._trouble(LEFT_OUT)
        except KafkaError as failed:
            return ConnectionTrouble(cause_of([failed], self._options))
        self._watch.spare()
        return None

    def in_the_way(self) -> Exception | None:
        """What keeps us from joining: another under our name. To come back would push it out in turn."""
        if not self._replaced:
            return None
        try:
            self._replaced = is_instance_id_in_use(self._options)
        except KafkaError as failed:
            return ConnectionTrouble(cause_of([failed], self._options))
        return self._trouble(REPLACED) if self._replaced else None

    def _trouble(self, sentence: str) -> ConnectionTrouble:
        return ConnectionTrouble(FailureCause("group", sentence.format(**self._options)))
