"""Joining a group while polling in short stretches.

kafka-python (3.0.12) throws the outcome of a join away when it arrives between two polls, and joins
anew. From the group's leader that makes everybody join again, and a group whose members poll for a
tenth of a second and flush in between may never settle. A leader that joins again because its topics'
metadata came late forgets in the middle that it is joining: then it never asks for the outcome, and
stays without a partition, silently. Here an outcome waits until it is asked for, and it is.

A member whose name (group.instance.id) another process has taken is told so in answer to its heartbeat:
kafka-python stops sending them, and reads on. Here it is noted.
"""

from __future__ import annotations

from kafka import KafkaConsumer
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import FencedInstanceIdError

from analyzer.kafka.internals.features import changed

CHECK_EVERY_S = 0.01

FACES = {
    "need_rejoin": ["self"],
    "ensure_active_group_async": ["self", "timeout_ms"],
    "_do_join_and_sync_async": ["self"],
    "_send_heartbeat_request": ["self"],
}


class PatientCoordinator(ConsumerCoordinator):  # type: ignore[misc]  # kafka-python has no types
    """Joins as its parent does."""

    fenced = False  # whether another has taken our name
    asked_for = False  # whether a poll is waiting for the outcome; read and written by one thread

    def need_rejoin(self) -> bool:
        return bool(self.rejoining or super().need_rejoin())

    async def ensure_active_group_async(self, timeout_ms: float | None = None) -> bool:
        self.asked_for = True
        try:
            return bool(await super().ensure_active_group_async(timeout_ms=timeout_ms))
        finally:
            self.asked_for = False

    async def _do_join_and_sync_async(self) -> bytes:
        assignment: bytes = await super()._do_join_and_sync_async()
        while not self.asked_for:
            await self._net.sleep(CHECK_EVERY_S)
        return assignment

    async def _send_heartbeat_request(self) -> None:
        try:
            await super()._send_heartbeat_request()
        except FencedInstanceIdError:
            self.fenced = True
            raise


def join_patiently(consumer: KafkaConsumer) -> bool:
    """Whether this kafka-python can be had to keep what `consumer` joined. It works otherwise, too."""
    coordinator = getattr(consumer, "_coordinator", None)
    if type(coordinator) is not ConsumerCoordinator or not hasattr(coordinator, "rejoining"):
        return False
    if changed(ConsumerCoordinator, FACES):
        return False
    coordinator.__class__ = PatientCoordinator
    return True
