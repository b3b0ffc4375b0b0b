"""Whole stories of the documented examples: a flood without a key is counted, locked and refused.

The application of docs/gatekeeper.md under a real server, the request log around it, the source in
deploy/requestlog.toml, an analyzer, and the gate.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from analyzer.kernel.model import DrainedCounts
from gatekeeper import Gate
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.gatekeeper.adapters.documented_shop import serving_documented
from tests.gatekeeper.requestlog.test_end_to_end import LIMIT, World
from tests.support.feed import a_lock
from tests.support.requestlog import count_lines
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
LINES = ROOT / "tests" / "data" / "proxies"


# Applications, and the address that uvicorn takes from a proxy's header: a machine may have no IPv6.
STORIES = [
    ("wsgi", None),
    *(
        pytest.param(name, None, marks=pytest.mark.deep("its stories run in test_frameworks"))
        for name in ("asgi", "fastapi", "flask", "django", "django async")
    ),
    ("asgi", "2001:db8:0:7::9"),
]


@pytest.mark.parametrize(("name", "proxied"), STORIES)
def test_a_flood_without_a_key_is_counted_locked_and_refused(
    tmp_path: Path, name: str, proxied: str | None
) -> None:
    headers = {"x-forwarded-for": proxied} if proxied else {}
    options = ["--proxy-headers"] if proxied else []
    world = World(tmp_path, 'file = "requests.log"')
    with ExitStack() as stack:
        url = stack.enter_context(serving_documented(name, tmp_path, world.url, *options))
        client = stack.enter_context(httpx2.Client(headers=headers, trust_env=False, timeout=60))
        stack.enter_context(world.analyzer())

        def policies() -> list[str]:
            """Returns the policies that refuse a request without a key; the burst limiter is one of them."""
            answer = client.get(url)
            return answer.json()["violated-policies"] if answer.status_code == 429 else []

        wait_until(lambda: policies() == ["monthly"], 120, (tmp_path / "server.log").read_text)
        assert [policies() for _ in range(5)] == [["monthly"]] * 5
        key = {"authorization": "Basic Ym9iOng="} if name == "flask" else {"x-api-key": "bob"}
        assert client.get(url, headers=key).status_code == 200, "callers with a key are counted apart"
        caller = "user:bob" if name == "flask" else "api_key:bob"
        wait_until(lambda: world.used().get(caller) == (1, 0), 60)
        counts = world.used()
    flooding = "address:2001:db8:0:7::/64" if proxied else "address:127.0.0.1"
    assert set(counts) == {caller, flooding}
    admitted, denied = counts[flooding]
    assert admitted >= LIMIT
    assert denied >= 5


@pytest.mark.parametrize("proxy", ["envoy", "traefik", "caddy"])
def test_the_name_that_a_proxys_source_counts_by_is_refused_by_a_guard_that_knows_the_address(
    proxy: str, tmp_path: Path
) -> None:
    """Sample lines of the proxy, one of a client without a key, another with an IPv6 address."""
    configuration = tmp_path / "gatelock.toml"
    configuration.write_text((ROOT / "deploy" / "proxies" / f"{proxy}.toml").read_text())
    lines = (LINES / f"{proxy}.log").read_bytes().splitlines(keepends=True)
    locked = set()
    for line in lines:
        if b"192.0.2.7" in line and b"acme" not in line:
            locked |= callers(count_lines(configuration, line))
    assert locked == {"address:192.0.2.7"}
    gate = Gate(FixedSource(*map(a_lock, locked)), clock=ManualClock())
    assert gate.ready(1.0)
    assert not gate.check(address="192.0.2.7").allowed


def callers(found: DrainedCounts) -> set[str]:
    return {row.key for row in found.rows if row.grouping == "caller"}
