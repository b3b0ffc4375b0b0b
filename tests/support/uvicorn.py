"""An ASGI application under uvicorn, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.waiting import wait_until


@contextmanager
def serving(app: Any, **config: Any) -> Iterator[str]:
    """Serves `app` on a free port, or on the socket `uds`; yields its URL."""
    options = {"host": "127.0.0.1", "port": 0, "log_level": "critical"} | config
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), 30, lambda: "uvicorn did not start")
        assert thread.is_alive(), "uvicorn ended"
        if "uds" in options:
            yield "http://app"
        else:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
