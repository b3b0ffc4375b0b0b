"""Connections that report why they fail, and that read and copy large answers with less work.

kafka-python tries to connect again and again and reports "Unable to bootstrap" in the end; the reason is
known to the connection alone.

It (3.0.12) reads 4 KiB from a socket at a time, and copies the records of an answer twice out of its buffer,
into memory that the kernel must clear first. Uncompressed batches are several times as large as compressed
ones, and so is this cost.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes

from analyzer.sources.kafka.connection_errors import ConnectionFailures
from analyzer.sources.kafka.internals.private_names import swap_class

READ_BYTES = 256 << 10
SMALL_BYTES = 4096  # below this a second copy costs less than a memoryview


class ChangedConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """A manager whose connections report their errors to `failures`, and are `LargeReadTransport`s.

    Those with TLS are read as before: a read returns at most one TLS record, 16 KiB.
    """

    failures: ConnectionFailures
    watched: WeakSet[KafkaConnection]

    def get_connection(self, *args: Any, **kwargs: Any) -> KafkaConnection:
        connection = super().get_connection(*args, **kwargs)
        if connection not in self.watched:
            self.watched.add(connection)
            connection.init_future.add_callback(lambda _: self.failures.clear())
            connection.init_future.add_errback(self.failures.note)
            connection.close_future.add_errback(self.failures.note)
        return connection

    async def _build_transport(self, *args: Any, **kwargs: Any) -> KafkaTCPTransport:
        transport = await super()._build_transport(*args, **kwargs)
        if not isinstance(transport, KafkaSSLTransport):
            swap_class(transport, KafkaTCPTransport, LargeReadTransport)
        return transport


class LargeReadTransport(KafkaTCPTransport):  # type: ignore[misc]  # kafka-python has no types
    """A connection that is read once whenever the socket has data, up to `READ_BYTES`."""

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        """Returns what one read finds, and the error that ends the connection."""
        buffer = self._protocol.parser._rbuffer  # of an answer that has arrived in part
        if type(buffer) is KafkaBytes:
            swap_class(buffer, KafkaBytes, LargeBytes)
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", KafkaConnectionError(error)
        return data, None if data else KafkaConnectionError("socket disconnected")


class LargeBytes(KafkaBytes):  # type: ignore[misc]  # kafka-python has no types
    """The buffer of an answer; its records are copied once."""

    _idx: int

    def read(self, nbytes: int | None = None) -> bytes:
        if nbytes is None or nbytes < SMALL_BYTES:
            return bytes(super().read(nbytes))
        start, self._idx = self._idx, min(len(self), self._idx + nbytes)
        with memoryview(self) as view:
            return bytes(view[start : self._idx])


def change_connections(client: KafkaNetClient, failures: ConnectionFailures) -> None:
    """Changes the connections that `client` opens from now on: they report their errors to `failures`."""
    manager = client._manager
    swap_class(manager, KafkaConnectionManager, ChangedConnectionManager)
    manager.failures, manager.watched = failures, WeakSet()
