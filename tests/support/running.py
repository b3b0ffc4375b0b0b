"""`gatelock run` as a process: its log, its health endpoints, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from tests.support import plain_http
from tests.support.gatelock_processes import GatelockProcess
from tests.support.servers.child import free_port
from tests.support.waiting import wait_until

PROBLEM_S_MAX, START_S_MAX = 30.0, 60.0


class Analyzer:
    """One process of `gatelock run`.

    `configuration` is TOML without `[analyzer]` and `[database]`. With `code` the process runs that Python
    code instead of the command.
    """

    def __init__(
        self, folder: Path, name: str, configuration: str, database: str = "", code: str = ""
    ) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self.config = folder / f"{name}.toml"
        self.config.write_text(f"""
            database = {{ url = "{database or f"sqlite:///{folder}/gatelock.db"}" }}
            analyzer = {{ name = "{name}", http = "{self.http}", log = "json" }}
            {configuration}
        """)
        self._log = folder / f"{name}-{time.monotonic_ns()}.log"
        environment = {"GATELOCK_CONFIG": str(self.config), "PATH": ""}
        with self._log.open("wb") as log:
            self.process = (
                subprocess.Popen([sys.executable, "-c", code], stderr=log, env=environment)
                if code
                else GatelockProcess(["run"], stderr=log, env=environment)
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    @property
    def errors(self) -> list[str]:
        return [line["message"] for line in self.log if line["level"] in ("error", "critical")]

    def problems(self) -> dict[str, str]:
        try:
            found: dict[str, str] = plain_http.get(f"http://{self.http}/readyz").json()["problems"]
        except httpx2.TransportError:
            return {}
        return found

    def _is_ready(self) -> bool:
        try:
            return plain_http.get(f"http://{self.http}/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def wait_until_listening(self) -> None:
        """Waits until its HTTP server listens; on a busy machine that takes long."""
        self._wait_until(lambda: self.logged_at("listening") is not None, START_S_MAX)

    def logged_at(self, words: str) -> float | None:
        """Returns the time of the first message with these words, in seconds since 1970; None without one."""
        lines = (line for line in self.log if words in line["message"])
        return next((datetime.fromisoformat(line["at"]).timestamp() for line in lines), None)

    def wait_for_problem(self, name: str, seconds: float = PROBLEM_S_MAX) -> str:
        """Waits until /readyz has the problem; returns its sentence. The metric and the log have it, too."""
        self.wait_until_listening()
        deadline_s = time.monotonic() + seconds
        found: dict[str, str] = {}

        def is_reported() -> bool:
            found.update(self.problems())
            return name in found

        self._wait_until(is_reported, seconds)
        metrics = plain_http.get(f"http://{self.http}/metrics").text
        assert f'gatelock_problem{{name="{name}"}} 1' in metrics
        self._wait_until(
            lambda: any(line.startswith(f"{name}: ") for line in self.errors), deadline_s - time.monotonic()
        )
        return found[name]

    def wait_until_ready(self, seconds: float = PROBLEM_S_MAX) -> None:
        """Waits until /readyz reports no problem."""
        self.wait_until_listening()
        self._wait_until(self._is_ready, seconds)

    def _wait_until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Waits while the process runs; fails with the end of its log."""

        def is_met() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return condition()

        wait_until(is_met, within_s, lambda: (self.problems(), self.log[-5:]), every_s=0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
