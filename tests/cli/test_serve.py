"""`serve`: the lock feed as a process of its own, with nothing to count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.store.transaction import lock_feed
from gatekeeper import Gate
from gatekeeper.model import Lock, Set
from gatekeeper.sources.http import HttpSource
from tests.support import plain_http
from tests.support.serving import certificate

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

PATIENCE_S = 30.0


class Serving:
    """A `gatelock serve` or `run`, and what it says."""

    def __init__(self, folder: Path, command: str, **around: str) -> None:
        self.log = folder / "serve.log"
        with self.log.open("wb") as stream:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "analyzer.cli", command], stderr=stream, env={**os.environ, **around}
            )

    def said(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def url(self) -> str:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and self.child.poll() is None:
            for said in self.said():
                if "listening" in said["message"]:
                    return str(said["message"].split()[-1])
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())


@contextmanager
def serving(folder: Path, command: str = "serve", **around: str) -> Iterator[Serving]:
    server = Serving(folder, command, **around)
    try:
        yield server
    finally:
        server.child.kill()
        server.child.wait()


@pytest.fixture
def configuration() -> str:
    return '[analyzer]\nhttp = "127.0.0.1:0"\n'


def lock(engine: sa.Engine, caller: str) -> None:
    now = datetime.now(UTC)
    with engine.begin() as db:
        lock_feed.publish(db, [Set(Lock("caller", caller, "daily", now, now + timedelta(hours=1)))], caller)


def test_a_gate_learns_over_http_of_a_lock_in_the_database(engine: sa.Engine, tmp_path: Path) -> None:
    with serving(tmp_path) as server, Gate(server.url) as gate:
        assert gate.ready(20)
        assert gate.allow("api_key:acme")
        lock(engine, "api_key:acme")
        deadline_s = time.monotonic() + PATIENCE_S
        while gate.allow("api_key:acme"):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        ready = plain_http.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()["problems"]) == (200, {})
        assert plain_http.get(f"{server.url}/livez").status_code == 200
        assert "gatelock_feed_version 1.0" in plain_http.get(f"{server.url}/metrics").text
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
        assert server.said()[-1]["message"] == "stopped"


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_analyzer_itself_tells_of_a_lock_as_well(
    migrated_url: str, configure: Configure, tmp_path: Path
) -> None:
    """From lines in a log to a refusal, over HTTP, and an end in which nobody is kept waiting."""
    log = tmp_path / "requests.log"
    log.touch()
    configure(f"""
        database = {{ url = "{migrated_url}" }}
        analyzer = {{ http = "127.0.0.1:0" }}
        [[sources]]
        file = "{log}"
        fields = {{ api_key = "key", time = {{ path = "ts", unit = "s" }} }}
        [[policies]]
        name = "daily"
        limit = 3
        window = {{ per = "day" }}
    """)
    with serving(tmp_path, "run") as server, Gate(server.url) as gate:
        assert gate.ready(20)
        with log.open("a") as lines:
            for name in ("acme", "bob", "acme", "acme", "acme"):
                lines.write(f'{{"key": "{name}", "ts": {int(time.time())}}}\n')
        deadline_s = time.monotonic() + PATIENCE_S
        while gate.allow("api_key:acme"):
            assert time.monotonic() < deadline_s, server.log.read_text()
            time.sleep(0.01)
        assert gate.check("api_key:acme").policy == "daily"
        assert gate.allow("api_key:bob")
        time.sleep(0.5)  # it waits for news again
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
        assert not gate.allow("api_key:acme")


def test_tokens_that_are_made_while_it_runs_count(
    engine: sa.Engine, tmp_path: Path, gatelock: Gatelock
) -> None:
    with serving(tmp_path) as server:
        assert HttpSource(server.url).fetch(None).snapshot
        token = gatelock("tokens", "create", "shop", "--scope", "read").output.strip()
        deadline_s = time.monotonic() + PATIENCE_S
        while plain_http.get(f"{server.url}/v1/locks").status_code != 401:
            assert time.monotonic() < deadline_s
        assert HttpSource(server.url, token).fetch(None).snapshot
        short = gatelock("tokens", "create", "till", "--scope", "read", "--expires", "4s").output.strip()
        deadline_s = time.monotonic() + PATIENCE_S
        while _status(server.url, short) != 200:  # it is known within two seconds
            assert time.monotonic() < deadline_s
        gatelock("tokens", "revoke", "shop")
        while _status(server.url, token) != 401 or _status(server.url, short) != 401:
            assert time.monotonic() < deadline_s
        assert plain_http.get(f"{server.url}/livez").status_code == 200


def _status(url: str, token: str) -> int:
    return plain_http.get(f"{url}/v1/locks", headers={"authorization": f"Bearer {token}"}).status_code


@pytest.mark.parametrize("database", ["sqlite"])
def test_it_does_not_listen_to_others_before_there_is_a_token(
    engine: sa.Engine, tmp_path: Path, process: Gatelock, gatelock: Gatelock
) -> None:
    everywhere = ".".join("0000") + ":0"
    around = {**os.environ, "GATELOCK_ANALYZER__HTTP": everywhere}
    told = process("serve", env=around)
    assert told.returncode == 2
    assert (
        f"will not listen on {everywhere}, where others could read the locks" in told.stderr.splitlines()[-1]
    )
    gatelock("tokens", "create", "shop", "--scope", "read")
    with serving(tmp_path, GATELOCK_ANALYZER__HTTP=everywhere) as server:
        assert server.url
        assert "go over the network in the clear" in str(server.said())


@pytest.mark.parametrize("database", ["sqlite"])
def test_with_a_certificate_it_speaks_tls(engine: sa.Engine, tmp_path: Path) -> None:
    identity = certificate(tmp_path)
    around = {
        "GATELOCK_ANALYZER__HTTP_CERT": str(identity.certificate),
        "GATELOCK_ANALYZER__HTTP_KEY": str(identity.key),
    }
    with serving(tmp_path, **around) as server:
        assert server.url.startswith("https://")
        assert HttpSource(server.url, ca=identity.certificate).fetch(None).snapshot


@pytest.mark.parametrize("database", ["sqlite"])
def test_what_cannot_be_served_is_2(engine: sa.Engine, tmp_path: Path, process: Gatelock) -> None:
    told = process("serve", env={**os.environ, "GATELOCK_ANALYZER__HTTP": "off"})
    assert (told.returncode, told.stderr) == (
        2,
        'gatelock.toml: [analyzer] http is "off": there is nothing to serve\n',
    )
    (tmp_path / "no.pem").write_text("nothing")
    around = {"GATELOCK_ANALYZER__HTTP_CERT": "no.pem", "GATELOCK_ANALYZER__HTTP_KEY": "no.pem"}
    told = process("serve", env={**os.environ, **around})
    assert told.returncode == 2
    assert "no.pem and no.pem are no certificate and its key" in told.stderr.splitlines()[-1]
    told = process("serve", env={**os.environ, "GATELOCK_ANALYZER__HTTP_KEY": "no.pem"})
    assert told.returncode == 2
    assert "http_key: is of no use without http_cert" in told.stderr
