"""Clients that are slow, silent, gone, or too many: through real sockets."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from analyzer.web import connection_limits
from analyzer.web.feed_cache import REFRESH_EVERY_S
from analyzer.web.tls import TlsFiles
from gatekeeper.feed import feed_json
from gatekeeper.model import SourceError
from gatekeeper.sources.http import HttpSource, TryLater
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import certificate, feed_server, line_to

PATIENCE_S = 20.0


def question(feed: HandFeed, **more: object) -> bytes:
    query = "&".join(
        f"{name}={value}" for name, value in ({"since": feed.at.version, "mark": feed.at.mark} | more).items()
    )
    return f"GET /v1/locks?{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


def answer_of(line: socket.socket) -> bytes:
    raw = b""
    while not raw.endswith(b"]}"):
        piece = line.recv(1 << 20)
        assert piece
        raw += piece
    return raw


def ended(line: socket.socket) -> bool:
    """Whether the server has ended the connection, without a word or in the midst of one."""
    try:
        while line.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture
def feed() -> HandFeed:
    return HandFeed(a_lock(ends_in=10**9))


# Too many


def test_who_is_too_many_is_told_when_to_come_again(feed: HandFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "CONNECTIONS_MAX", 3)
    with feed_server(feed) as url:
        source = HttpSource(url)
        with ExitStack() as held:
            for _ in range(3):
                held.enter_context(line_to(url)).sendall(question(feed, wait=30))
            time.sleep(0.3)
            answer = plain_http.get(f"{url}/v1/locks")
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
            assert 5 <= int(answer.headers["retry-after"]) < 15
            assert answer.json()["detail"] == "Too many are connected just now."
            with pytest.raises(TryLater) as later:
                source.fetch(None)
            assert 5 <= later.value.retry_after < 15
        deadline_s = time.monotonic() + PATIENCE_S
        while plain_http.get(f"{url}/v1/locks").status_code == 503:
            assert time.monotonic() < deadline_s
        assert source.fetch(None).at == feed.at
        source.close()


def test_a_process_takes_as_many_files_as_it_may(tmp_path: Path) -> None:
    code = """
import logging, resource
from analyzer.web.connection_limits import connections_max
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(connections_max(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""

    def told(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code.format(soft=soft, hard=hard)], capture_output=True, text=True
        )

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= 4096:
        assert told(256, 4096).stdout == "2500 2600\n"
    few = told(256, 1024)
    assert few.stdout == "924 1024\n"
    assert "at most 924 gates can be connected: this process may open 1024 files" in few.stderr


def test_five_hundred_who_wait_are_told_by_one_fetch(feed: HandFeed) -> None:
    with feed_server(feed) as url, ExitStack() as held:
        lines = [held.enter_context(line_to(url)) for _ in range(500)]
        for line in lines:
            line.sendall(question(feed, wait=60))
        with plain_http.Client(timeout=PATIENCE_S) as client:
            client.get(f"{url}/v1/locks")  # comes after them all
        asked, begun_s = len(feed.asked), time.monotonic()
        feed.set(a_lock("user:bob", ends_in=10**9))
        assert all(b"user:bob" in answer_of(line) for line in lines)
        # One look finds it; others were taken meanwhile, at their usual times.
        assert len(feed.asked) - asked <= 3 + (time.monotonic() - begun_s) / REFRESH_EVERY_S


# Slow


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "said", [b"", b"GET /v1/lo", b"POST /v1/locks HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"],
    ids=["nothing", "half a line", "half a body"],
)  # fmt: skip
def test_who_does_not_come_to_the_end_of_a_question_is_not_waited_for(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch, said: bytes, tls: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection_limits, "REQUEST_S", 0.5)
    with feed_server(feed, identity=certificate(tmp_path) if tls else None) as url, line_to(url) as line:
        talking = _in_tls(line) if tls else line
        begun_s = time.monotonic()
        if said:
            talking.sendall(said)
        assert ended(talking)
        assert 0.4 <= time.monotonic() - begun_s < 10
        talking.close()


def _in_tls(line: socket.socket) -> socket.socket:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(line)


def test_a_question_that_comes_in_drops_has_its_time_as_a_whole(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the second one on a connection."""
    monkeypatch.setattr(connection_limits, "REQUEST_S", 0.5)
    with feed_server(feed) as url, line_to(url) as line:
        line.sendall(question(feed))
        assert line.recv(1 << 20).startswith(b"HTTP/1.1 200")
        time.sleep(0.7)  # idle is not slow
        begun_s = time.monotonic()
        assert _drops(line, question(feed)) < 25
        assert time.monotonic() - begun_s < 10


def _drops(line: socket.socket, text: bytes) -> int:
    """How many bytes of `text` the server takes, one each now and then."""
    taken = 0
    with suppress(ConnectionError):
        for byte in text:
            line.sendall(bytes([byte]))
            taken += 1
            time.sleep(0.05)
    return taken


def test_who_waits_for_news_is_not_slow(feed: HandFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "REQUEST_S", 0.2)
    with feed_server(feed) as url, line_to(url) as line:
        line.sendall(question(feed, wait=30))
        time.sleep(0.8)
        feed.set(a_lock("user:bob"))
        assert b"user:bob" in answer_of(line)


def test_who_takes_nothing_of_the_answer_is_left_and_holds_nobody_up(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "SEND_S", 1.0)
    feed.set(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(20_000)))
    with feed_server(feed) as url, line_to(url, 4096) as line:
        line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        source = HttpSource(url)
        assert len(source.fetch(None).changes) == 20_001
        source.close()
        time.sleep(2.5)
        assert _taken(line) < 10_000_000


def _taken(line: socket.socket) -> int:
    """How many bytes come before the server has ended the connection."""
    taken = 0
    with suppress(ConnectionError):
        while piece := line.recv(1 << 20):
            taken += len(piece)
    return taken


def test_who_takes_the_answer_slowly_gets_all_of_it(feed: HandFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "SEND_S", 1.0)
    feed.set(*(a_lock(f"user:{n}", detail="x" * 500, ends_in=10**9) for n in range(700)))
    with feed_server(feed) as url, line_to(url, 4096) as line:
        line.sendall(b"GET /v1/locks HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        raw, begun_s = b"", time.monotonic()
        while piece := line.recv(20_000):
            raw += piece
            time.sleep(0.02)
        assert time.monotonic() - begun_s > 1.5
        assert len(feed_json.load(raw.partition(b"\r\n\r\n")[2]).changes) == 701


def test_a_slow_client_is_slow_alone(feed: HandFeed) -> None:
    """One that has begun to ask, and one that has not, while another waits for news."""
    with feed_server(feed) as url, line_to(url) as one, line_to(url):
        one.sendall(question(feed)[:20])
        source = HttpSource(url, wait=20)
        at = source.fetch(None).at
        threading.Timer(0.3, feed.set, (a_lock("user:bob"),)).start()
        begun_s = time.monotonic()
        assert source.fetch(at).changes
        assert time.monotonic() - begun_s < 5
        source.close()


# TLS


def test_a_renewed_certificate_is_shown_to_who_comes_then(
    feed: HandFeed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half of a new one, its key missing yet, changes nothing; connections that there are go on."""
    monkeypatch.setattr("analyzer.web.tls.RENEW_EVERY_S", 0.1)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = certificate(tmp_path / "old"), certificate(tmp_path / "new")
    shown = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    for name in ("certificate", "key"):
        getattr(shown, name).write_bytes(getattr(old, name).read_bytes())
    with feed_server(feed, identity=shown) as url:
        kept = HttpSource(url, ca=old.certificate)
        kept.fetch(None)
        shown.certificate.write_bytes(new.certificate.read_bytes())
        time.sleep(0.5)
        HttpSource(url, ca=old.certificate).fetch(None)
        shown.key.write_bytes(new.key.read_bytes())
        deadline_s = time.monotonic() + PATIENCE_S
        fresh = HttpSource(url, ca=new.certificate, timeout=5)
        while (told := _told(fresh)) != str(feed.at):
            assert "certificate is not good" in told
            assert time.monotonic() < deadline_s
        assert kept.fetch(None).at == feed.at
        kept.close()
        fresh.close()


def _told(source: HttpSource) -> str:
    try:
        return str(source.fetch(None).at)
    except SourceError as error:
        return str(error)


def test_a_machine_that_is_gone_is_noticed_by_the_kernel() -> None:
    """Options that accepted connections have from the one that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection_limits.set_socket_timeouts(listening)
        with line_to(f"http://127.0.0.1:{listening.getsockname()[1]}"):
            accepted, _ = listening.accept()
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            accepted.close()


def test_every_refusal_is_a_problem_with_a_type() -> None:
    refused = connection_limits.refuse_connection(7)
    assert json.loads(refused.body)["status"] == refused.status_code == 503
    assert refused.headers["retry-after"] == "12"
    assert refused.headers["content-type"] == "application/problem+json"
