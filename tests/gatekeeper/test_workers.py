"""Gates in the workers of real servers: gunicorn forks them, uvicorn starts them."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.feed import HandFeed, a_lock
from tests.support.servers.child import free_port
from tests.support.serving import feed_server

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
WORKERS = 3
# On an idle machine 0.11 s until another process leads, one fetch, and 0.11 s until the others read it.
TAKEN_OVER_S = 3.0

# Answers with its process, its role in the shared poller, and the status for the caller: "1234 leader 200".
APPLICATION = """
import os
from pathlib import Path
from gatekeeper import Gate

gate = Gate({url!r}, saved=Path({saved!r}), shared={shared})
{setup}

def state(caller):
    is_leader = getattr(gate._options.source, "is_leader", True) and gate.healthy
    role, status = "leader" if is_leader else "follower", 200 if gate.allow(caller) else 429
    return f"{{os.getpid()}} {{role}} {{status}}".encode()

def wsgi(environ, start):
    start("200 OK", [("content-type", "text/plain"), ("connection", "close")])
    return [state(environ["HTTP_X_CALLER"])]

async def asgi(scope, receive, send):
    if scope["type"] == "http":
        caller = dict(scope["headers"])[b"x-caller"].decode()
        await send({{"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]}})
        await send({{"type": "http.response.body", "body": state(caller)}})
"""


@pytest.fixture
def feed() -> HandFeed:
    return HandFeed(a_lock(ends_in=10**9))


@pytest.fixture
def feed_url(feed: HandFeed) -> Iterator[str]:
    with feed_server(feed) as url:
        yield url


class Shop:
    """A server with its workers."""

    def __init__(self, port: int, child: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.child = child

    def ask(self, caller: str) -> tuple[int, str, int]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/", headers={"x-caller": caller})
        pid, role, status = connection.getresponse().read().decode().split()
        connection.close()
        return int(pid), role, int(status)

    def workers(
        self, caller: str, until: Callable[[dict[int, tuple[str, int]]], bool]
    ) -> dict[int, tuple[str, int]]:
        """The last role and status of each worker, once `until` holds for them."""
        seen: dict[int, tuple[str, int]] = {}
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            with suppress(OSError, http.client.HTTPException):
                pid, role, status = self.ask(caller)
                alive = {process.pid for process in psutil.Process(self.child.pid).children(recursive=True)}
                seen = {worker: last for worker, last in seen.items() if worker in alive}
                seen[pid] = role, status
                if len(seen) == WORKERS and until(seen):
                    return seen
        raise AssertionError(f"the workers do not agree in time: {seen}")


def all_answer(status: int) -> Callable[[dict[int, tuple[str, int]]], bool]:
    return lambda seen: {answered for _, answered in seen.values()} == {status}


@contextmanager
def shop(folder: Path, url: str, server: str, *, shared: bool = False, setup: str = "") -> Iterator[Shop]:
    text = APPLICATION.format(url=url, saved=str(folder / "view"), shared=shared, setup=setup)
    (folder / "application.py").write_text(text)
    port = free_port()
    gunicorn = ["-m", "gunicorn", f"--bind=127.0.0.1:{port}", f"--workers={WORKERS}", "--no-control-socket"]
    command = {
        "gunicorn": [*gunicorn, "application:wsgi"],
        "gunicorn preload": [*gunicorn, "--preload", "application:wsgi"],
        "uvicorn": [
            "-m",
            "uvicorn",
            f"--port={port}",
            f"--workers={WORKERS}",
            "--lifespan=off",
            "application:asgi",
        ],
    }[server]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        yield Shop(port, child)
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    output = (folder / "log").read_text()
    assert "Traceback" not in output, output


@pytest.mark.parametrize(
    ("server", "setup"),
    [
        ("gunicorn", ""),
        ("gunicorn preload", ""),
        ("gunicorn preload", "gate.start(); assert gate.ready(20)"),
        ("uvicorn", ""),
    ],
    ids=["gunicorn", "gunicorn preload", "gunicorn preload, started before the fork", "uvicorn"],
)
def test_every_worker_learns_of_a_lock_and_of_its_end(
    tmp_path: Path, feed: HandFeed, feed_url: str, server: str, setup: str
) -> None:
    with shop(tmp_path, feed_url, server, setup=setup) as running:
        assert running.workers("api_key:acme", all_answer(429))
        assert running.workers("user:bob", all_answer(200))
        feed.set(a_lock("user:bob", ends_in=10**9))
        assert running.workers("user:bob", all_answer(429))
        feed.clear(a_lock("user:bob"))
        assert running.workers("user:bob", all_answer(200))


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_the_workers_share_one_poller_and_another_takes_over_when_its_process_is_killed(
    tmp_path: Path, feed: HandFeed, feed_url: str, server: str
) -> None:
    """The others learn of the next lock within TAKEN_OVER_S, before or after a new worker has started."""

    def has_one_leader(seen: dict[int, tuple[str, int]]) -> bool:
        return [role for role, _ in seen.values()].count("leader") == 1

    with shop(tmp_path, feed_url, server, shared=True) as running:
        seen = running.workers("api_key:acme", lambda seen: has_one_leader(seen) and all_answer(429)(seen))
        (leader,) = (pid for pid, (role, _) in seen.items() if role == "leader")
        feed.set(a_lock("user:bob", ends_in=10**9))
        running.workers("user:bob", all_answer(429))
        os.kill(leader, signal.SIGKILL)
        killed_s = time.monotonic()
        feed.set(a_lock("user:eve", ends_in=10**9))
        left = seen.keys() - {leader}
        denying: set[int] = set()
        while denying < left:
            with suppress(OSError, http.client.HTTPException):
                pid, _, status = running.ask("user:eve")
                denying |= {pid} if status == 429 else set()
            assert time.monotonic() - killed_s < TAKEN_OVER_S
        seen = running.workers("user:eve", lambda seen: has_one_leader(seen) and all_answer(429)(seen))
        assert leader not in seen


def test_a_poller_that_was_started_before_the_fork_is_shared_with_the_workers(
    tmp_path: Path, feed: HandFeed, feed_url: str
) -> None:
    """The parent leads as long as it lives; its workers follow."""
    with shop(tmp_path, feed_url, "gunicorn preload", shared=True, setup="assert gate.ready(20)") as running:
        seen = running.workers("api_key:acme", all_answer(429))
        assert {role for role, _ in seen.values()} == {"follower"}
        feed.set(a_lock("user:bob", ends_in=10**9))
        running.workers("user:bob", all_answer(429))
