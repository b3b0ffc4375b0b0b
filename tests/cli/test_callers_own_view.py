"""A customer that sees what remains: from its requests in the log to the answer of the application."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import http_sf
import httpx2
import pytest
from fastapi import FastAPI, Request, Response

from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard, header
from gatekeeper.adapters.caller_view_response import caller_view_response_async
from tests.cli.test_serve import DEADLINE_S, Configure, serving
from tests.support.waiting import wait_until

Gatelock = Callable[..., Any]
CALLER = header("x-api-key")


class Shop:
    """A guarded application, whose requests a proxy logs."""

    def __init__(self, gate: Gate, log: Path) -> None:
        api = FastAPI()

        @api.get("/v1/me")
        async def me(request: Request) -> Response:
            view = await caller_view_response_async(gate, CALLER(request.scope))
            return Response(view.body, view.status, view.headers)

        @api.get("/items")
        async def items() -> str:
            return "items"

        self._app = Guard(api, gate, caller=CALLER, exempt=["/v1/me"])
        self._log = log

    def ask(self, path: str, key: str) -> httpx2.Response:
        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self._app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
                return await client.get(path, headers={"x-api-key": key})

        answer = asyncio.run(send())
        if path == "/items" and answer.status_code == 200:
            with self._log.open("a") as lines:
                lines.write(json.dumps({"key": key, "ts": int(time.time())}) + "\n")
        return answer

    def remaining(self, key: str) -> int:
        answer = self.ask("/v1/me", key)
        assert answer.status_code == 200, answer.text
        [limit] = answer.json()["limits"]
        shown = dict(http_sf.parse(answer.headers["ratelimit"].encode(), tltype="list"))
        assert shown["monthly"]["r"] == limit["remaining"]
        return int(limit["remaining"])


def test_a_customer_sees_what_remains_why_it_is_locked_and_that_it_was_given_more(
    migrated_url: str, tmp_path: Path, configure: Configure, gatelock: Gatelock
) -> None:
    log = tmp_path / "requests.log"
    log.touch()
    configure(f"""
        database = {{ url = "{migrated_url}" }}
        analyzer = {{ http = "127.0.0.1:0", log = "json" }}
        [[sources]]
        file = "{log}"
        fields = {{ api_key = "key", time = {{ path = "ts", unit = "s" }} }}
        [[policies]]
        name = "monthly"
        limit = 5
        window = {{ per = "month" }}
    """)
    token = gatelock("upkeep", "tokens", "create", "shop", "--scope", "callers").output.strip()
    with serving(tmp_path, "run") as server, Gate(server.url, token=token) as gate:
        assert gate.ready(20)
        shop, why = Shop(gate, log), server.log.read_text
        assert shop.ask("/items", "acme").status_code == 200
        wait_until(lambda: shop.ask("/v1/me", "acme").json()["limits"] != [], DEADLINE_S, why)
        wait_until(lambda: shop.remaining("acme") == 4, DEADLINE_S, why)
        assert "ratelimit" not in shop.ask("/items", "acme").headers, "no gate knows what remains"
        for _ in range(3):
            shop.ask("/items", "acme")
        wait_until(lambda: shop.ask("/items", "acme").status_code == 429, DEADLINE_S, why)
        refused = shop.ask("/items", "acme")
        [(policy, left)] = http_sf.parse(refused.headers["ratelimit"].encode(), tltype="list")
        assert (policy, left["r"]) == ("monthly", 0)
        assert 0 < left["t"] <= int(refused.headers["retry-after"])
        own = shop.ask("/v1/me", "acme").json()
        assert own["locked"] is True
        assert own["locks"][0]["detail"] == refused.json()["detail"]
        assert shop.remaining("acme") == 0
        assert shop.remaining("bob") == 5, "it was never seen"
        given = gatelock(
            "callers", "limit", "api_key:acme", "--amount", "+1000", "--for", "30d", "--reason", "paid"
        )
        assert given.exit_code == 0, given.output
        wait_until(lambda: shop.ask("/items", "acme").status_code == 200, DEADLINE_S, why)
        logged = len(log.read_text().splitlines())
        wait_until(lambda: shop.remaining("acme") == 1_005 - logged, DEADLINE_S, why)
        assert shop.ask("/v1/me", "acme").json()["locked"] is False


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_token_for_gates_cannot_ask_for_callers(
    migrated_url: str, tmp_path: Path, configure: Configure, gatelock: Gatelock
) -> None:
    configure(f'database = {{ url = "{migrated_url}" }}\nanalyzer = {{ http = "127.0.0.1:0", log = "json" }}')
    token = gatelock("upkeep", "tokens", "create", "shop", "--scope", "read").output.strip()
    with serving(tmp_path) as server, Gate(server.url, token=token) as gate:
        assert gate.ready(20)
        assert Shop(gate, tmp_path / "log").ask("/v1/me", "acme").status_code == 503
