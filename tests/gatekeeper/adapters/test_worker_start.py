"""Workers that have just started: no request of a locked caller passes, under gunicorn and uvicorn."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tests.gatekeeper.adapters.documented_shop import SERVERS, serving_documented
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.servers.child import free_port
from tests.support.serving import feed_server
from tests.support.waiting import wait_until

WORKERS = 2
THREADS = 3
DENIALS = 30  # of a start


class Hammer:
    """A locked caller that asks from several threads, also while the server is away."""

    def __init__(self, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(THREADS)]

    def __enter__(self) -> Hammer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, number: int) -> None:
        wait_until(lambda: self.statuses.total() >= number, 120, lambda: self.statuses)

    def _ask(self) -> None:
        while not self._stopped.is_set():
            try:
                # A new connection each time, so that every worker is asked.
                answer = plain_http.get(self._url, headers={"x-api-key": "acme"}, timeout=20, trust_env=False)
            except httpx2.TransportError:
                self._stopped.wait(0.05)
            else:
                self.statuses[answer.status_code] += 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("asgi", "wsgi") else [pytest.mark.deep("further frameworks")])
        for name in SERVERS
        if name != "flask"
    ],
)
def test_no_request_of_a_locked_caller_passes_a_restarted_server(tmp_path: Path, name: str) -> None:
    port, page = free_port(), SERVERS[name][1]
    with (
        feed_server(HandFeed(a_lock("api_key:acme", ends_in=10**9))) as source,
        Hammer(f"http://127.0.0.1:{port}{page}") as hammer,
    ):
        for _ in range(2):
            before = hammer.statuses.total()
            with serving_documented(name, tmp_path, source, workers=WORKERS, port=port):
                hammer.wait_for_answers(before + DENIALS)
    assert set(hammer.statuses) == {429}


@pytest.mark.parametrize("name", ["wsgi", "flask", "django", "django async", "asgi without lifespan"])
def test_a_source_that_does_not_answer_delays_the_first_request_and_no_other(
    tmp_path: Path, name: str
) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        source = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = stack.enter_context(serving_documented(name, tmp_path, source))
        # The worker is ready when it answers an exempt path, which does not wait for the gate.
        plain_http.get(f"{url.partition('/items')[0]}/healthz", timeout=60, trust_env=False)
        took_s = []
        for _ in range(6):
            began_s = time.monotonic()
            answer = plain_http.get(url, headers={"x-api-key": "bob"}, timeout=20, trust_env=False)
            assert answer.status_code == 200
            took_s.append(time.monotonic() - began_s)
    first_s, *others_s = took_s
    assert first_s >= 0.5
    assert min(others_s) < 0.4
    assert sum(took >= 0.5 for took in others_s) <= 1, "one may be late on a busy machine"
