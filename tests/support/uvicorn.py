"""An ASGI application under uvicorn, in a thread of the test's own process, on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: Any, **config: Any) -> Iterator[str]:
    """The URL that it answers at, inside."""
    given = {"host": "127.0.0.1", "port": 0, "log_level": "critical"} | config
    server = uvicorn.Server(uvicorn.Config(app, **given))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline_s = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive(), "uvicorn ended"
            assert time.monotonic() < deadline_s, "uvicorn did not start"
            time.sleep(0.005)
        if "uds" in given:
            yield "http://app"
        else:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
