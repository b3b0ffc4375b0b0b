"""docs/policy-examples.md: each policy alone, from raw records to the request that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from analyzer.callers.caller_changes import set_callers
from analyzer.judging.caller_limits import Profile
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql.raised_notices import raised_notices
from tests.scenarios.conftest import OpenWorld
from tests.support.whole_loop import World

PAGE = (Path(__file__).parents[2] / "docs" / "policy-examples.md").read_text()
SOURCE, *BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
NAMES = [re.findall(r'^name\s*= "(.*)"', block, re.MULTILINE)[0] for block in BLOCKS]
KEY, IP = "api_key:acme", "192.0.2.7"
BY_KEY: Mapping[str, str] = {"caller": KEY}
BY_ADDRESS: Mapping[str, str] = {"caller": KEY, "address": IP}
ON_TEAM: Mapping[str, str] = {"caller": KEY, "tenant": "north"}


class Example(NamedTuple):
    """The records after which a policy refuses, and not before the last of them.

    Attributes:
        count: Of records.
        fields: Theirs; {n} is the number of the record.
        asked: The request that is refused then.
        refused_by: The name of the lock's policy, where it is not that of the example.
        profiles: Facts about callers and tenants.
        between_s: Between two records; then it is not known which of them is the last.
        wait_s: From the last one until the gate is asked.
        before: Records of others, which refuse nothing.
    """

    count: int
    fields: Mapping[str, Any]
    asked: Mapping[str, str]
    refused_by: str = ""
    profiles: Mapping[str, Profile] = {}
    between_s: float = 0.0
    wait_s: float = 1.0
    before: tuple[int, Mapping[str, Any]] = (0, {})


def route(path: str, asked: Mapping[str, str] = BY_KEY) -> Mapping[str, str]:
    return {**asked, "resource": path}


EXAMPLES: Mapping[str, Example] = {
    "consumer": Example(5, {}, BY_KEY, refused_by="consumer/minute"),
    "by-address": Example(5, {"key": "k{n}"}, BY_ADDRESS),
    "download": Example(10, {"bytes": 1 << 20}, BY_KEY),
    "orders": Example(
        3,
        {"method": "POST", "path": "/v1/orders"},
        route("/v1/orders"),
        before=(9, {"method": "GET", "path": "/v1/orders"}),
    ),
    "routes": Example(
        2, {"path": "/v1/export"}, route("/v1/export"), before=(30, {"path": "/health"})
    ),
    "service": Example(20, {"key": "k{n}", "path": "/v1/a"}, route("/v1/a", {"caller": "api_key:k0"})),
    "probing": Example(
        10, {"path": "/{n}", "status": 404}, BY_ADDRESS, before=(30, {"path": "/dead", "status": 404})
    ),
    "guessing": Example(6, {"method": "POST", "status": 401}, BY_ADDRESS, before=(30, {"method": "POST"})),
    "sensitive-files": Example(5, {"path": "/{n}/.env", "status": 404}, BY_ADDRESS),
    "scanners": Example(
        2, {"agent": "SQLMap/1.5"}, BY_ADDRESS, before=(9, {"agent": "Mozilla (python-requests/2)"})
    ),
    "model": Example(
        2,
        {"model": "large", "tokens": 500},
        {**BY_KEY, "model": "large"},
        before=(2, {"model": "small", "tokens": 400}),
    ),
    "account-under-attack": Example(
        5,
        {"user": "ann", "status": 401, "ip": "198.51.100.{n}"},
        {"caller": "", "account": "ann"},
        before=(9, {"user": "bob", "status": 401}),
    ),
    "account-guessing": Example(
        6,
        {"user": "ann", "status": 401, "ip": "198.51.100.{n}", "key": "k{n}"},
        {"caller": "", "account": "ann"},
        before=(5, {"user": "bob", "status": 401}),
    ),
    "spraying": Example(
        8,
        {"user": "u{n}", "status": 401, "ip": "192.0.2.{n}"},
        BY_ADDRESS,
        before=(9, {"user": "ann", "status": 401, "ip": "198.51.100.{n}"}),
    ),
    "subscription": Example(11, {"tokens": 100}, BY_KEY, profiles={KEY: Profile("free")}),
    "organisation": Example(
        10, {"org": "north", "key": "k{n}"}, ON_TEAM, profiles={"tenant:north": Profile("team")},
        wait_s=2 * 86_400 + 2,
    ),
    "sso": Example(0, {}, BY_KEY, profiles={KEY: Profile("free")}, before=(1, {"key": "paying"})),
    "trial": Example(10, {}, BY_KEY, profiles={KEY: Profile("trial")}),
    "contract": Example(12, {"org": "north", "key": "k{n}"}, ON_TEAM),
    "budget": Example(6, {"org": "north", "cost": "10.000000000"}, ON_TEAM),
    "neighbour": Example(
        100,
        {"path": "/v1/a", "ms": 400},
        route("/v1/a"),
        between_s=0.2,
        before=(5, {"key": "b", "path": "/v1/a", "ms": 5}),
    ),
}  # fmt: skip
NOTICED = "failing-route"


def write(world: World, number: int, fields: Mapping[str, Any]) -> None:
    """Writes a request of now to the log."""
    stated = {"path": "/", "method": "GET", "status": 200, "key": "acme", "ip": IP, **fields}
    record = {"time": world.clock.now().isoformat(), **stated}
    for key, value in record.items():
        record[key] = value.replace("{n}", f"{number}") if isinstance(value, str) else value
    world.log.append(json.dumps(record).encode(), world.clock.wall_ns() // 1_000_000)


def test_each_policy_of_the_page_has_an_example() -> None:
    assert len(NAMES) >= 19
    assert {*NAMES} == {*EXAMPLES, NOTICED}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_policy_refuses_from_its_limit_on_and_not_before(name: str, open_world: OpenWorld) -> None:
    example = EXAMPLES[name]
    world = open_world(SOURCE + BLOCKS[NAMES.index(name)])
    asked = dict(example.asked)
    caller = asked.pop("caller")
    world.pass_s(65 - world.clock.now().second)  # no minute ends within an example
    for number in range(example.before[0]):
        write(world, number, example.before[1])
    if example.profiles:
        assert world.gate.check(caller, **asked).allowed
        set_callers(world.engine, example.profiles, "ann", "sold", new_mark)
    for number in range(example.count):
        if number == example.count - 1 and not example.between_s:
            world.pass_s(1)
            assert world.gate.check(caller, **asked).allowed, "below its limit"
        write(world, number, example.fields)
        world.pass_s(example.between_s)
    if example.wait_s > 60:
        world.pass_s(1)
        world.clock.jump(example.wait_s)
    world.pass_s(2)
    answers = [world.gate.check(caller, **asked) for _ in range(9)]  # one that is slowed has a rate
    refused = answers[-1]
    assert (refused.allowed, refused.policy) == (False, example.refused_by or name)


def test_a_route_that_fails_is_noticed_and_locks_no_caller(open_world: OpenWorld) -> None:
    world = open_world(SOURCE + BLOCKS[NAMES.index(NOTICED)])
    for number in range(6):
        write(world, number, {"key": f"k{number}", "path": "/v1/a", "status": 503})
        write(world, number, {"key": f"k{number}", "path": "/v1/b"})
    world.pass_s(2)
    assert [raised.notice.at.key for raised in raised_notices(world.engine)] == ["/v1/a"]
    assert world.gate.check("api_key:k0", resource="/v1/a").allowed
