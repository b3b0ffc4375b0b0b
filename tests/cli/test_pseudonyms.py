"""`[privacy] pseudonyms`: callers are counted by digests, and commands take their names in clear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analyzer.kernel.database.engine import open_engine
from gatekeeper.clock import SystemClock
from gatekeeper.identity import NameDigest
from gatekeeper.requestlog.wsgi import RequestLog
from tests.cli.test_run import Analyzer, wait_for
from tests.store.database.test_forgotten_names import all_bytes
from tests.support import plain_http

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIEnvironment as Environ

Gatelock = Callable[..., Any]
SECRET = "0123456789abcdef"
ACME = f"api_key:{NameDigest(SECRET).of('acme')}"
CONFIGURATION = """
[privacy]
pseudonyms = true
[[sources]]
name = "web"
file = "access.jsonl"
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
address = "ip"
[[policies]]
name = "daily"
limit = 5
window = { per = "day" }
[[overrides]]
caller = "api_key:bob"
policy = "daily"
limit = 50
reason = "pays more"
"""


@pytest.fixture
def counted(gatelock: Gatelock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts ten requests of acme, ten of bob, one of an address."""
    monkeypatch.setenv("GATELOCK_ANALYZER__DIGEST_SECRET", SECRET)
    now_s = int(time.time())
    rows = [{"key": name} for name in ("acme", "bob") for _ in range(10)] + [{"ip": "203.0.113.9"}]
    lines = [json.dumps({"ts": now_s} | row) for row in rows]
    (tmp_path / "access.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    for command in (
        ("upkeep", "db", "upgrade"),
        ("policies", "apply"),
        ("upkeep", "import", "access.jsonl", "--source", "web"),
    ):
        assert gatelock(*command).exit_code == 0


@pytest.mark.usefixtures("counted")
def test_callers_are_counted_by_digests_and_explained_by_their_names(
    gatelock: Gatelock, tmp_path: Path
) -> None:
    for name in ("api_key:acme", ACME):
        shown = gatelock("explain", name).output
        assert shown.startswith(f"{ACME} is locked"), shown
    assert "is not locked" in gatelock("explain", "api_key:bob").output, "the override names bob in clear"
    shown = gatelock("callers", "set", "api_key:acme", "--plan", "pro", "--reason", "paid").output
    assert ACME in shown
    assert "address:203.0.113.9" in gatelock("usage").output
    database = b"".join(path.read_bytes() for path in tmp_path.glob("gatelock.db*"))
    assert ACME.encode() in database
    assert b"acme" not in database


@pytest.mark.usefixtures("counted")
def test_locks_and_limits_take_names_in_clear(gatelock: Gatelock, tmp_path: Path) -> None:
    assert ACME in gatelock("locks", "list", "--caller", "api_key:acme").stdout
    because = ("--reason", "INC-311")
    for act in ("extend", "unlock"):
        of = ("--for", "2d") if act == "extend" else ()
        result = gatelock("locks", act, "api_key:acme", *of, *because)
        assert result.exit_code == 0, result.output
        assert ACME in result.output
    (tmp_path / "several.csv").write_text("scope,key\ncaller,api_key:acme\n")
    for act in (
        ("locks", "lock", "--file", "several.csv", "--for", "1h"),
        ("callers", "limit", "api_key:acme", "--amount", "7"),
        ("callers", "allow", "api_key:acme"),
    ):
        result = gatelock(*act, *because)
        assert (result.exit_code, ACME in result.output) == (0, True), result.output
    (tmp_path / "facts.csv").write_text("caller,plan\napi_key:acme,pro\n")
    assert gatelock("callers", "set", "--file", "facts.csv").exit_code == 0
    assert f"{ACME}: plan pro" in gatelock("callers", "list", "api_key:acme").output
    database = b"".join(path.read_bytes() for path in tmp_path.glob("gatelock.db*"))
    assert b"acme" not in database


def test_pseudonyms_need_a_secret(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "access.jsonl").touch()
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    result = gatelock("check")
    assert result.exit_code != 0
    assert "[privacy] pseudonyms: needs a secret" in result.output


FOLLOWED = """
[database]
url = "{database}"
[privacy]
pseudonyms = true
[analyzer]
http = "127.0.0.1:0"
[[sources]]
name = "shop"
file = "requests.log"
[sources.fields]
time = {{ path = "ts", unit = "us" }}
api_key = "caller.api_key"
[[policies]]
name = "daily"
limit = 3
window = {{ per = "day" }}
"""
NAMES = ("acme", "globex")
HOUR_NS = 3_600 * 10**9


class EarlierClock(SystemClock):
    """The system's clock, hours ago."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._ahead_ns = hours * HOUR_NS

    def wall_ns(self) -> int:
        return super().wall_ns() - self._ahead_ns


def shop(_environ: Environ, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [])
    return [b"sold"]


def write_requests(log: Path, hours_ago: int) -> None:
    """Has an application serve requests of each name, which it logs in clear."""
    app = RequestLog(shop, to=log, clock=EarlierClock(hours_ago))
    for name in NAMES * 5:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_API_KEY": name}
        app(environ, lambda _status, _headers: None).close()  # type: ignore[attr-defined] - WSGI's own type has no close
    app.close()


def test_from_an_application_to_the_dump_no_name_is_in_anything_that_gatelock_writes(
    gatelock: Gatelock, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the names in records that cannot be read: in samples, in the log, in what an import says."""
    monkeypatch.setenv("GATELOCK_ANALYZER__DIGEST_SECRET", SECRET)
    (tmp_path / "gatelock.toml").write_text(FOLLOWED.format(database=database_url))
    requests = tmp_path / "requests.log"
    for hours_ago in (24, 0):
        write_requests(requests, hours_ago)
    unreadable = b'{"id": "1", "ts": "yesterday", "caller": {"api_key": "acme"}}\nfor globex\n'
    with requests.open("ab") as file:
        file.write(unreadable)
    assert b"acme" in requests.read_bytes()
    (tmp_path / "late.log").write_bytes(requests.read_bytes().splitlines(keepends=True)[0] + unreadable)
    analyzer = Analyzer(tmp_path / "analyzer.log")
    try:
        wait_for(lambda: analyzer.metric("gatelock_records_total") == 22)
        wait_for(lambda: "records were rejected" in analyzer.log.read_text())
        metrics = plain_http.get(f"{analyzer.url()}/metrics").text
        assert analyzer.stop() == 0
    finally:
        analyzer.child.kill()
        analyzer.child.wait()
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    because = ("--reason", "INC-311")
    shown = [
        gatelock(*command).output
        for command in (
            ("upkeep", "import", "late.log", "--source", "shop"),
            ("billing", "days", "close", yesterday, "--yes", *because),
            ("billing", "days", "correct", yesterday, "--caller", "api_key:acme", "--amount", "-1", *because),
            ("billing", "report", "day", yesterday),
            ("billing", "report", "corrections", "today"),
            ("billing", "audit", "--day", yesterday),
            ("usage",),
            ("locks", "list"),
            ("upkeep", "rejects", "list", "--json"),
            ("upkeep", "events", "list"),
            ("explain", ACME),
            ("doctor",),
        )
    ]
    digests = [f"api_key:{NameDigest(SECRET).of(name)}" for name in NAMES]
    report = shown[3]
    assert all(digest in report for digest in digests), report
    assert "(withheld)" in shown[8]
    engine = open_engine(database_url)
    written = all_bytes(engine)
    assert all(digest.encode() in written for digest in digests)
    everything = [*shown, metrics, analyzer.log.read_text(), written.decode(errors="replace")]
    for name in NAMES:
        for text in everything:
            assert name not in text
            assert name.encode().hex() not in text
