"""The log formats and sources in `deploy/proxies`: a real nginx, and sample lines of other proxies."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.kernel.model import DrainedCounts
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, header
from gatekeeper.sources.fixed import FixedSource
from tests.support.feed import a_lock
from tests.support.requestlog import count_lines
from tests.support.servers import Missing
from tests.support.servers.child import accepts, free_port
from tests.support.servers.report import ServersUsed
from tests.support.uvicorn import serving

PROXIES = Path(__file__).parents[3] / "deploy" / "proxies"

LINES = Path(__file__).parents[2] / "data" / "proxies"
FILES = {"envoy": "envoy.yaml", "traefik": "traefik.yaml", "caddy": "Caddyfile"}


def metered(proxy: str, folder: Path) -> Path:
    """Returns a configuration with the proxy's source, and meters of bytes and duration."""
    text = (PROXIES / f"{proxy}.toml").read_text()
    for name, field in (("sent", "bytes"), ("busy", "duration")):
        text += f'\n[[meters]]\nname = "{name}"\nsum = "{field}"\n'
    (folder / "gatelock.toml").write_text(text)
    return folder / "gatelock.toml"


def sums(found: DrainedCounts, grouping: str = "caller") -> dict[tuple[str, ...], tuple[int, int]]:
    return {
        tuple(part for part in (row.key, row.resource, row.meter) if part): (row.value, row.denied)
        for row in found.rows
        if row.grouping == grouping
    }


@pytest.mark.parametrize("proxy", FILES)
def test_a_proxys_log_is_counted(proxy: str, tmp_path: Path) -> None:
    text = (LINES / f"{proxy}.log").read_bytes()
    found = count_lines(metered(proxy, tmp_path), text, groupings=["address", "caller+resource"])
    assert found.rejected == []
    by_caller = sums(found)
    assert by_caller["api_key:acme", "requests"] == (1, 1)
    assert by_caller["address:192.0.2.7", "requests"] == (1, 0)
    assert by_caller["api_key:acme", "sent"] == (154, 300)
    busy_us, _ = by_caller["api_key:acme", "busy"]
    assert 226_000 <= busy_us < 227_000
    assert {row.bucket_s for row in found.rows} == {1_795_276_800}
    assert sums(found, "address")["2001:db8:1:2::/64", "requests"] == (1, 1)
    assert sums(found, "caller+resource")["api_key:acme", "/v1/items/{id}", "requests"] == (1, 1)


@pytest.mark.parametrize("proxy", FILES)
def test_the_sample_lines_have_the_fields_of_the_proxys_configuration(proxy: str) -> None:
    """A field that is renamed in only one of the two files is an error."""
    written = [json.loads(line) for line in (LINES / f"{proxy}.log").read_text().splitlines()]
    keys = {key for line in written for key in line}
    text = (PROXIES / FILES[proxy]).read_text()
    configured = {
        "envoy": re.findall(r"^ {10}(\w+): \"%", text, re.MULTILINE),
        "traefik": [
            *re.findall(r"^ {6}(\w+): keep", text, re.MULTILINE),
            *(f"{side}_{name}" for side, name in (("request", "X-Api-Key"), ("downstream", "Gatelock"))
              if f"        {name}: keep" in text),
        ],
        "caddy": re.findall(r"^\tlog_append (\w+)", text, re.MULTILINE),
    }[proxy]  # fmt: skip
    assert len(configured) > 2
    assert set(configured) <= keys
    always = {"traefik": {"level", "msg", "time", "origin_Gatelock"}, "envoy": set()}
    if proxy in always:
        assert keys - set(configured) == always[proxy]


# -- a real nginx --------------------------------------------------------------------------------

NGINX = """
daemon off;
{user}
pid nginx.pid;
error_log error.log;
worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    include {snippet};
    server {{
        listen 127.0.0.1:{port};
        access_log requests.log gatelock;
        location / {{ proxy_pass {upstream}; }}
    }}
}}
"""


class Nginx:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def send(self, raw: bytes) -> bytes:
        """Returns the first line of the response to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(raw)
            answer = b""
            while piece := line.recv(65536):
                answer += piece
        return answer.partition(b"\r\n")[0]

    def ask(self, path: bytes = b"/v1/items/7?token=secret", *headers: bytes) -> int:
        given = b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: shop", b"Connection: close", *headers])
        return int(self.send(given + b"\r\n\r\n").split()[1])

    def written(self, lines: int) -> bytes:
        deadline_s = time.monotonic() + 10
        while (text := (self.folder / "requests.log").read_bytes()).count(b"\n") < lines:
            assert time.monotonic() < deadline_s, text
            time.sleep(0.02)
        return text


class Shop:
    """An application that remembers the callers that the guard checked."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def caller(self, scope: dict[str, object]) -> str:
        found = header("x-api-key")(scope)
        self.callers.append(found)
        return found

    async def __call__(self, scope: dict[str, object], receive: object, send: object) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def nginx(shop: Shop, tmp_path: Path, servers: ServersUsed) -> Iterator[Nginx]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        servers.lacks("nginx", Missing("not installed"))
    version = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    servers.found("nginx", version.split("/")[-1].strip())
    gate, port = Gate(FixedSource(a_lock("api_key:locked", ends_in=10**9))), free_port()
    with gate, serving(Guard(shop, gate, caller=shop.caller)) as upstream:
        assert gate.ready(10)
        user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
        text = NGINX.format(user=user, snippet=PROXIES / "nginx.conf", port=port, upstream=upstream)
        (tmp_path / "nginx.conf").write_text(text)
        command = [program, "-p", tmp_path, "-c", "nginx.conf", "-e", "error.log"]
        with (tmp_path / "nginx.log").open("wb") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            deadline_s = time.monotonic() + 10
            while not accepts(port):
                assert child.poll() is None, (tmp_path / "nginx.log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            yield Nginx(tmp_path, port)
        finally:
            child.terminate()
            child.wait(10)


def test_nginxs_log_is_counted_under_the_name_that_the_gate_checks(
    nginx: Nginx, shop: Shop, tmp_path: Path
) -> None:
    assert nginx.ask(b"/v1/items/7?token=secret", b"X-Api-Key: acme") == 200
    assert nginx.ask(b"/v1/items/8", b"X-Api-Key: locked") == 429
    assert nginx.ask(b"/favicon.ico") == 200
    strange = ["café", 'a"b\\c', "  padded  ", "日本語", "a:b", "x" * 256, "<>&'", "😀"]
    for key in strange:
        assert nginx.ask(b"/v1/items/7", b"X-Api-Key: " + key.encode()) == 200
    text = nginx.written(3 + len(strange))
    assert b"secret" not in text
    found = count_lines(metered("nginx", tmp_path), text, groupings=["caller+resource"])
    assert found.rejected == []
    counted = sums(found)
    assert counted["api_key:acme", "requests"] == (1, 0)
    assert counted["api_key:acme", "sent"] == (2, 0)
    assert counted["api_key:locked", "requests"] == (0, 1)
    assert counted["address:127.0.0.1", "requests"] == (1, 0)
    assert sums(found, "caller+resource")["api_key:acme", "/v1/items/{id}", "requests"] == (1, 0)
    checked = {caller or "address:127.0.0.1" for caller in shop.callers}
    assert {key for key, meter in counted if meter == "requests"} == checked


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nHost: shop\r\nX-Api-Key: acme\r\nConnection: close\r\n\r\n",
        b'GET /a"b\\c HTTP/1.1\r\nHost: shop\r\nX-Api-Key: acme\r\nConnection: close\r\n\r\n',
        b"GET / HTTP/1.1\r\nHost: shop\r\nX-Api-Key: acme\r\nX-Api-Key: acme\r\nConnection: close\r\n\r\n",
        b"GET /" + b"x" * 4_000 + b" HTTP/1.1\r\nHost: shop\r\nX-Api-Key: acme\r\nConnection: close\r\n\r\n",
        b'G"T / HTTP/1.1\r\nHost: shop\r\nX-Api-Key: acme\r\nConnection: close\r\n\r\n',
        b"GET / HTTP/1.0\r\nX-Api-Key: acme\r\n\r\n",
        b"GET /\r\n",
        b"\xff\xfe\xfd\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_every_line_is_counted_with_any_request(nginx: Nginx, tmp_path: Path, raw: bytes) -> None:
    """Otherwise such a caller would never reach a limit, and a thousand lines would stop the partition."""
    nginx.send(raw)
    found = count_lines(metered("nginx", tmp_path), nginx.written(1))
    assert found.rejected == []
    (caller,) = {row.key for row in found.rows}
    assert caller == (
        "api_key:acme" if raw[:1] == b"G" and b"acme" in raw and b'G"T' not in raw else "address:127.0.0.1"
    )


def test_an_invalid_key_counts_as_absent_in_the_log_and_at_the_gate(
    nginx: Nginx, shop: Shop, tmp_path: Path
) -> None:
    hidden = ["\u0085", "a\u061c", "\u200f", "\u202eemca", "a\u2069", "\u009f"]
    keys = [key.encode() for key in (*hidden, "x" * 257, "é" * 129)]
    keys += [b"caf\xe9", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf", b"ok\xff", b"a\tb"]
    for key in keys:
        nginx.ask(b"/", b"X-Api-Key: " + key)
    found = count_lines(metered("nginx", tmp_path), nginx.written(len(keys)))
    assert found.rejected == []
    assert sums(found)["address:127.0.0.1", "requests"] == (len(keys), 0)
    assert set(shop.callers) == {""}
