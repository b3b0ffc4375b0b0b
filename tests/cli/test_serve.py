"""`gatelock serve`: the lock feed in a separate process, without sources."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.engine import writing
from analyzer.kernel.tables.schema import tokens
from gatekeeper import Gate
from gatekeeper.model import Lock, Set
from gatekeeper.sources.http import HttpSource
from tests.support import plain_http
from tests.support.gatelock_processes import GatelockProcess
from tests.support.serving import certificate
from tests.support.waiting import wait_for, wait_until

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

DEADLINE_S = 30.0


class Serving:
    """A process of `gatelock serve` or `run`, and its log."""

    def __init__(self, folder: Path, command: str, **variables: str) -> None:
        self.log = folder / "serve.log"
        with self.log.open("wb") as stream:
            self.child = GatelockProcess([command], stderr=stream, env={**os.environ, **variables})

    def logged(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def url(self) -> str:
        def messages() -> list[str]:
            assert self.child.poll() is None, self.log.read_text()
            return [event["message"] for event in self.logged() if "listening" in event["message"]]

        return wait_for(messages, DEADLINE_S)[0].split()[-1]


@contextmanager
def serving(folder: Path, command: str = "serve", **variables: str) -> Iterator[Serving]:
    server = Serving(folder, command, **variables)
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


def test_a_gate_sees_a_lock_of_the_database_over_http(engine: sa.Engine, tmp_path: Path) -> None:
    with serving(tmp_path) as server, Gate(server.url) as gate:
        assert gate.ready(20)
        assert gate.allow("api_key:acme")
        lock(engine, "api_key:acme")
        wait_until(lambda: not gate.allow("api_key:acme"), DEADLINE_S)
        ready = plain_http.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()["problems"]) == (200, {})
        assert plain_http.get(f"{server.url}/livez").status_code == 200
        assert "gatelock_feed_version 1.0" in plain_http.get(f"{server.url}/metrics").text
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
        assert server.logged()[-1]["message"] == "stopped"


@pytest.mark.parametrize("database", ["sqlite"])
def test_the_analyzer_serves_locks_too(migrated_url: str, configure: Configure, tmp_path: Path) -> None:
    """From log lines to a denial over HTTP; a waiting poll does not delay the end of the analyzer."""
    log = tmp_path / "requests.log"
    log.touch()
    configure(f"""
        database = {{ url = "{migrated_url}" }}
        analyzer = {{ http = "127.0.0.1:0" }}
        [[sources]]
        file = "{log}"
        fields = {{ api_key = "key", time = {{ path = "ts", unit = "s" }} }}
        [[policies]]
        name = "monthly"
        limit = 3
        window = {{ per = "month" }}
    """)
    with serving(tmp_path, "run") as server, Gate(server.url) as gate:
        assert gate.ready(20)
        with log.open("a") as lines:
            for name in ("acme", "bob", "acme", "acme", "acme"):
                lines.write(f'{{"key": "{name}", "ts": {int(time.time())}}}\n')
        wait_until(lambda: not gate.allow("api_key:acme"), DEADLINE_S, server.log.read_text)
        assert gate.check("api_key:acme").policy == "monthly"
        assert gate.allow("api_key:bob")
        time.sleep(0.5)  # the gate is in its next long poll
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
        assert not gate.allow("api_key:acme")


def test_tokens_that_are_created_or_revoked_apply_to_a_running_server(
    engine: sa.Engine, tmp_path: Path, gatelock: Gatelock
) -> None:
    with serving(tmp_path) as server:
        assert HttpSource(server.url).fetch(None).snapshot
        token = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read").output.strip()
        # Servers read tokens every two seconds.
        wait_until(lambda: plain_http.get(f"{server.url}/v1/locks").status_code == 401, DEADLINE_S)
        assert HttpSource(server.url, token).fetch(None).snapshot
        create = ("upkeep", "tokens", "create", "till", "--scope", "read")
        short = gatelock(*create, "--expires", "1h").output.strip()
        wait_until(lambda: _status(server.url, short) == 200, DEADLINE_S)
        gatelock("upkeep", "tokens", "revoke", "shop")
        with writing(engine) as db:  # in place of an hour
            db.execute(sa.update(tokens).where(tokens.c.name == "till").values(until_ms=tokens.c.made_ms + 1))
        wait_until(lambda: (_status(server.url, token), _status(server.url, short)) == (401, 401), DEADLINE_S)
        assert plain_http.get(f"{server.url}/livez").status_code == 200


def _status(url: str, token: str) -> int:
    return plain_http.get(f"{url}/v1/locks", headers={"authorization": f"Bearer {token}"}).status_code


@pytest.mark.parametrize("database", ["sqlite"])
def test_without_a_token_the_server_listens_on_loopback_only(
    engine: sa.Engine, tmp_path: Path, gatelock: Gatelock, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = "0.0.0.0:0"
    with monkeypatch.context() as patch:
        patch.setenv("GATELOCK_ANALYZER__HTTP", everywhere)
        result = gatelock("serve")
    assert result.exit_code == 2
    assert (
        f"refusing to listen on {everywhere}, where other machines could read the locks"
        in result.stderr.splitlines()[-1]
    )
    gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
    with serving(tmp_path, GATELOCK_ANALYZER__HTTP=everywhere) as server:
        assert server.url
        assert "cross the network unencrypted" in str(server.logged())


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_server_with_a_certificate_uses_tls(engine: sa.Engine, tmp_path: Path) -> None:
    identity = certificate(tmp_path)
    variables = {
        "GATELOCK_ANALYZER__HTTP_CERT": str(identity.certificate),
        "GATELOCK_ANALYZER__HTTP_KEY": str(identity.key),
    }
    with serving(tmp_path, **variables) as server:
        assert server.url.startswith("https://")
        assert HttpSource(server.url, ca=identity.certificate).fetch(None).snapshot


@pytest.mark.parametrize("database", ["sqlite"])
def test_impossible_settings_exit_with_2(
    engine: sa.Engine, tmp_path: Path, gatelock: Gatelock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**variables: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(f"GATELOCK_ANALYZER__{name}", value)
            result = gatelock("serve")
        assert result.exit_code == 2
        return str(result.stderr)

    assert refused(HTTP="off") == (
        'gatelock.toml: [analyzer] http is "off": write the address to serve at, '
        'such as http = "127.0.0.1:8321"\n'
    )
    (tmp_path / "no.pem").write_text("nothing")
    assert "no.pem and no.pem" in refused(HTTP_CERT="no.pem", HTTP_KEY="no.pem").splitlines()[-1]
    assert "http_key: has no effect without http_cert" in refused(HTTP_KEY="no.pem")
