"""Counts round trips: a proxy in front of a server that counts how often the client speaks after it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from tests.support.servers.child import free_port


class RoundTripCounter:
    """A TCP proxy on `port` of 127.0.0.1, to the server's port there.

    `count` is how often a client spoke after the server did, or for the first time.
    """

    def __init__(self, port: int) -> None:
        self.count = 0
        self._closed = False
        self.port = free_port()
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._sockets: list[socket.socket] = [self._listener]
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            waiting: set[socket.socket] = set()  # clients that the server has yet to answer
            with contextlib.suppress(OSError, ValueError, KeyError):
                while not self._closed:
                    for ready, _ in selector.select(0.02):
                        if ready.fileobj is self._listener:
                            client, _ = self._listener.accept()
                            server = socket.create_connection(("127.0.0.1", self._server_port))
                            self._sockets += [client, server]
                            selector.register(client, selectors.EVENT_READ, (server, True))
                            selector.register(server, selectors.EVENT_READ, (client, False))
                            continue
                        other, is_client = ready.data
                        data = self._read_all(ready.fileobj) if is_client else ready.fileobj.recv(1 << 16)
                        if not data:
                            selector.unregister(ready.fileobj)
                            other.close()
                            continue
                        if is_client and ready.fileobj not in waiting:
                            self.count += 1
                            waiting.add(ready.fileobj)
                        elif not is_client:
                            waiting.discard(other)
                        other.sendall(data)

    @staticmethod
    def _read_all(client: socket.socket) -> bytes:
        """Reads up to a pause, because a server may begin to answer before the end of a request."""
        data = client.recv(1 << 16)
        client.settimeout(0.03)
        with contextlib.suppress(TimeoutError):
            while data and (more := client.recv(1 << 16)):
                data += more
        client.settimeout(None)
        return data

    def close(self) -> None:
        self._closed = True
        self._thread.join(5)
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
