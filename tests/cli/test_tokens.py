"""tokens: made, listed and revoked from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]


@pytest.fixture(autouse=True)
def configured(migrated_url: str, configure: Configure) -> None:
    configure(f'[database]\nurl = "{migrated_url}"\n')


def listed(gatelock: Gatelock) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gatelock("tokens", "list", "--json").output.splitlines()]


def test_a_token_is_printed_once_and_listed_without_it(gatelock: Gatelock) -> None:
    told = gatelock("tokens", "create", "shop", "--scope", "read", "--reason", "the web shop")
    token = told.output.strip()
    assert (told.exit_code, token[:9]) == (0, "gatelock_")
    [row] = listed(gatelock)
    assert (row["name"], row["scope"], row["until"], row["state"]) == ("shop", "read", None, "good")
    assert token not in gatelock("tokens", "list").output
    event = json.loads(gatelock("events", "list", "--json").output)
    assert (event["act"], event["about"], event["why"]) == ("token created", "shop (read)", "the web shop")
    assert "@" in event["who"]


def test_a_token_may_have_an_end(gatelock: Gatelock) -> None:
    gatelock("tokens", "create", "shop", "--scope", "operate", "--expires", "1ms")
    gatelock("tokens", "create", "till", "--scope", "read", "--expires", "90d")
    assert [(row["name"], row["state"]) for row in listed(gatelock)] == [
        ("shop", "expired"),
        ("till", "good"),
    ]


def test_a_token_is_revoked(gatelock: Gatelock) -> None:
    gatelock("tokens", "create", "shop", "--scope", "read")
    assert gatelock("tokens", "revoke", "shop", "--reason", "it leaked").exit_code == 0
    again = gatelock("tokens", "revoke", "shop")
    assert (again.exit_code, again.stderr[:28]) == (1, "there is no token named shop")
    assert gatelock("tokens", "list").output == "there are no tokens\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a shop", "--scope", "read"], "'a shop' is no name"),
        (["shop", "--scope", "write"], "'write' is no scope: use read, operate, admin"),
        (["shop", "--scope", "read", "--expires", "soon"], "--expires soon: write how long, as in 30m"),
        (["shop", "--scope", "read", "--expires", "0s"], "--expires 0s: write how long"),
        (
            ["shop", "--scope", "read", "--expires", "99999999d"],
            "--expires 99999999d: write how long, as in 30m, 12h, 7d; at most 36,600d",
        ),
    ],
)
@pytest.mark.parametrize("database", ["sqlite"])
def test_what_cannot_be_is_2(gatelock: Gatelock, arguments: list[str], sentence: str) -> None:
    told = gatelock("tokens", "create", *arguments)
    assert told.exit_code == 2
    assert told.stderr.startswith(sentence)
    assert listed(gatelock) == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_name_that_is_taken_is_2(gatelock: Gatelock) -> None:
    gatelock("tokens", "create", "shop", "--scope", "read")
    told = gatelock("tokens", "create", "shop", "--scope", "read")
    assert told.exit_code == 2
    assert told.stderr.startswith("there is a token named shop")
