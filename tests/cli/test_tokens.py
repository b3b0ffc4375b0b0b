"""`gatelock upkeep tokens`: created, listed and revoked on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.tokens import stored_tokens
from tests.support.command_line import on_a_terminal
from tests.support.gate_reports import gate_status, report

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]


@pytest.fixture(autouse=True)
def configured(migrated_url: str, configure: Configure) -> None:
    configure(f'[database]\nurl = "{migrated_url}"\n')


def listed(gatelock: Gatelock) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gatelock("upkeep", "tokens", "list", "--json").output.splitlines()]


def test_a_token_is_printed_once_and_listed_without_it(gatelock: Gatelock) -> None:
    result = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read", "--reason", "the web shop")
    token = result.output.strip()
    assert (result.exit_code, token[:9]) == (0, "gatelock_")
    [row] = listed(gatelock)
    assert (row["name"], row["scope"], row["until"], row["state"]) == ("shop", "read", None, "good")
    assert token not in gatelock("upkeep", "tokens", "list").output
    event = json.loads(gatelock("upkeep", "events", "list", "--json").output)
    assert (event["act"], event["about"], event["why"]) == ("token created", "shop (read)", "the web shop")
    assert "@" in event["who"]


def test_a_created_and_a_revoked_token_are_json(gatelock: Gatelock) -> None:
    made = json.loads(gatelock("upkeep", "tokens", "create", "shop", "--scope", "read", "--json").stdout)
    assert (made["name"], made["scope"], made["token"][:9]) == ("shop", "read", "gatelock_")
    assert json.loads(gatelock("upkeep", "tokens", "revoke", "shop", "--json").stdout) == {"name": "shop"}
    gone = gatelock("upkeep", "tokens", "revoke", "shop", "--json")
    assert (gone.exit_code, gone.stdout) == (1, "")


def test_a_token_may_expire(gatelock: Gatelock) -> None:
    gatelock("upkeep", "tokens", "create", "shop", "--scope", "operate", "--expires", "1ms")
    gatelock("upkeep", "tokens", "create", "till", "--scope", "read", "--expires", "90d")
    assert [(row["name"], row["state"]) for row in listed(gatelock)] == [
        ("shop", "expired"),
        ("till", "good"),
    ]


def test_a_token_is_revoked(gatelock: Gatelock) -> None:
    gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
    assert gatelock("upkeep", "tokens", "revoke", "shop", "--reason", "it leaked").exit_code == 0
    again = gatelock("upkeep", "tokens", "revoke", "shop")
    assert (again.exit_code, again.stderr[:24]) == (1, "no token is named shop: ")
    assert gatelock("upkeep", "tokens", "list").output == "no token exists\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a shop", "--scope", "read"], "'a shop' is not a valid name"),
        (["shop", "--scope", "write"], "'write' is not a scope: use read, callers, view, operate, admin"),
        (["shop", "--scope", "read", "--expires", "soon"], "--expires soon: write a length such as 30m"),
        (["shop", "--scope", "read", "--expires", "0s"], "--expires 0s: write a length"),
        (
            ["shop", "--scope", "read", "--expires", "99999999d"],
            "--expires 99999999d: write a length such as 30m, 12h or 7d; at most 36,600d",
        ),
    ],
)
@pytest.mark.parametrize("database", ["sqlite"])
def test_impossible_arguments_exit_with_2(gatelock: Gatelock, arguments: list[str], sentence: str) -> None:
    result = gatelock("upkeep", "tokens", "create", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert listed(gatelock) == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_name_that_exists_exits_with_2(gatelock: Gatelock) -> None:
    gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
    result = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
    assert result.exit_code == 2
    assert result.stderr.startswith("there is a token named shop")


def test_the_first_token_names_the_gates_that_will_be_refused(gatelock: Gatelock, migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    report(engine, *(gate_status(f"web-{n}:1:a") for n in range(7)))
    asked = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read")
    assert asked.exit_code == 2
    assert asked.stderr.startswith(
        "7 gates without a token will be refused over HTTP: shop web-0:1:a, shop web-1:1:a"
    )
    assert "and 2 more; give them the token in time, and confirm with --yes" in asked.stderr
    assert listed(gatelock) == []
    assert gatelock("upkeep", "tokens", "create", "shop", "--scope", "read", "--yes").exit_code == 0
    assert gatelock("upkeep", "tokens", "create", "till", "--scope", "read").exit_code == 0, (
        "they are refused already"
    )
    for name in ("shop", "till"):
        gatelock("upkeep", "tokens", "revoke", name)
    known = stored_tokens(engine)
    assert (known.tokens, known.is_open) == ((), False), "revoking the last one opens nothing"
    engine.dispose()


@pytest.mark.parametrize(("answer", "exit_code", "tokens"), [("n", 2, []), ("y", 0, ["shop"])])
def test_on_a_terminal_the_first_token_is_created_when_the_operator_agrees(
    gatelock: Gatelock, migrated_url: str, answer: str, exit_code: int, tokens: list[str]
) -> None:
    engine = open_engine(migrated_url)
    report(engine, gate_status("web-1:1:a"))
    engine.dispose()
    create = ("upkeep", "tokens", "create", "shop", "--scope", "read")
    code, printed, shown = on_a_terminal(*create, answer=answer)
    assert code == exit_code
    assert "1 gate without a token will be refused over HTTP: shop web-1:1:a" in shown
    assert "Create the first token? [y/N]" in shown
    assert [row["name"] for row in listed(gatelock)] == tokens
    assert printed.startswith("gatelock_") == bool(tokens)
    assert len(printed.splitlines()) == len(tokens), "nothing but the token, so that a script can take it"
