"""A shop application under a real server, called by a real client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from tests.support import plain_http
from tests.support.servers.child import free_port

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0
HOUR = timedelta(hours=1)

# By default uvicorn trusts X-Forwarded-For of a proxy on this machine; only the guard is to decide here.
UVICORN = ["uvicorn", "--factory", "--no-proxy-headers", "--log-level=warning"]
GUNICORN = ["gunicorn", "--workers=2", "--no-control-socket", "--log-level=warning"]
# Commands that start the shops, and whether they have an event loop.
SHOPS = {
    "asgi": ([*UVICORN, "asgi_shop:shop"], True),
    "fastapi": ([*UVICORN, "fastapi_shop:shop"], True),
    "django async": ([*UVICORN, "--lifespan=off", "django_shop:shop_async"], True),
    "wsgi": ([*GUNICORN, "wsgi_shop:shop()"], False),
    "flask": ([*GUNICORN, "flask_shop:shop()"], False),
    "django": ([*GUNICORN, "django_shop:shop()"], False),
}
LOCKED: dict[str, dict[str, Any]] = {
    "acme": {"detail": "100,000 requests per day, 100,214 counted"},
    "slowed": {"status": 503, "reason": "temporary-reduced-capacity"},
    "banned": {"status": 403, "reason": "abnormal-usage-detected"},
    "odd": {"policy": 'a "policy"\r\nset-cookie: x=1 é'},
    "tagged": {"action": "tag"},
    "suspected": {"detail": "100 requests per day, 101 counted"},
    "narrow": {"resource": "/items/{number}"},
}


def locks() -> dict[str, object]:
    """Returns a feed, in the format of a file, with locks that end in an hour."""
    now = datetime.now(UTC)
    others = [
        {"key": "api_key:acme", "policy": "monthly", "until": now + HOUR / 2},
        {"key": "api_key:suspected", "policy": "suspected-fraud", "action": "tag"},
        {
            "key": "api_key:suspected",
            "policy": "internal",
            "action": "slow",
            "slow": {"limit": 1, "period": 60},
        },
        {"scope": "tenant", "key": "globex"},
        {"scope": "address", "key": "203.0.113.9"},
        {"scope": "range", "key": "127.9.0.0/16"},
    ]
    by_key = [{"key": f"api_key:{name}"} | fields for name, fields in LOCKED.items()]
    defaults = {
        "op": "set", "scope": "caller", "policy": "daily", "action": "deny", "status": 429,
        "reason": "quota-exceeded", "began": now - HOUR, "until": now + HOUR,
    }  # fmt: skip
    changes = [defaults | fields for fields in [*by_key, *others]]
    return {"format": 1, "version": 1, "snapshot": True, "now": now, "changes": changes}


class Shop:
    """A running server."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.folder = folder
        self.port = port
        self.has_loop = SHOPS[name][1]
        self.url = f"http://127.0.0.1:{port}"
        self.client = plain_http.Client(base_url=self.url, timeout=PATIENCE_S)

    def get(self, path: str, key: str = "", **headers: str) -> httpx2.Response:
        return self.ask("GET", path, key, **headers)

    def ask(self, method: str, path: str, key: str = "", **headers: str) -> httpx2.Response:
        return self.client.request(method, path, headers=request_headers(key, headers))

    def release(self, name: str) -> None:
        """Lets the stream of this name continue."""
        (self.folder / name).touch()

    def shadows(self) -> str:
        """Returns the log of requests that would have been denied."""
        return (self.folder / "shadow.log").read_text()


def request_headers(key: str, headers: dict[str, str]) -> dict[str, str]:
    others = {name.replace("_", "-"): value for name, value in headers.items()}
    return others | ({"x-api-key": key} if key else {})


def new_key() -> str:
    """Returns an unused API key."""
    return uuid.uuid4().hex


@contextmanager
def shop(name: str, folder: Path, redis_url: str) -> Iterator[Shop]:
    (folder / "locks.json").write_text(json.dumps(locks(), default=datetime.isoformat))
    port, (command, _) = free_port(), SHOPS[name]
    bind = [f"--port={port}"] if command[0] == "uvicorn" else [f"--bind=127.0.0.1:{port}"]
    module = f"tests.gatekeeper.adapters.shops.{command[-1]}"
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command[:-1], *bind, module], cwd=ROOT, stdout=log, stderr=log,
            env={**os.environ, "SHOP_FOLDER": str(folder), "SHOP_REDIS": redis_url},
        )  # fmt: skip
    running = Shop(name, folder, port)
    try:
        wait_until_ready(running, child)
        yield running
    finally:
        running.client.close()
        child.terminate()
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise


def wait_until_ready(running: Shop, child: subprocess.Popen[bytes]) -> None:
    """Returns when the server responds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert running.get("/plain/healthz").status_code == 200
        except httpx2.TransportError:
            output = (running.folder / "log").read_text()
            assert child.poll() is None, output
            assert time.monotonic() < deadline_s, output
            time.sleep(0.02)
        else:
            return
