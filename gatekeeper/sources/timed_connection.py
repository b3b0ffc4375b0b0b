"""A connection with a deadline for everything: name resolution, connect, TLS, and all bytes that follow."""

from __future__ import annotations

import io
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

CHUNK_BYTES = 64 << 10


def parse_server_url(url: str) -> ServerAddress:
    """The server that an http or https URL names. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected https://host:port, got {_without_password(url)!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"{_without_password(url)}: expected host, port and path alone; pass the token as `token`"
        )
    path = parts.path.rstrip("/")
    if not re.fullmatch(r"[!-~]*", path + parts.hostname):
        raise ValueError(
            f"{url!r}: expected ASCII without spaces; percent-encode other characters, as in %20"
        )
    return ServerAddress(
        parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), path
    )


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url)


class ServerAddress(NamedTuple):
    """The address of a server, and the path under which it is served."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def display_name(self) -> str:
        """The URL, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def locks_path(self) -> str:
        return f"{self.prefix}/v1/locks"

    @property
    def is_local(self) -> bool:
        return self.host == "localhost" or self.host == "::1" or self.host.startswith("127.")

    def connect(
        self,
        end_s: float,
        tls: ssl.SSLContext | None,
        permit: Callable[[list[Any]], list[Any]] = lambda addresses: addresses,
    ) -> socket.socket:
        """Connects to the first address that accepts. Raises OSError, at the uptime `end_s` at the latest.

        The name is resolved once. `permit` gets what `socket.getaddrinfo` has returned, and returns those
        that a connection may be made to; it may raise OSError.
        """
        addresses = permit(_resolve(self.host, self.port, end_s))
        for number, (family, kind, proto, _, address) in enumerate(addresses, 1):
            sock = socket.socket(family, kind, proto)
            try:
                left_s = end_s - time.monotonic()
                sock.settimeout(max(0.001, left_s / (len(addresses) - number + 1)))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(max(0.001, end_s - time.monotonic()))
                return sock if tls is None else tls.wrap_socket(sock, server_hostname=self.host)
            except OSError:
                sock.close()
                if number == len(addresses):
                    raise
        raise OSError(f"the name {self.host} has no address")


def _resolve(host: str, port: int, end_s: float) -> list[Any]:
    """The addresses of `host`, from a thread that is abandoned at the deadline."""
    # The system's resolver has no time-out.
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    with suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    threading.Thread(target=resolve, daemon=True, name="gatelock resolver").start()
    try:
        answer = answers.get(timeout=max(0.0, end_s - time.monotonic()))
    except queue.Empty:
        raise OSError(f"the name {host} could not be resolved in time") from None
    if isinstance(answer, OSError):
        raise answer
    return list(answer)


class DeadlineSocket:
    """The part of a socket that http.client uses, with one deadline for all calls.

    A time-out per call would not bound the whole: a server may send its answer in any number of small pieces.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.end_s = 0.0  # the deadline, as uptime
        self._sock = sock
        self._users = 1  # this object, and each file made from it

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._left_s())
        self._sock.sendall(data)

    def recv_into(self, buffer: Any) -> int:
        self._sock.settimeout(self._left_s())
        return self._sock.recv_into(buffer)

    def makefile(self, mode: str) -> BinaryIO:
        self._users += 1
        return io.BufferedReader(DeadlineReader(self), CHUNK_BYTES)

    def close(self) -> None:
        self._users -= 1
        if self._users <= 0:
            self._sock.close()

    def shut_down(self) -> None:
        """Ends the connection; a thread that is reading from it returns at once."""
        with suppress(OSError):
            # Not the method of a TLS socket, which would make the other thread read ciphertext.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _left_s(self) -> float:
        left_s = self.end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class DeadlineReader(io.RawIOBase):
    """The incoming bytes of a DeadlineSocket."""

    def __init__(self, sock: DeadlineSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.close()
