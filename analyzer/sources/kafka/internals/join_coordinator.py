"""A group coordinator that keeps the outcome of a join.

kafka-python (3.0.12) discards the outcome of a join that arrives between two polls, and joins again. When the
group's leader does that, all members have to join again, so a group whose members poll for a tenth of a
second and flush in between may never settle. And a leader that joins again because the metadata of its topics
arrived late forgets that it is joining: it never requests the outcome, and silently stays without a
partition. This subclass holds the outcome back until a poll waits for it, and remembers that it is joining.

When another process joins with the same group.instance.id, the answer to the next heartbeat says so.
kafka-python then stops its heartbeats and continues to read. This subclass notes it in `fenced`.
"""

from __future__ import annotations

from kafka import KafkaConsumer
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import FencedInstanceIdError

from analyzer.sources.kafka.internals.private_names import swap_class

CHECK_EVERY_S = 0.01


class JoinKeepingCoordinator(ConsumerCoordinator):  # type: ignore[misc]  # kafka-python has no types
    fenced = False  # whether another process has taken our group.instance.id
    is_awaited = False  # whether a poll waits for the outcome; read and written by one thread

    def need_rejoin(self) -> bool:
        return bool(self.rejoining or super().need_rejoin())

    async def ensure_active_group_async(self, timeout_ms: float | None = None) -> bool:
        self.is_awaited = True
        try:
            return bool(await super().ensure_active_group_async(timeout_ms=timeout_ms))
        finally:
            self.is_awaited = False

    async def _do_join_and_sync_async(self) -> bytes:
        assignment: bytes = await super()._do_join_and_sync_async()
        while not self.is_awaited:
            await self._net.sleep(CHECK_EVERY_S)
        return assignment

    async def _send_heartbeat_request(self) -> None:
        try:
            await super()._send_heartbeat_request()
        except FencedInstanceIdError:
            self.fenced = True
            raise


def install(consumer: KafkaConsumer) -> None:
    swap_class(consumer._coordinator, ConsumerCoordinator, JoinKeepingCoordinator)
