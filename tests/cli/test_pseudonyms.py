"""`[privacy] pseudonyms`: callers are counted by digests, and commands take their names in clear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatekeeper.identity import NameDigest

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
