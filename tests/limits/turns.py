"""Counts round trips: a way to a server on which it is seen when the talk turns."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from tests.support.servers.child import free_port


class Turns:
    """Stands between clients and a server on 127.0.0.1; `count` is how often a client spoke after the
    server, or for the first time."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._over = False
        self.port = free_port()
        self._to = port
        self._door = socket.create_server(("127.0.0.1", self.port))
        self._sockets: list[socket.socket] = [self._door]
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._door, selectors.EVENT_READ)
            listening: set[socket.socket] = set()  # clients whose turn it is to hear
            with contextlib.suppress(OSError, ValueError, KeyError):
                while not self._over:
                    for key, _ in selector.select(0.02):
                        if key.fileobj is self._door:
                            client, _ = self._door.accept()
                            server = socket.create_connection(("127.0.0.1", self._to))
                            self._sockets += [client, server]
                            selector.register(client, selectors.EVENT_READ, (server, True))
                            selector.register(server, selectors.EVENT_READ, (client, False))
                            continue
                        other, speaks = key.data
                        said = self._all_of(key.fileobj) if speaks else key.fileobj.recv(1 << 16)
                        if not said:
                            selector.unregister(key.fileobj)
                            other.close()
                            continue
                        if speaks and key.fileobj not in listening:
                            self.count += 1
                            listening.add(key.fileobj)
                        elif not speaks:
                            listening.discard(other)
                        other.sendall(said)

    @staticmethod
    def _all_of(client: socket.socket) -> bytes:
        """What the client says, up to a silence: a server may begin to answer before the end."""
        said = client.recv(1 << 16)
        client.settimeout(0.03)
        with contextlib.suppress(TimeoutError):
            while said and (more := client.recv(1 << 16)):
                said += more
        client.settimeout(None)
        return said

    def close(self) -> None:
        self._over = True
        self._thread.join(5)
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
