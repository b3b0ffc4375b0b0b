"""Each grouping that a policy may judge, from log lines to a refused request, and to one that is admitted."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from tests.support.fresh_databases import migrated_sqlite
from tests.support.whole_loop import World

LIMIT = 6
CONFIGURATION = f"""
[[sources]]
topic = "access-log"
name = "log"
[sources.fields]
time = {{ path = "ts", unit = "ms" }}
api_key = "key"
tenant = "org"
address = {{ path = "ip", prefix6 = 64 }}
resource = {{ path = "path", routes = ["/v1/items/{{id}}", "/v1/search"], else = "other" }}
[[policies]]
name = "limit"
limit = {LIMIT}
per = "PER"
window = {{ per = "hour" }}
"""


class Request(NamedTuple):
    """A request as the log has it; its gate asks by the same values, the path as a route."""

    key: str
    org: str
    ip: str
    path: str
    route: str


ANN = Request("ann", "acme", "192.0.2.7", "/v1/items/1", "/v1/items/{id}")
BOB = Request("bob", "acme", "192.0.2.9", "/v1/items/2", "/v1/items/{id}")
ANN_ELSEWHERE = ANN._replace(ip="198.51.100.1", path="/v1/search", route="/v1/search")
ZED = Request("zed", "others", "2001:db8:0:1::5", "/v1/search", "/v1/search")
NEIGHBOUR = Request("yve", "others", "2001:db8:0:1::6", "/nowhere", "other")
DISTANT = Request("xia", "", "2001:db8:0:2::6", "/v1/search", "/v1/search")

# By grouping: requests that reach the limit together, of which none reaches it alone; then some that are
# refused, and some that are not.
CASES = {
    "caller": ([ANN, ANN_ELSEWHERE], [ANN, ANN_ELSEWHERE], [BOB]),
    "caller+resource": ([ANN, ANN._replace(path="/v1/items/7")], [ANN], [ANN_ELSEWHERE, BOB]),
    "tenant": ([ANN, BOB], [ANN, BOB, ANN_ELSEWHERE], [ZED, DISTANT]),
    "tenant+resource": ([ANN, BOB], [ANN, BOB], [ANN_ELSEWHERE, ZED]),
    "resource": ([ANN_ELSEWHERE, ZED], [DISTANT], [ANN, NEIGHBOUR]),
    "address": ([ZED, NEIGHBOUR], [ZED, NEIGHBOUR], [DISTANT, ANN]),
    "address+resource": ([ANN, ANN._replace(key="other")], [ANN], [BOB, ANN._replace(route="/v1/search")]),
    "address/24": ([ANN, BOB], [ANN, BOB], [ANN_ELSEWHERE, ZED]),
    "address/24+resource": ([ANN, BOB], [ANN, BOB], [ANN._replace(route="/v1/search")]),
    "address6/56": ([ZED, DISTANT], [ZED, NEIGHBOUR, DISTANT], [ANN]),
    "everyone": ([ANN, ZED], [ANN, BOB, ZED, DISTANT], []),
}


@pytest.mark.parametrize("per", CASES)
def test_a_series_at_its_limit_is_refused_and_others_are_not(tmp_path: Path, per: str) -> None:
    counted, refused, admitted = CASES[per]
    url = migrated_sqlite(tmp_path)
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION.replace("PER", per))
    world = World(url, InlineFlushes(), load(tmp_path / "gatelock.toml").plan())
    try:
        world.gate.ready(1)
        world.pass_s(3)
        for number in range(LIMIT):
            assert not refused_among(world, [*refused, *admitted]), f"after {number} requests"
            write(world, counted[number % len(counted)])
            world.pass_s(1)
        assert refused_among(world, [*refused, *admitted]) == refused
    finally:
        world.close()


@pytest.mark.parametrize("per", ["tenant", "address/24", "caller+resource", "address"])
def test_requests_without_the_field_reach_no_limit(tmp_path: Path, per: str) -> None:
    url = migrated_sqlite(tmp_path)
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION.replace("PER", per))
    world = World(url, InlineFlushes(), load(tmp_path / "gatelock.toml").plan())
    try:
        world.gate.ready(1)
        for _ in range(2 * LIMIT):
            world.log.write(key="ann", ip="2001:db8::1" if per == "address/24" else "")
        world.pass_s(1)
        assert not refused_among(world, [ANN, BOB, ZED, DISTANT])
    finally:
        world.close()


def write(world: World, request: Request) -> None:
    world.log.write(key=request.key, org=request.org, ip=request.ip, path=request.path)


def refused_among(world: World, requests: list[Request]) -> list[Request]:
    return [
        request
        for request in requests
        if not world.gate.check(
            f"api_key:{request.key}", tenant=request.org, address=request.ip, resource=request.route
        )
    ]
