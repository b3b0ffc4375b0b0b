"""`gatelock explain`: why a caller is locked, or not."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from analyzer.faces.explanation import next_commands
from gatekeeper.model import Lock

Gatelock = Callable[..., Any]

CONFIGURATION = """
[[sources]]
name = "web"
file = "access.jsonl"
groupings = ["caller+resource"]
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
user = "login"
address = "ip"
tenant = "org"
resource = { path = "path", routes = ["/a", "/b"], else = "other" }
[[policies]]
name = "daily"
limit = 50
window = { per = "day" }
candidate = { limit = 20 }
[[policies]]
name = "of-tenant"
per = "tenant"
limit = 80
window = { per = "day" }
[[policies]]
name = "flood"
kind = "surge"
limit = 30
window = { rolling = "60s" }
mode = "shadow"
"""
REASON = ("--reason", "TICKET-7")


@pytest.fixture(autouse=True)
def counted(gatelock: Gatelock, tmp_path: Path) -> None:
    """Counts 60 requests of acme, 25 of bob, 85 of zed and carol, of one tenant, and one of an address."""
    now_s = int(time.time())
    rows: list[dict[str, Any]] = [{"key": "acme", "path": "/a" if n % 3 else "/b"} for n in range(60)]
    rows += [{"key": "bob"}] * 25
    rows += [{"key": "zed", "org": "corp"}] * 25 + [{"key": "carol", "org": "corp"}] * 60
    rows += [{"ip": "203.0.113.9"}, {"ip": "2001:db8::7"}]
    rows = [{"ts": now_s - 1, "path": "/a"} | row for row in rows]
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION)
    (tmp_path / "access.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert gatelock("upkeep", "db", "upgrade").exit_code == 0
    assert gatelock("policies", "apply").exit_code == 0
    assert gatelock("upkeep", "import", "access.jsonl", "--source", "web").exit_code == 0


def explained(gatelock: Gatelock, caller: str, *options: str) -> dict[str, Any]:
    result = gatelock("explain", caller, "--json", *options)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_locked_caller_is_explained_by_its_lock_and_its_use(gatelock: Gatelock) -> None:
    shown = gatelock("explain", "api_key:acme").stdout
    assert shown.splitlines()[0] == "api_key:acme is locked"
    assert "daily, deny 429, " in shown
    assert "50 requests per day (UTC), 60 counted" in shown
    assert "to admit it now: gatelock locks unlock api_key:acme --reason WHY" in shown
    assert "to allow it more: gatelock callers limit api_key:acme --policy daily --amount AMOUNT" in shown
    found = explained(gatelock, "api_key:acme")
    uses = {use["policy"]: (use["used"], use["limit"], use["mode"]) for use in found["policies"]}
    assert uses == {
        "daily": (60, 50, "enforce"),
        "daily/candidate": (60, 20, "shadow"),
        "flood": (60, 30, "shadow"),
    }
    assert found["resources"] == [
        {"resource": "/a", "requests": 40, "denied": 0}, {"resource": "/b", "requests": 20, "denied": 0}
    ]  # fmt: skip
    assert {(one["policy"], one["action"], one["plan"]) for one in found["history"]} == {
        ("daily", "deny", 1), ("daily/candidate", "shadow", 1), ("flood", "shadow", 1)
    }  # fmt: skip


def test_a_caller_that_is_not_locked_learns_how_far_it_is(gatelock: Gatelock) -> None:
    assert gatelock("explain", "api_key:bob").stdout.startswith("api_key:bob is not locked\n")
    found = explained(gatelock, "api_key:bob")
    assert [lock["policy"] for lock in found["locks"]] == ["daily/candidate"]
    daily = next(use for use in found["policies"] if use["policy"] == "daily")
    assert (daily["used"], daily["limit"], daily["exempt"]) == (25, 50, False)
    assert daily["reached"] is None or daily["reached"] > "2026"


def test_a_lock_of_the_tenant_is_found(gatelock: Gatelock) -> None:
    shown = gatelock("explain", "api_key:zed").stdout
    assert shown.startswith("api_key:zed (tenant corp) is locked\n")
    assert "of-tenant, deny 429" in shown
    assert "on tenant corp: 80 requests per day (UTC), 85 counted" in shown


def test_locks_of_an_address_its_network_and_everyone_are_found(gatelock: Gatelock) -> None:
    client = "address:203.0.113.9"
    assert gatelock("explain", client).stdout.startswith(f"{client} is not locked\n")
    for options in (("--address", "203.0.113.0/24"), ("--address", "203.0.113.9"), ("--everyone",)):
        assert gatelock("locks", "lock", *options, "--for", "1h", *REASON).exit_code == 0
    found = explained(gatelock, client)
    assert sorted(lock["scope"] for lock in found["locks"]) == ["address", "everyone", "range"]
    assert gatelock("explain", client).stdout.startswith(f"{client} is locked\n")


def test_a_cleared_lock_says_who_holds_it_off(gatelock: Gatelock) -> None:
    assert gatelock("locks", "unlock", "api_key:acme", *REASON).exit_code == 0
    shown = gatelock("explain", "api_key:acme").stdout
    assert shown.startswith("api_key:acme is not locked\n")
    assert "daily sets no lock before " in shown
    [held] = explained(gatelock, "api_key:acme")["held_off"]
    assert (held["policy"], held["reason"]) == ("daily", "TICKET-7")


def test_the_locks_of_a_time_are_found(gatelock: Gatelock) -> None:
    began = explained(gatelock, "api_key:acme")["locks"][0]["began"]
    gatelock("locks", "unlock", "api_key:acme", "--policy", "daily", *REASON)
    then = explained(gatelock, "api_key:acme", "--at", f"{began[:19]}Z")["history"]
    assert all(one["began"] <= f"{began[:19]}Z" for one in then)
    assert explained(gatelock, "api_key:acme", "--at", "2020-01-01")["history"] == []


def test_a_time_is_as_exact_as_it_is_written(gatelock: Gatelock) -> None:
    """A customer who was locked at 14:03 was so at any second of that minute."""
    [lock] = explained(gatelock, "api_key:acme")["locks"][:1]
    began = datetime.fromisoformat(lock["began"])
    for text in (f"{began:%Y-%m-%dT%H:%MZ}", f"{began:%Y-%m-%d}", f"{began:%Y-%m-%dT%H:%M:%SZ}"):
        found = explained(gatelock, "api_key:acme", "--at", text)["history"]
        assert "daily" in {one["policy"] for one in found}, text
    before = began - timedelta(minutes=1)
    shown = gatelock("explain", "api_key:acme", "--at", f"{before:%Y-%m-%dT%H:%MZ}").stdout
    assert shown.splitlines()[0] == f"no lock at {before:%Y-%m-%dT%H:%MZ}"
    assert "the one after: " in shown
    assert "the one before" not in shown
    assert gatelock("locks", "unlock", "api_key:acme", *REASON).exit_code == 0
    later = f"{datetime.now(UTC) + timedelta(minutes=2):%Y-%m-%dT%H:%MZ}"
    assert "the one before: " in gatelock("explain", "api_key:acme", "--at", later).stdout


def test_an_exempt_caller_is_shown_as_such(gatelock: Gatelock) -> None:
    assert gatelock("callers", "allow", "api_key:acme", *REASON).exit_code == 0
    assert "exempt" in gatelock("explain", "api_key:acme").stdout
    assert all(use["exempt"] for use in explained(gatelock, "api_key:acme")["policies"])


def test_a_name_without_its_kind_is_the_only_one_that_was_counted(gatelock: Gatelock) -> None:
    assert gatelock("explain", "acme").stdout.startswith("api_key:acme is locked\n")
    assert gatelock("explain", "203.0.113.9").stdout.startswith("address:203.0.113.9 is not locked\n")
    for written in ("2001:db8::7", "address:2001:DB8::7"):  # counted by its first 64 bits
        found = gatelock("explain", written)
        assert found.stdout.startswith("address:2001:db8::/64 is not locked\n"), found.output
    refused = gatelock("explain", "acne")
    assert (refused.exit_code, refused.output) == (
        2,
        "acne: write the kind of name in front, as in api_key:acne; nothing was ever counted for acne; "
        "did you mean api_key:acme?\n",
    )


@pytest.mark.parametrize(
    "command",
    [
        "usage --caller acme", "locks list --caller acme", "callers list acme",
        "locks list --notices --caller acme",
        "callers limit acme --amount 90 --policy daily --reason WHY",
        "callers allow acme --reason WHY", "locks unlock acme --reason WHY",
        "callers set acme --plan pro", "callers limit acme --amount +9 --policy daily --for 1d --reason WHY",
    ],
)  # fmt: skip
def test_each_command_finds_it(gatelock: Gatelock, command: str) -> None:
    found = gatelock(*command.split())
    assert (found.exit_code, "write the kind" in found.output) == (0, False), found.output
    assert "api_key:acme" in found.stdout or command.startswith("locks list --notices")


def test_of_several_kinds_one_must_be_chosen(gatelock: Gatelock, tmp_path: Path) -> None:
    row = {"ts": int(time.time()) - 1, "login": "acme", "path": "/a"}
    (tmp_path / "more.jsonl").write_text(f"{json.dumps(row)}\n")
    imported = gatelock("upkeep", "import", "more.jsonl", "--source", "web")
    assert imported.exit_code == 0, imported.output
    refused = gatelock("explain", "acme")
    assert refused.exit_code == 2
    assert refused.stderr == "acme: write which one: api_key:acme or user:acme\n"


def test_a_name_that_was_never_counted_is_a_wrong_one(gatelock: Gatelock) -> None:
    found = gatelock("explain", "api_key:acne")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr == "nothing was ever counted for api_key:acne; did you mean api_key:acme?\n"
    found = gatelock("explain", "api_key:acne", "--json")
    fields = json.loads(found.stdout)
    assert (found.exit_code, fields["counted"], fields["near"]) == (1, False, ["api_key:acme"])
    assert explained(gatelock, "api_key:acme")["counted"] is True
    found = gatelock("locks", "list", "--notices", "--caller", "api_key:acne")
    assert (found.exit_code, found.stdout) == (1, "")
    assert gatelock("callers", "set", "api_key:acne", "--plan", "pro").exit_code == 0
    found = gatelock("explain", "api_key:acne")  # an operator knows it
    assert (found.exit_code, "api_key:acne (plan pro) is not locked" in found.stdout) == (0, True)


def test_a_lock_is_not_called_unmet_where_no_gate_reports(gatelock: Gatelock) -> None:
    found = gatelock("explain", "api_key:acme").stdout
    sentence = "not reported by any gate: no gate reports, so that it is not known which locks are met"
    assert f"the lock by daily: {sentence}" in found
    assert "report_status=True" in gatelock("doctor").output


def test_each_command_that_it_prints_succeeds_as_printed(gatelock: Gatelock) -> None:
    """With several policies, of which each command names its own."""
    printed = [
        shlex.split(command.replace("AMOUNT", "90"))
        for command in re.findall(
            r"^  to [a-z ]+: gatelock (.*)$", gatelock("explain", "acme").stdout, re.MULTILINE
        )
    ]
    assert [words[:2] for words in printed] == [["locks", "unlock"], ["callers", "limit"]]
    for words in printed:
        done = gatelock(*words)
        assert done.exit_code == 0, done.output
    assert gatelock("explain", "acme").stdout.startswith("api_key:acme is not locked\n")


def test_each_lock_names_the_command_that_clears_it_and_no_more() -> None:
    now = datetime.now(UTC)

    def clearing(scope: str, key: str, resource: str = "") -> str:
        lock = Lock(scope, key, "daily", now, now, resource)
        return next(iter(next_commands("api_key:a b", [lock], []))).partition("locks unlock ")[2]

    assert clearing("caller", "api_key:a b") == "'api_key:a b' --reason WHY"
    assert clearing("caller", "api_key:a b", "/v1") == "'api_key:a b' --resource /v1 --reason WHY"
    assert clearing("address", "192.0.2.7") == "--address 192.0.2.7 --reason WHY"
    assert clearing("range", "192.0.2.0/24") == "--address 192.0.2.0/24 --reason WHY"
    assert clearing("tenant", "acme") == "--tenant acme --reason WHY"
    assert clearing("everyone", "") == "--everyone --reason WHY"
