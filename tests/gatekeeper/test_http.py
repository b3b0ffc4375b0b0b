"""The HTTP source with faulty servers, and with a real one."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from analyzer.kernel.tokens import Token, TokenList, token_digest
from gatekeeper import Gate
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, Set, SourceError, Update
from gatekeeper.sources import http, open_source, timed_connection
from gatekeeper.sources.http import HttpSource, TryLater
from tests.support.feed import NOON, HandFeed, a_lock
from tests.support.servers.child import own_address
from tests.support.serving import certificate, feed_server

AT = Cursor(57, "9f3c")
ANSWER = feed_json.dump(Update(AT, None, True, NOON, 0.5, 2.0, (Set(a_lock()),))).encode()

Reply = Callable[[socket.socket], None]


def reply(
    body: bytes = ANSWER,
    status: str = "200 OK",
    kind: str = "application/json",
    length: int | None = None,
    *lines: str,
) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-type: {kind}", *lines]
    head.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*head, "", ""]).encode() + body


class Server:
    """Answers each request on any connection with the next of `replies`, and then always with the last."""

    def __init__(self) -> None:
        self.replies: list[bytes | Reply] = [reply()]
        self.requests: list[str] = []
        self.connections = 0
        self._socket = socket.create_server((own_address(), 0))
        self.url = "http://{}:{}".format(*self._socket.getsockname())
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._socket.accept()
                self.connections += 1
                self._open.append(sock)
                threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while request := self._request(sock):
                self.requests.append(request)
                answer = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                if isinstance(answer, bytes):
                    sock.sendall(answer)
                else:
                    answer(sock)

    def _request(self, sock: socket.socket) -> str:
        text = b""
        while b"\r\n\r\n" not in text:
            piece = sock.recv(65536)
            if not piece:
                return ""
            text += piece
        return text.decode("latin-1")

    def disconnect(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stops listening. Idempotent."""
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)  # otherwise the accepting thread keeps it open
        self._socket.close()
        while self._open:
            self._open.pop().close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def source(server: Server) -> Iterator[HttpSource]:
    source = HttpSource(server.url, wait=0.3, timeout=1.0)
    yield source
    source.close()


def error_of(source: HttpSource, since: Cursor | None = None) -> str:
    """The message of the SourceError that a fetch raises."""
    with pytest.raises(SourceError) as error:
        source.fetch(since)
    return str(error.value)


# -- requests -------------------------------------------------------------------------------------


def test_a_request_names_the_version_and_the_wait(server: Server, source: HttpSource) -> None:
    assert source.fetch(None).changes == (Set(a_lock()),)
    source.fetch(Cursor(57, "a&b"))
    first, second = (request.splitlines() for request in server.requests)
    assert first[0] == "GET /v1/locks HTTP/1.1"
    assert second[0] == "GET /v1/locks?since=57&mark=a%26b&wait=0.3 HTTP/1.1"
    assert "accept-encoding: gzip" in second
    assert not [line for line in second if line.startswith("authorization")]


def test_all_requests_use_one_connection(server: Server, source: HttpSource) -> None:
    for _ in range(5):
        source.fetch(None)
    assert server.connections == 1


def test_a_server_may_be_served_under_a_path(server: Server) -> None:
    source = HttpSource(f"{server.url}/prefix/")
    source.fetch(None)
    source.close()
    assert server.requests[0].startswith("GET /prefix/v1/locks ")


def test_an_idle_connection_that_the_server_closed_is_replaced(server: Server, source: HttpSource) -> None:
    source.fetch(None)
    server.disconnect()
    assert source.fetch(None).at == AT
    assert server.connections == 2


@pytest.mark.parametrize("header", ["connection: close"])
def test_a_server_without_keep_alive_gets_new_connections(
    server: Server, source: HttpSource, header: str
) -> None:
    server.replies = [reply(ANSWER, "200 OK", "application/json", None, header)]
    assert [source.fetch(None).at for _ in range(3)] == [AT] * 3
    assert server.connections == 3


# -- the token ------------------------------------------------------------------------------------


def test_the_token_comes_from_the_argument_or_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("GATEKEEPER_TOKEN_FILE", str(file))
    HttpSource(server.url).fetch(None)
    monkeypatch.setenv("GATEKEEPER_TOKEN", "from-environment")
    HttpSource(server.url).fetch(None)
    HttpSource(server.url, "given").fetch(None)
    HttpSource(server.url, file).fetch(None)
    sent = [line for request in server.requests for line in request.splitlines() if "authorization" in line]
    assert sent == [
        f"authorization: Bearer {token}" for token in ("from-file", "from-environment", "given", "from-file")
    ]


def test_a_token_file_is_read_for_each_request(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    source = HttpSource(server.url, file)
    assert "token: No such file" in error_of(source)
    file.write_text("one")
    source.fetch(None)
    file.write_text("two words")
    assert "expected a token, one word" in error_of(source)
    file.write_text("two")
    source.fetch(None)
    source.close()
    assert [request.count("Bearer one") for request in server.requests] == [1, 0]


def test_a_token_over_plain_http_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    HttpSource("http://gatelock.example:8080", "secret-word")
    HttpSource("http://127.0.0.1:8080", "secret-word")
    HttpSource("https://gatelock.example:8080", "secret-word")
    [record] = caplog.records
    assert "is sent unencrypted" in record.getMessage()
    assert "secret-word" not in caplog.text


@pytest.mark.parametrize(
    ("url", "settings", "why"),
    [
        ("http://", {}, "expected https://host:port, got"),
        ("https://ann:secret@gatelock", {}, r"https://\*\*\*@gatelock: expected host, port and path alone"),
        ("https://gatelock?token=x", {}, "host, port and path alone"),
        ("https://gatelock:port", {}, "[Pp]ort"),
        ("https://gatelock/a b", {}, "ASCII without spaces"),
        ("https://gatelock", {"token": "two words"}, "token: expected a token, one word in ASCII"),
        ("https://gatelock", {"token": "split\r\nx: y"}, "token: expected a token"),
        ("https://gatelock", {"wait": -1}, "wait: expected seconds from 0 to 60"),
        ("https://gatelock", {"timeout": 0}, "timeout: expected seconds above 0"),
        ("https://gatelock", {"ca": Path("/nowhere.pem")}, r"/nowhere\.pem holds no certificates"),
    ],
)
def test_an_invalid_argument_is_reported_by_the_constructor(
    url: str, settings: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why) as error:
        HttpSource(url, **settings)
    assert "secret" not in str(error.value)
    assert "split" not in str(error.value)


def test_a_gate_passes_its_token_and_a_time_limit_to_the_source() -> None:
    source = open_source("https://gatelock:8080", token="secret", longest=2.0)
    assert isinstance(source, HttpSource)
    assert source.longest == 2.0
    with pytest.raises(ValueError, match="only a server takes one"):
        open_source("sqlite:///x.db", token="secret")


# -- faulty answers -------------------------------------------------------------------------------


def pieces(raw: bytes, size: int, pause_s: float) -> Reply:
    def send(sock: socket.socket) -> None:
        for at in range(0, len(raw), size):
            sock.sendall(raw[at : at + size])
            time.sleep(pause_s)

    return send


def hang(sock: socket.socket) -> None:
    time.sleep(30)


def disconnect(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_RDWR)


def half(sock: socket.socket) -> None:
    sock.sendall(reply(ANSWER[: len(ANSWER) // 2], length=len(ANSWER)))
    sock.shutdown(socket.SHUT_RDWR)


def half_in_chunks(sock: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    sock.sendall(head + b"10\r\n" + ANSWER[:16] + b"\r\n")
    sock.shutdown(socket.SHUT_RDWR)


def half_to_the_end(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + ANSWER[:-1])
    sock.shutdown(socket.SHUT_RDWR)


PROBLEM = json.dumps({"title": "Forbidden", "detail": "This needs another token."}).encode()
BAD: dict[str, tuple[bytes | Reply, str]] = {
    "nothing": (disconnect, "closed the connection without an answer"),
    "half": (half, "the answer is incomplete: [0-9]+ bytes are missing"),
    "half in chunks": (half_in_chunks, "IncompleteRead"),
    "half to the end": (half_to_the_end, "not a JSON document"),
    "half, with its own length": (reply(ANSWER[:-9]), "not a JSON document"),
    "another checksum": (reply(ANSWER.replace(b"acme", b"acne")), "do not match the checksum"),
    "no JSON": (reply(b"Hello"), "not a JSON document"),
    "another format": (reply(ANSWER.replace(b'"format": 1', b'"format": 2')), "format 2"),
    "another type": (reply(b"<h1>", kind="text/html"), "got 'text/html'; is this a Gatelock server"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not an HTTP answer"),
    "another encoding": (
        reply(ANSWER, "200 OK", "application/json", None, "content-encoding: br"),
        "got 'br'",
    ),
    "no gzip": (
        reply(ANSWER, "200 OK", "application/json", None, "content-encoding: gzip"),
        "[Nn]ot a gzipped",
    ),
    "half a gzip": (
        reply(gzip.compress(ANSWER)[:-9], "200 OK", "application/json", None, "content-encoding: gzip"),
        "ended before",
    ),
    "a redirect": (
        reply(b"", "302 Found", "text/html", None, "location: https://elsewhere/"),
        "302 Found: redirects to 'https://elsewhere/'",
    ),
    "a refusal": (
        reply(PROBLEM, "403 Forbidden", "application/problem+json"),
        "403 Forbidden: This needs another",
    ),
    "an error": (reply(b"Internal Server Error", "500 Internal Server Error", "text/plain"), "500 Internal"),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\n\r\n", "304 Not Modified"),
    "no end of headers": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000, "more than 100 headers"),
    "a line without end": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "header line|too long"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_after_a_faulty_answer_with_a_clear_error_the_next_one_is_accepted(
    server: Server, source: HttpSource, bad: tuple[bytes | Reply, str]
) -> None:
    answer, why = bad
    server.replies = [answer, reply()]
    message = error_of(source)
    assert re.search(why, message), message
    assert message.startswith(f"{server.url}: ")
    assert "\n" not in message
    assert source.fetch(None).at == AT


def test_a_refused_connection_is_reported(server: Server, source: HttpSource) -> None:
    server.close()
    assert error_of(source) == f"{server.url}: Connection refused"


@pytest.mark.parametrize(
    "answer",
    [hang, pieces(reply(), 1, 0.05), pieces(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90, 2, 0.05)],
    ids=["hangs", "trickles", "trickles headers"],
)
def test_no_server_can_delay_a_fetch_beyond_its_time_out(
    server: Server, source: HttpSource, answer: Reply
) -> None:
    server.replies = [answer, reply()]
    begun_s = time.monotonic()
    assert "no complete answer in time" in error_of(source, AT)
    assert 1.2 <= time.monotonic() - begun_s < 6  # the pieces alone take longer
    assert source.fetch(None).at == AT


def test_a_silent_resolver_cannot_delay_a_fetch_beyond_its_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def resolver(host: str, *rest: object, **more: int) -> object:
        if not more.get("flags"):
            time.sleep(20)
        return real(host, *rest, **more)

    monkeypatch.setattr(timed_connection.socket, "getaddrinfo", resolver)
    begun_s = time.monotonic()
    assert error_of(HttpSource("http://gatelock.example:1", timeout=0.3)).endswith(
        "the name gatelock.example could not be resolved in time"
    )
    assert time.monotonic() - begun_s < 5


def test_the_size_of_an_answer_is_bounded(
    server: Server, source: HttpSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 100_000)
    server.replies = [reply(b" " * 200_000), reply()]
    assert "more than 100000 bytes" in error_of(source)
    compressed = gzip.compress(b" " * 50_000_000)
    server.replies = [
        reply(compressed, "200 OK", "application/json", None, "content-encoding: gzip"),
        reply(),
    ]
    assert "decompressed, the answer has more than 100000 bytes" in error_of(source)
    assert source.fetch(None).at == AT


def test_a_compressed_answer_is_decompressed(server: Server, source: HttpSource) -> None:
    compressed = gzip.compress(ANSWER)
    server.replies = [reply(compressed, "200 OK", "application/json", None, "content-encoding: gzip")]
    assert source.fetch(None).changes == (Set(a_lock()),)


@pytest.mark.parametrize(
    ("header", "at_least", "at_most"),
    [("7", 7, 7), (format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True), 3600, 7200),
     (format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True), 0, 0)],
    ids=["seconds", "a date", "a date in the past"],
)  # fmt: skip
def test_retry_after_is_part_of_the_error(
    server: Server, source: HttpSource, header: str, at_least: float, at_most: float
) -> None:
    server.replies = [
        reply(b"{}", "503 Service Unavailable", "application/json", None, f"retry-after: {header}")
    ]
    with pytest.raises(TryLater, match="503") as error:
        source.fetch(None)
    assert at_least <= error.value.retry_after <= at_most


@pytest.mark.parametrize("header", ["soon", "-1", "1e9", "9" * 400])
def test_a_malformed_retry_after_is_ignored(server: Server, source: HttpSource, header: str) -> None:
    server.replies = [reply(b"", "503 Service Unavailable", "text/plain", None, f"retry-after: {header}")]
    with pytest.raises(SourceError) as error:
        source.fetch(None)
    assert not isinstance(error.value, TryLater)


# -- close and fork -------------------------------------------------------------------------------


def test_closing_ends_a_long_poll(server: Server) -> None:
    server.replies = [hang]
    source = HttpSource(server.url, wait=20)
    threading.Timer(0.3, source.close).start()
    begun_s = time.monotonic()
    error_of(source, AT)
    assert time.monotonic() - begun_s < 5
    server.replies = [reply()]
    assert source.fetch(None).at == AT
    source.close()


def test_a_gate_closes_at_once_during_a_long_poll() -> None:
    with feed_server(HandFeed(a_lock(ends_in=10**9))) as url:
        gate = Gate(url)
        assert gate.ready(10)
        assert not gate.allow("api_key:acme")
        time.sleep(0.3)
        begun_s = time.monotonic()
        gate.close()
        assert time.monotonic() - begun_s < 5


def test_a_forked_child_opens_its_own_connection() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent("""
            import os, threading
            from gatekeeper.sources.http import HttpSource
            from tests.gatekeeper.test_http import AT, Server

            server = Server()
            source = HttpSource(server.url)
            source.fetch(None)
            source._mutex.acquire()  # as another thread may at the fork
            child = os.fork()
            if not child:
                # The child has no thread that serves requests.
                assert source._connection is not None
                source.close()
                assert source._connection is None
                source._leave_to_parent()
                os._exit(0)
            source._mutex.release()
            assert os.waitpid(child, 0)[1] == 0
            source.fetch(None)
            print(server.connections)
            source.close()
        """)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "1\n")


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> object:
    return certificate(tmp_path_factory.mktemp("tls"))


def test_over_tls_the_certificate_is_verified_before_the_token_is_sent(identity: object) -> None:
    known = TokenList((Token("shop", token_digest("gatelock_shop"), "read", 0, None),), 1_000)
    with feed_server(HandFeed(a_lock()), lambda: known, identity) as url:
        source = HttpSource(url, "gatelock_shop", ca=identity.certificate)
        at = source.fetch(None).at
        assert source.fetch(at).at == at
        source.close()
        assert "401 Unauthorized: This token was never made" in error_of(
            HttpSource(url, "wrong", ca=identity.certificate)
        )
        assert "the certificate is not valid" in error_of(HttpSource(url, "gatelock_shop"))
        named = url.replace("127.0.0.1", "localhost")
        assert "the certificate is not valid" in error_of(
            HttpSource(named, "gatelock_shop", ca=identity.certificate)
        )
        plain = HttpSource(url.replace("https", "http"), timeout=1)
        assert error_of(plain).startswith(url.replace("https", "http"))


def test_a_server_without_tls_is_an_error_for_an_https_url(server: Server) -> None:
    server.replies = [reply()]
    assert error_of(HttpSource(server.url.replace("http", "https"), timeout=1)).startswith("https://127.")
