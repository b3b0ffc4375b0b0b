"""A receiver of alerts over HTTP, which answers, lies, redirects, hangs or closes, as a test says."""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.support.servers.child import own_address


class ReceivedRequest(NamedTuple):
    """A request as it has arrived."""

    target: str
    headers: dict[str, str]  # by their names in lower case
    body: bytes


Answer = Callable[[socket.socket], None]


def say(text: str) -> Answer:
    """Returns the answer that sends a text."""
    return lambda peer: peer.sendall(text.replace("\n", "\r\n").encode())


ACCEPT = say("HTTP/1.1 200 OK\nContent-Length: 2\n\nok")
REFUSE = say("HTTP/1.1 500 No\nContent-Length: 4\n\nlies")
REDIRECT = say("HTTP/1.1 307 Here\nLocation: http://127.0.0.1/admin\nContent-Length: 0\n\n")
CLOSE: Answer = lambda _peer: None  # noqa: E731 - one of the answers


def hang(peer: socket.socket) -> None:
    """Answers nothing until the sender closes the connection."""
    with suppress(OSError):
        peer.recv(1)


def endless(peer: socket.socket) -> None:
    """Sends a body without an end, for as long as the sender reads it."""
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with suppress(OSError):
        while True:
            peer.sendall(b"x" * 65_536)


def drip(peer: socket.socket) -> None:
    """Sends a header line by line, without an end."""
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    waiting = threading.Event()
    with suppress(OSError):
        while not waiting.wait(0.05):
            peer.sendall(b"x: y\r\n")


class AlertReceiver:
    """Listens on a free port of this machine; `answers` are given in turn, the last one from then on."""

    def __init__(self, *answers: Answer, host: str | None = None) -> None:
        self.requests: list[ReceivedRequest] = []
        self._answers = list(answers)
        self._listener = socket.create_server((own_address() if host is None else host, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def host(self) -> str:
        return str(self._listener.getsockname()[0])

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook?key=secret"

    def answer_next(self, *answers: Answer) -> None:
        self._answers[:] = answers

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, suppress(OSError, ValueError):
            stream = peer.makefile("rb")
            line = stream.readline().decode()
            headers = http.client.parse_headers(stream)
            fields = {name.lower(): value for name, value in headers.items()}
            body = io.BytesIO(stream.read(int(fields.get("content-length", 0)))).getvalue()
            self.requests.append(ReceivedRequest(line.split()[1], fields, body))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            answer(peer)


@contextmanager
def receiving(*answers: Answer) -> Iterator[AlertReceiver]:
    """Runs a receiver, which accepts all requests unless answers are given."""
    receiver = AlertReceiver(*(answers or (ACCEPT,)))
    try:
        yield receiver
    finally:
        receiver.close()
