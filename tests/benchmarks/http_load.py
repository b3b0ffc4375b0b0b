"""Requests over kept connections to one server, and what they cost it."""

from __future__ import annotations

import selectors
import socket
import time
from typing import NamedTuple

import psutil

CONNECTIONS = 16
REQUEST = b"GET /items HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: acme\r\naccept: */*\r\n\r\n"


class Round(NamedTuple):
    per_s: float
    cpu_us: float  # of the server, per request
    responses: int


class Load:
    """Sixteen connections to one server; each sends the next request as soon as it has a response."""

    def __init__(self, port: int) -> None:
        self._connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        self._connections[0].sendall(REQUEST)
        first = b""
        while not first.endswith((b'{"for":"acme"}', b"\r\n\r\nok")):
            first += self._connections[0].recv(65_536)
        self._bytes = len(first)  # of every response: they differ only in their date
        self._selector = selectors.EpollSelector()
        for number, connection in enumerate(self._connections):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, number)

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.close()

    def run(self, seconds: float) -> int:
        """Returns how many responses came. Asserts that all have status 200."""
        missing, responses = [0] * CONNECTIONS, 0
        for number, connection in enumerate(self._connections):
            connection.sendall(REQUEST)
            missing[number] = self._bytes
        end_s = time.perf_counter() + seconds
        busy, over = CONNECTIONS, False
        while busy:
            for key, _ in self._selector.select():
                connection, number = key.fileobj, key.data
                data = connection.recv(65_536)  # type: ignore[union-attr]  # a socket
                assert missing[number] < self._bytes or data.startswith(b"HTTP/1.1 200 "), data[:200]
                missing[number] -= len(data)
                assert missing[number] >= 0, "a response is longer than the first"
                if missing[number]:
                    continue
                responses += 1
                if over:
                    busy -= 1
                else:
                    connection.sendall(REQUEST)
                    missing[number] = self._bytes
            over = over or time.perf_counter() >= end_s
        return responses


def one_round(process: psutil.Process, port: int, seconds: float) -> Round:
    load = Load(port)  # new connections: a server closes those that were idle for five seconds
    cpu_s, began_s = sum(process.cpu_times()[:2]), time.perf_counter()
    responses = load.run(seconds)
    took_s = time.perf_counter() - began_s
    load.close()
    used_s = sum(process.cpu_times()[:2]) - cpu_s
    return Round(responses / took_s, used_s / responses * 1e6, responses)
