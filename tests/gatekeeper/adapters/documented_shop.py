"""The applications of docs/gatekeeper.md under real servers, with several workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.child import accepts, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
SHOPS = "tests.gatekeeper.adapters.shops.documented_shops"
PATIENCE_S = 120.0

UVICORN = ["uvicorn", "--factory", "--no-proxy-headers", "--log-level=warning"]
GUNICORN = ["gunicorn", "--no-control-socket", "--log-level=warning"]
# Commands that start the applications, with the path of a page.
SERVERS = {
    "asgi": ([*UVICORN, f"{SHOPS}:asgi"], "/items"),
    "fastapi": ([*UVICORN, f"{SHOPS}:fastapi"], "/items/7"),
    "django async": ([*UVICORN, f"{SHOPS}:django_async"], "/items/7"),
    "asgi without lifespan": ([*UVICORN, "--lifespan=off", f"{SHOPS}:asgi"], "/items"),
    "wsgi": ([*GUNICORN, f"{SHOPS}:wsgi()"], "/items"),
    "flask": ([*GUNICORN, f"{SHOPS}:flask()"], "/items/7"),
    "django": ([*GUNICORN, f"{SHOPS}:django()"], "/items/7"),
}


@contextmanager
def serving_documented(
    name: str, folder: Path, source: str, *options: str, workers: int = 1, port: int = 0
) -> Iterator[str]:
    """Yields the URL of a page of the application, when its server accepts connections.

    `options` are further ones of the server's command line.
    """
    (command, page), port = SERVERS[name], port or free_port()
    bind = f"--port={port}" if command[0] == "uvicorn" else f"--bind=127.0.0.1:{port}"
    with (folder / "server.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *command[:-1], bind, f"--workers={workers}", *options, command[-1]],
            cwd=ROOT, stdout=log, stderr=log,
            env={**os.environ, "SHOP_FOLDER": str(folder), "SHOP_SOURCE": source},
        )  # fmt: skip
    try:
        wait_until(
            lambda: accepts(port) or child.poll() is not None,
            PATIENCE_S,
            (folder / "server.log").read_text,
        )
        assert child.poll() is None, (folder / "server.log").read_text()
        yield f"http://127.0.0.1:{port}{page}"
    finally:
        child.terminate()
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
