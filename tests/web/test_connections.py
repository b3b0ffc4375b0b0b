"""Clients that are slow, silent, gone, or too many: through real sockets.

test_bounded_connection.py has the deadline of a request on a manual clock.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from analyzer.faces.feed.feed_cache import REFRESH_EVERY_S
from analyzer.server import connection_limits
from analyzer.server.connection_limits import AcceptedSocket, OpenConnections
from analyzer.server.tls import TlsFiles
from gatekeeper.feed import feed_json
from gatekeeper.model import SourceError
from gatekeeper.sources.http import HttpSource, TryLater
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import certificate, feed_server, line_to
from tests.support.waiting import PATIENCE_S, wait_until


def request_for(feed: HandFeed, **query: object) -> bytes:
    """A request of a gate that holds the latest version."""
    fields = {"since": feed.at.version, "mark": feed.at.mark} | query
    text = "&".join(f"{name}={value}" for name, value in fields.items())
    return f"GET /v1/locks?{text} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


def answer_of(line: socket.socket) -> bytes:
    """Reads one answer in JSON."""
    raw = b""
    while not raw.endswith(b"]}"):
        piece = line.recv(1 << 20)
        assert piece
        raw += piece
    return raw


def bytes_until_end(line: socket.socket) -> int:
    """Reads until the server ends the connection and returns how many bytes came."""
    received = 0
    with suppress(ConnectionError):
        while piece := line.recv(1 << 20):
            received += len(piece)
    return received


@pytest.fixture
def feed() -> HandFeed:
    return HandFeed(a_lock(ends_in=10**9))


# Too many


def test_a_connection_beyond_the_bound_is_refused_with_retry_after(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS_MAX", 3)
    admitted: list[object] = []
    note = OpenConnections.admitted

    def noted(connections: OpenConnections, client: Any) -> None:
        note(connections, client)
        admitted.append(client)

    monkeypatch.setattr(OpenConnections, "admitted", noted)
    with feed_server(feed) as url:
        source = HttpSource(url)
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(line_to(url)).sendall(request_for(feed, wait=30))
            wait_until(lambda: len(admitted) == 3)  # before that, newcomers take their places
            answer = plain_http.get(f"{url}/v1/locks")
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
            assert 5 <= int(answer.headers["retry-after"]) < 15
            assert answer.json()["detail"] == "Too many clients are connected."
            with pytest.raises(TryLater) as later:
                source.fetch(None)
            assert 5 <= later.value.retry_after < 15
        wait_until(lambda: plain_http.get(f"{url}/v1/locks").status_code != 503)
        assert source.fetch(None).at == feed.at
        source.close()


def test_silent_connections_give_their_places_to_new_ones(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many more than the bound: each client that asks is answered, and each silent one is ended."""
    monkeypatch.setattr(connection_limits, "CONNECTIONS_MAX", 20)
    monkeypatch.setattr(connection_limits, "REFUSED_MAX", 5)
    with feed_server(feed) as url, ExitStack() as stack, plain_http.Client(timeout=PATIENCE_S) as client:
        waiting = stack.enter_context(line_to(url))
        waiting.sendall(request_for(feed, wait=60))
        assert client.get(f"{url}/v1/locks").status_code == 200
        silent = [stack.enter_context(line_to(url)) for _ in range(100)]
        assert plain_http.get(f"{url}/v1/locks").status_code == 200
        assert client.get(f"{url}/v1/locks").status_code == 200, "an admitted client kept its connection"
        wait_until(lambda: _open_at_server(url) <= 20 + 5)
        assert bytes_until_end(silent[0]) == 0
        feed.set(a_lock("user:bob", ends_in=10**9))
        assert b"user:bob" in answer_of(waiting), "a waiting gate kept its connection"


def _open_at_server(url: str) -> int:
    port = urlsplit(url).port
    connections = psutil.Process().net_connections("tcp4")
    return sum(end.laddr.port == port and bool(end.raddr) for end in connections)


def test_an_address_with_many_silent_connections_takes_no_place_of_another() -> None:
    async def story() -> None:
        connections = OpenConnections(10)
        with ExitStack() as stack:

            def accept(host: str, port: int) -> AcceptedSocket:
                mine, other = map(stack.enter_context, socket.socketpair())
                assert other is not mine
                accepted = AcceptedSocket(connections, mine, (host, port))
                connections.add(stack.enter_context(accepted))
                return accepted

            few = [accept("192.0.2.1", 1), accept("2001:db8::1", 1)]
            many = [accept(f"2001:db8:0:9::{n}", n) for n in range(30)]  # one network
            assert [one.is_ending for one in many] == [True] * 22 + [False] * 8
            assert not any(one.is_ending or one.is_refused for one in few)
            for one in (*few, *many[22:]):
                connections.admitted(one.client)
            assert accept("192.0.2.9", 1).is_refused
        assert len(connections) == 0

    asyncio.run(story())


def test_without_descriptors_connections_are_turned_away_and_accepted_again_later(
    feed: HandFeed, caplog: pytest.LogCaptureFixture
) -> None:
    """In a process that may open fifty more files; the loop is not stopped and not kept busy by it."""
    with feed_server(feed) as url, ExitStack() as stack:
        assert plain_http.get(f"{url}/v1/locks").status_code == 200
        lines = [stack.enter_context(socket.socket()) for _ in range(60)]
        limits, ended = resource.getrlimit(resource.RLIMIT_NOFILE), 0
        held = psutil.Process().num_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 20, limits[1]))
        try:
            for line in lines:
                line.settimeout(10)
                line.connect((urlsplit(url).hostname, urlsplit(url).port))
            lines[-1].sendall(request_for(feed))
            ended = sum(bytes_until_end(line) == 0 for line in lines[:30])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert ended == 30
        assert plain_http.get(f"{url}/v1/locks").status_code == 200
    messages = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == 1
    assert "turned away" in messages[0]


def test_a_silent_tls_handshake_is_bounded_in_time_and_counted(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS_MAX", 10)
    identity = certificate(tmp_path)
    with feed_server(feed, identity=identity) as url, ExitStack() as stack:
        silent = [stack.enter_context(line_to(url)) for _ in range(40)]
        source = HttpSource(url, ca=identity.certificate)
        assert source.fetch(None).at == feed.at
        assert bytes_until_end(silent[0]) == 0, "ended for a new one"
        assert connection_limits.HANDSHAKE_S == 5
        source.close()
    monkeypatch.setattr(connection_limits, "HANDSHAKE_S", 0.3)
    with feed_server(feed, identity=identity) as url, line_to(url) as line:
        began_s = time.monotonic()
        assert bytes_until_end(line) == 0
        assert 0.2 < time.monotonic() - began_s < 4


def test_the_bound_follows_the_limit_of_open_files() -> None:
    code = """
import logging, resource
from analyzer.server.connection_limits import connections_max
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(connections_max(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""

    def with_limits(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code.format(soft=soft, hard=hard)], capture_output=True, text=True
        )

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= 4096:
        assert with_limits(256, 4096).stdout == "2500 2950\n"
    few = with_limits(256, 1024)
    assert few.stdout == "574 1024\n"
    assert "at most 574 gates can connect: this process may open 1024 files" in few.stderr


def test_five_hundred_waiting_gates_are_answered_by_one_read_of_the_feed(feed: HandFeed) -> None:
    with feed_server(feed) as url, ExitStack() as stack:
        lines = [stack.enter_context(line_to(url)) for _ in range(500)]
        for line in lines:
            line.sendall(request_for(feed, wait=60))
        with plain_http.Client(timeout=PATIENCE_S) as client:
            client.get(f"{url}/v1/locks")  # is answered after all of them have arrived
        reads, began_s = len(feed.fetches), time.monotonic()
        feed.set(a_lock("user:bob", ends_in=10**9))
        assert all(b"user:bob" in answer_of(line) for line in lines)
        # One read finds the change; the others are the usual refreshes meanwhile.
        assert len(feed.fetches) - reads <= 3 + (time.monotonic() - began_s) / REFRESH_EVERY_S


def test_a_refused_connection_gets_a_problem_with_a_varying_retry_after() -> None:
    refused = connection_limits.refuse_connection(7)
    assert json.loads(refused.body)["status"] == refused.status_code == 503
    assert refused.headers["retry-after"] == "12"
    assert refused.headers["content-type"] == "application/problem+json"
    waits = {connection_limits.refuse_connection(number).headers["retry-after"] for number in range(20)}
    assert len(waits) >= 5


# Slow


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/lo", b"POST /v1/locks HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"],
    ids=["nothing", "half a line", "half a body"],
)  # fmt: skip
def test_a_connection_whose_request_is_not_complete_in_time_is_ended(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch, sent: bytes, tls: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection_limits, "REQUEST_S", 0.5)
    with feed_server(feed, identity=certificate(tmp_path) if tls else None) as url, line_to(url) as line:
        talking = _in_tls(line) if tls else line
        began_s = time.monotonic()
        if sent:
            talking.sendall(sent)
        bytes_until_end(talking)
        assert 0.4 <= time.monotonic() - began_s < 10
        talking.close()


def _in_tls(line: socket.socket) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(line)


def test_a_client_that_takes_nothing_of_its_answer_is_disconnected_and_delays_no_other(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "SEND_S", 1.0)
    feed.set(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(20_000)))
    with feed_server(feed) as url, line_to(url, 4096) as line:
        line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        source = HttpSource(url)
        assert len(source.fetch(None).changes) == 20_001
        source.close()
        wait_until(lambda: not _server_has(url, line))  # the kernel gives up after SEND_S
        assert bytes_until_end(line) < 10_000_000


def _server_has(url: str, line: socket.socket) -> bool:
    """Whether the server, in this process, still has its end of the connection."""
    ends = (urlsplit(url).port, line.getsockname()[1])
    connections = psutil.Process().net_connections("tcp4")
    return any((end.laddr.port, end.raddr.port) == ends for end in connections if end.raddr)


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "SEND_S", 1.0)
    feed.set(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(700)))
    with feed_server(feed) as url, line_to(url, 4096) as line:
        line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        raw, began_s = b"", time.monotonic()
        while piece := line.recv(20_000):
            raw += piece
            time.sleep(0.02)  # the pace of this client, longer than SEND_S in all
        assert time.monotonic() - began_s > 1.5
        assert len(feed_json.load(raw.partition(b"\r\n\r\n")[2]).changes) == 701


def test_slow_clients_delay_no_other(feed: HandFeed) -> None:
    """A client in the middle of its request, and one that has sent nothing, while a gate waits."""
    with feed_server(feed) as url, line_to(url) as slow, line_to(url):
        slow.sendall(request_for(feed)[:20])
        source = HttpSource(url, wait=20)
        at = source.fetch(None).at
        threading.Timer(0.3, feed.set, (a_lock("user:bob"),)).start()
        began_s = time.monotonic()
        assert source.fetch(at).changes
        assert time.monotonic() - began_s < 5
        source.close()


# TLS


def test_new_connections_get_a_renewed_certificate(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new certificate whose key is still the old one changes nothing, and open connections continue."""
    monkeypatch.setattr("analyzer.server.tls.RELOAD_EVERY_S", 0.1)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = certificate(tmp_path / "old"), certificate(tmp_path / "new")
    used = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    for name in ("certificate", "key"):
        getattr(used, name).write_bytes(getattr(old, name).read_bytes())
    with feed_server(feed, identity=used) as url:
        open_before = HttpSource(url, ca=old.certificate)
        open_before.fetch(None)
        used.certificate.write_bytes(new.certificate.read_bytes())
        wait_until(lambda: "cannot use the renewed certificate" in caplog.text)
        HttpSource(url, ca=old.certificate).fetch(None)
        used.key.write_bytes(new.key.read_bytes())
        fresh = HttpSource(url, ca=new.certificate, timeout=5)

        def is_renewed() -> bool:
            try:
                fresh.fetch(None)
            except SourceError:
                return False
            return True

        wait_until(is_renewed)
        assert open_before.fetch(None).at == feed.at
        open_before.close()
        fresh.close()


# The kernel


def test_accepted_connections_inherit_the_time_outs_of_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection_limits.set_socket_timeouts(listening)
        with line_to(f"http://127.0.0.1:{listening.getsockname()[1]}"):
            accepted, _ = listening.accept()
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            accepted.close()
