"""`gatelock locks lock | extend | clear`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Gatelock = Callable[..., Any]

CONFIGURATION = """
[[sources]]
name = "web"
file = "access.jsonl"
fields = { time = { path = "ts", unit = "s" }, api_key = "key" }
"""
REASON = ("--reason", "INC-311")
OF_ANN = ("api_key:ann",)


@pytest.fixture(autouse=True)
def database(gatelock: Gatelock, tmp_path: Path) -> None:
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    assert gatelock("upkeep", "db", "upgrade").exit_code == 0


def in_force(gatelock: Gatelock) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in gatelock("locks", "list", "--json").stdout.splitlines()]
    return sorted(found, key=lambda lock: (str(lock["scope"]), str(lock["key"])))


def test_a_lock_is_set_extended_and_cleared(gatelock: Gatelock) -> None:
    done = gatelock("locks", "lock", *OF_ANN, "--for", "1h", *REASON)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("set: caller api_key:ann, deny 429 by :manual until ")
    [lock] = in_force(gatelock)
    assert (lock["policy"], lock["kind"], lock["detail"]) == (":manual", "manual", "INC-311")
    done = gatelock("locks", "extend", *OF_ANN, "--for", "3h", "--reason", "still there")
    assert done.output.startswith("extended: ")
    [longer] = in_force(gatelock)
    assert longer["until"] > lock["until"]
    assert longer["detail"] == "INC-311; still there"
    assert gatelock("locks", "unlock", *OF_ANN, *REASON).output.startswith("cleared: caller api_key:ann")
    assert in_force(gatelock) == []
    assert gatelock("locks", "unlock", *OF_ANN, *REASON).exit_code == 1
    assert gatelock("locks", "extend", *OF_ANN, "--for", "3h", *REASON).exit_code == 1
    events = [json.loads(line) for line in gatelock("upkeep", "events", "list", "--json").stdout.splitlines()]
    acts = {event["act"] for event in events}
    assert {"locks lock", "locks extend", "locks unlock"} <= acts
    assert {event["why"] for event in events if event["act"] == "locks lock"} == {"INC-311"}


@pytest.mark.parametrize(
    ("options", "scope", "key", "resource"),
    [
        (("--tenant", "acme"), "tenant", "acme", None),
        (("--address", "192.0.2.7"), "address", "192.0.2.7", None),
        (("--address", "203.0.113.0/24"), "range", "203.0.113.0/24", None),
        (("--resource", "/v1/export"), "resource", "/v1/export", None),
        ((*OF_ANN, "--resource", "/v1/export"), "caller", "api_key:ann", "/v1/export"),
        (("--everyone",), "everyone", "", None),
    ],
)
def test_every_scope_may_be_locked(
    gatelock: Gatelock, options: tuple[str, ...], scope: str, key: str, resource: str | None
) -> None:
    assert gatelock("locks", "lock", *options, "--for", "1h", *REASON).exit_code == 0
    [lock] = in_force(gatelock)
    assert (lock["scope"], lock["key"], lock.get("resource")) == (scope, key, resource)
    assert gatelock("locks", "unlock", *options, *REASON).exit_code == 0
    assert in_force(gatelock) == []


def test_several_are_locked_by_a_file(gatelock: Gatelock, tmp_path: Path) -> None:
    rows = ["caller,api_key:ann,/v1/export", "range,203.0.113.0/24,", "address,2001:db8::1,"]
    file = tmp_path / "block.csv"
    file.write_text("scope,key,resource\n" + "".join(f"{row}\n" for row in rows))
    options = ("locks", "lock", "--file", str(file), "--for", "1h", *REASON)
    tried = gatelock(*options, "--dry-run")
    assert len(tried.output.splitlines()) == 4
    assert "nothing was changed" in tried.output
    assert in_force(gatelock) == []
    rate = ("--action", "slow", "--rate", "5/s")
    assert gatelock(*options, *rate, "--json").exit_code == 0
    assert {(lock["scope"], lock["action"]) for lock in in_force(gatelock)} == {
        ("caller", "slow"), ("range", "slow"), ("address", "slow")
    }  # fmt: skip
    assert gatelock("locks", "unlock", "--file", str(file), *REASON).exit_code == 0
    assert in_force(gatelock) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("lock", "--for", "1h"), "name one of CALLER, --tenant"),
        (("lock", *OF_ANN, "--tenant", "acme", "--for", "1h"), "name one of CALLER, --tenant"),
        (("lock", "ann", "--for", "1h"), "write the kind of name in front"),
        (("lock", "--address", "300.1.1.1", "--for", "1h"), "write 192.0.2.7, 203.0.113.0/24"),
        (("lock", *OF_ANN, "--for", "soon"), "write a length such as 30m"),
        (("lock", *OF_ANN, "--for", "1h", "--action", "drop"), "must be one of deny, slow, tag"),
        (("lock", *OF_ANN, "--for", "1h", "--action", "slow"), "goes with the action slow, and only with it"),
        (("lock", *OF_ANN, "--for", "1h", "--action", "slow", "--rate", "many"), "is not a rate"),
        (("lock", "--file", "none.csv", "--for", "1h"), "No such file"),
        (("unlock", *OF_ANN, "--hold-off", "never"), "write a length such as 30m"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    gatelock: Gatelock, arguments: tuple[str, ...], sentence: str
) -> None:
    refused = gatelock("locks", *arguments, *REASON)
    assert refused.exit_code == 2
    assert sentence in refused.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("key\nann\n", "its first line must be scope,key"),
        ("scope,key\ntenant,acme\nclient,ann\n", "block.csv:3: client is not a scope"),
        ("scope,key\ncaller,ann\n", "write the kind of name in front"),
        ("scope,key\ncaller,\n", "block.csv:2: the key of a caller is empty"),
        ("scope,key\neveryone,ann\n", "the key of everyone is not empty"),
        ("scope,key\nrange,203.0.113.1/24\n", "block.csv:2: 203.0.113.1/24: write"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_locked(
    gatelock: Gatelock, tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "block.csv"
    file.write_text(text)
    refused = gatelock("locks", "lock", "--file", str(file), "--for", "1h", *REASON)
    assert refused.exit_code == 2
    assert sentence in refused.output
    assert in_force(gatelock) == []
