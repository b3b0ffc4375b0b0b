"""Connections that read and copy large answers with less work (feature "large-reads").

kafka-python (3.0.12) reads 4 KiB from a socket at a time, and copies the records of an answer twice out of
its buffer, into memory that the kernel must clear first. Uncompressed batches are several times as large as
compressed ones, and so is this cost. Import it only where the feature is supported.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes

from analyzer.sources.kafka.internals.class_swap import swap_class

READ_BYTES = 256 << 10
SMALL_BYTES = 4096  # below this a second copy costs less than a memoryview


class LargeBytes(KafkaBytes):  # type: ignore[misc]  # kafka-python has no types
    """The buffer of an answer; its records are copied once."""

    _idx: int

    def read(self, nbytes: int | None = None) -> bytes:
        if nbytes is None or nbytes < SMALL_BYTES:
            return bytes(super().read(nbytes))
        start, self._idx = self._idx, min(len(self), self._idx + nbytes)
        with memoryview(self) as view:
            return bytes(view[start : self._idx])


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


def read_much_at_once(client: KafkaNetClient) -> None:
    """Makes the connections that `client` opens from now on `LargeReadTransport`s.

    Those with TLS stay as they are: a read returns at most one TLS record, 16 KiB.
    """
    manager = client._manager
    build = manager._build_transport

    async def build_transport(*args: Any, **kwargs: Any) -> KafkaTCPTransport:
        transport = await build(*args, **kwargs)
        if not isinstance(transport, KafkaSSLTransport):
            swap_class(transport, KafkaTCPTransport, LargeReadTransport)
        return transport

    manager._build_transport = build_transport
