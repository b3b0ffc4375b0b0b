"""Gates in real uWSGI, with and without its threads, made and started before it forks its workers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import servers
from tests.support.feed import HandFeed, a_lock
from tests.support.servers import Missing
from tests.support.servers.child import free_port
from tests.support.serving import feed_server
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PLUGIN = Path("/usr/lib/uwsgi/plugins/python3_plugin.so")
STALE_AFTER_S = 1.0
SETTING = "start it with --enable-threads"

# Answers with what the gate says of itself; a caller without a lock gets 503 when the view is stale.
APPLICATION = """
import json, logging, os
from gatekeeper import Gate
from gatekeeper.adapters.wsgi import Guard, header

logging.basicConfig(level=logging.INFO)
gate = Gate({url!r}, stale_after={stale_after_s}, on_stale="deny").start()

def shop(environ, start_response):
    start_response("200 OK", [("content-type", "application/json")])
    return [json.dumps({{"pid": os.getpid(), "healthy": gate.healthy}}).encode()]

application = Guard(shop, gate, caller=header("x-api-key"))
"""


class Uwsgi:
    """A running uWSGI with two workers."""

    def __init__(self, folder: Path, source: str, *options: str) -> None:
        text = APPLICATION.format(url=source, stale_after_s=STALE_AFTER_S)
        (folder / "shop.py").write_text(text)
        self.port = free_port()
        self.log_file = folder / "log"
        with self.log_file.open("wb") as log:
            self.child = subprocess.Popen(
                [
                    "uwsgi", "--plugin", "python3", "--http-socket", f"127.0.0.1:{self.port}",
                    "--wsgi-file", str(folder / "shop.py"), "--master", "--processes", "2", "--need-app",
                    *options,
                ],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def ask(self, caller: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/", headers={"x-api-key": caller})
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        return response.status, body

    def answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return bool(self.ask("bob"))
        return False

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log_file.read_text().splitlines() if "WARNING:gatekeeper" in line]


@contextmanager
def uwsgi(folder: Path, source: str, *options: str) -> Iterator[Uwsgi]:
    if shutil.which("uwsgi") is None or not PLUGIN.exists():
        servers.lacks("uwsgi", Missing("not installed"))
    running = Uwsgi(folder, source, *options)
    try:
        wait_until(running.answers, 30, running.log_file.read_text)
        yield running
        running.child.send_signal(signal.SIGINT)
        running.child.wait(20)
    finally:
        if running.child.poll() is None:
            running.child.kill()
            running.child.wait()


def test_with_threads_a_worker_learns_of_a_lock_and_of_its_end_though_the_gate_was_started_before_the_fork(
    tmp_path: Path,
) -> None:
    feed = HandFeed(a_lock(ends_in=10**9))
    with feed_server(feed) as source, uwsgi(tmp_path, source, "--enable-threads") as running:
        wait_until(lambda: running.ask("acme")[0] == 429, 30)
        feed.clear(a_lock(ends_in=10**9))
        wait_until(lambda: running.ask("acme")[0] == 200, 30)
        wait_until(lambda: running.ask("acme")[1].get("healthy"), 30)
        assert running.warnings == []


def test_without_threads_the_gate_says_so_once_and_its_view_goes_stale_by_its_rule(tmp_path: Path) -> None:
    with feed_server(HandFeed(a_lock(ends_in=10**9))) as source, uwsgi(tmp_path, source) as running:
        bodies = []

        def is_served() -> bool:
            status, body = running.ask("bob")
            bodies.extend([body] if status == 200 else [])
            return bool(bodies)

        wait_until(is_served, 30)
        assert not bodies[0]["healthy"], "it looks as it is"
        for _ in range(20):
            running.ask("bob")
        assert len(running.warnings) == 1
        assert SETTING in running.warnings[0]
        time.sleep(STALE_AFTER_S + 0.5)  # no request comes, and so nothing is polled
        assert running.ask("bob")[0] == 503
