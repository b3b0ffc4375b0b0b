"""docs/feed.md against the code: its examples, its bounds, and its nginx configuration."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from analyzer.faces.feed import feed_cache, locks_endpoint, long_polls
from analyzer.judging.locks import notify
from analyzer.kernel.tokens import Token, TokenList, token_digest
from analyzer.server import connection_limits
from gatekeeper import Gate
from gatekeeper.feed import feed_json, poller
from gatekeeper.model import Cursor, SourceError
from gatekeeper.sources import http
from gatekeeper.sources.http import HttpSource
from gatekeeper.telemetry import status_json
from tests.support.feed import HandFeed, a_lock
from tests.support.servers import Missing
from tests.support.servers.child import free_port
from tests.support.servers.report import ServersUsed
from tests.support.serving import certificate, feed_server
from tests.support.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "feed.md").read_text()
TOKEN = "gatelock_shop"
TOKENS = TokenList((Token("shop", token_digest(TOKEN), "read", 0, None),), 1_000)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def answers() -> list[str]:
    """The two answers of the page: a snapshot and changes."""
    found = [block[block.index("{") :].rstrip("\n") for block in blocks(r"[^\n]*") if '"changes"' in block]
    assert len(found) == 2
    return found


def test_the_answers_on_the_page_are_valid_and_have_the_right_checksum() -> None:
    snapshot, changes = map(feed_json.load, answers())
    assert (snapshot.snapshot, snapshot.at, len(snapshot.changes)) == (True, (3, "0c9a77f3"), 2)
    assert (changes.since, len(changes.changes), snapshot.unknown, changes.unknown) == (1, 2, (), ())
    length = re.search(r"content-length: (\d+)\ncontent-type: application/json\n", PAGE)
    assert length is not None
    assert int(length[1]) == len(answers()[0])


def test_the_command_on_the_page_computes_the_checksum(tmp_path: Path) -> None:
    found = re.search(r"^\$ (sed .* \| sha256sum)\n([0-9a-f]{64})", PAGE, re.MULTILINE)
    assert found is not None
    (tmp_path / "answer.json").write_text(answers()[0])
    ran = subprocess.run(["sh", "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[0] == found[2] == json.loads(answers()[0])["checksum"].removeprefix("sha256:")


def test_the_tables_on_the_page_have_every_field() -> None:
    def named(head: str) -> set[str]:
        table = PAGE.partition(head)[2].partition("\n\n")[0]
        return {name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in _names(row)}

    assert named("| field | meaning |") == feed_json.ANSWER_FIELDS
    assert named("| field of a lock | meaning |") == feed_json.SET_FIELDS - {"op", "slow"}


def _names(row: str) -> list[str]:
    return re.findall(r"`(\w+)`", row)


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    for phrase, value in {
        "more than 60 is 60": locks_endpoint.WAIT_MAX_S,
        "up to 64 characters": locks_endpoint.MARK_CHARACTERS_MAX,
        "When 2,000 wait": feed_cache.WAITERS_MAX,
        "1,000 requests a second": feed_cache.REQUESTS_PER_S_MAX,
        "second, up to 10.": feed_cache.PACE_MAX_S,
        "2,500 clients are connected": connection_limits.CONNECTIONS_MAX,
        "not complete after 10 seconds": connection_limits.REQUEST_S,
        "of its answer for 20 seconds": connection_limits.SEND_S,
        "an idle connection | 15 s": connection_limits.IDLE_S,
        "pause, up to 10 s": poller.CEILING_S,
        "at least 0.05 s": poller.PACE_MIN_S,
        "or 0.01 s when": poller.PACE_WAITED_S,
    }.items():
        assert phrase in PAGE
        numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", phrase)]
        assert value in numbers
    assert "On SQLite it looks ten times a second" in PAGE
    assert notify.LOOK_EVERY_S == 1 / 10
    assert "connection poolers, twenty times" in PAGE
    assert feed_cache.REFRESH_EVERY_S == 1 / 20
    assert "500 gates every 0.15 s" in PAGE
    assert pytest.approx(0.15) == 500 * feed_cache.ANSWER_S
    assert "the whole head below\n2 KB" in PAGE
    assert long_polls.FIELDS_BYTES_MAX == 2 << 10
    assert "counts as a fifth of a request" in PAGE
    assert long_polls.COST == 1 / 5
    assert "64 MB, some" in PAGE
    assert http.ANSWER_BYTES_MAX == 64 << 20
    last_s = connection_limits.RETRY_AFTER_S + connection_limits.RETRY_AFTER_SPREAD_S - 1
    assert f"`Retry-After` from {connection_limits.RETRY_AFTER_S} to {last_s}" in PAGE
    assert locks_endpoint.GZIP_BYTES_MIN == 1 << 10


def test_the_status_report_on_the_page_is_valid() -> None:
    (example,) = [block for block in blocks("json") if '"instance"' in block]
    status = status_json.load(example)
    assert (status.instance, status.number, status.at, status.callers) == (
        "web-1:4711:9f3c", 17, (3, "0c9a77f3"), ("api_key:acme", "api_key:bob"),
    )  # fmt: skip
    assert json.loads(example).keys() <= json.loads(status_json.dump(status)).keys()


# Behind nginx


class Nginx:
    """nginx with the configuration of the page, on ports and files of this machine."""

    def __init__(self, folder: Path, upstream: str) -> None:
        identity = certificate(folder)
        port = free_port()
        (site,) = blocks("nginx")
        for written, here in {
            "127.0.0.1:8321": upstream,
            "443 ssl": f"127.0.0.1:{port} ssl",
            "/etc/nginx/gatelock.pem": str(identity.certificate),
            "/etc/nginx/gatelock.key": str(identity.key),
        }.items():
            assert written in site
            site = site.replace(written, here)
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid; error_log {folder}/log; daemon off; master_process off;"
            f"events {{ }} http {{ {temporary} {site} }}"
        )
        self.url, self.ca = f"https://127.0.0.1:{port}/gatelock", identity.certificate
        command = ["nginx", "-p", str(folder), "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def get(self) -> httpx2.Response:
        trusted = ssl.create_default_context(cafile=self.ca)
        return httpx2.get(f"{self.url}/v1/locks", verify=trusted)


@pytest.fixture
def world(tmp_path: Path, servers: ServersUsed) -> Iterator[tuple[HandFeed, Nginx]]:
    if shutil.which("nginx") is None:
        servers.lacks("nginx", Missing("not installed"))
    feed = HandFeed(a_lock(ends_in=10**9))
    with feed_server(feed, lambda: TOKENS) as url:
        nginx = Nginx(tmp_path, url.removeprefix("http://"))
        try:
            wait_until(lambda: _answers(nginx), message=(tmp_path / "log").read_text)
            yield feed, nginx
        finally:
            nginx.child.terminate()
            nginx.child.wait(10)


def _answers(nginx: Nginx) -> bool:
    try:
        return bool(nginx.get().status_code)
    except httpx2.TransportError:
        return False


def wait_for_waiter(feed: HandFeed) -> None:
    """Returns when a request waits: the server only refreshes again and again while one does."""
    before = len(feed.fetches)
    wait_until(lambda: len(feed.fetches) >= before + 4)


def test_a_gate_behind_nginx_gets_a_lock_without_waiting_for_its_next_poll(
    world: tuple[HandFeed, Nginx],
) -> None:
    feed, nginx = world
    source = HttpSource(nginx.url, TOKEN, ca=nginx.ca)
    with Gate(source) as gate:
        assert gate.ready(20)
        wait_for_waiter(feed)
        feed.set(a_lock("user:bob", ends_in=10**9))
        began_s = time.monotonic()
        wait_until(lambda: not gate.allow("user:bob"))
        assert time.monotonic() - began_s < 4.0  # less than the five seconds for which the poll waits
    refused = nginx.get()
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")


def test_a_gate_that_disconnects_from_nginx_disconnects_from_the_server(
    world: tuple[HandFeed, Nginx], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_cache, "WAITERS_MAX", 1)
    feed, nginx = world
    source = HttpSource(nginx.url, TOKEN, ca=nginx.ca, wait=30)
    at = source.fetch(None).at
    waiting = threading.Thread(target=_fetch, args=(source, at))
    waiting.start()
    other = HttpSource(nginx.url, TOKEN, ca=nginx.ca, wait=0.2)
    wait_for_waiter(feed)
    assert other.fetch(at).next_poll > 0
    source.close()
    waiting.join()
    wait_until(lambda: other.fetch(at).next_poll == 0)
    other.close()


def _fetch(source: HttpSource, at: Cursor) -> None:
    with pytest.raises(SourceError):
        source.fetch(at)
