"""`gatelock run` as a process: what it logs, what it answers, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from tests.support import plain_http
from tests.support.servers.child import free_port

NAMED_S_MAX, START_S_MAX = 30.0, 60.0


class Analyzer:
    """One process. `configuration` is all but `[analyzer]` and `[database]`; `code` is run instead of the
    command, for a process that is built otherwise."""

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
        command = ["-c", code] if code else ["-m", "analyzer.cli", "run"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], stderr=log, env={"GATELOCK_CONFIG": str(self.config), "PATH": ""}
            )

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    @property
    def errors(self) -> list[str]:
        return [each["message"] for each in self.log if each["level"] in ("error", "critical")]

    def problems(self) -> dict[str, str]:
        try:
            found: dict[str, str] = plain_http.get(f"http://{self.http}/readyz").json()["problems"]
        except httpx2.TransportError:
            return {}
        return found

    def _ready(self) -> bool:
        try:
            return plain_http.get(f"http://{self.http}/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def listening(self) -> None:
        """Returns when it works: to start may take long where much else runs."""
        end_s = time.monotonic() + START_S_MAX
        while self.logged("listening") is None:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < end_s, self._log.read_text()
            time.sleep(0.05)

    def logged(self, words: str) -> float | None:
        """When it said so, in seconds."""
        at = (datetime.fromisoformat(each["at"]) for each in self.log if words in each["message"])
        return next((each.timestamp() for each in at), None)

    def named(self, name: str, seconds: float = NAMED_S_MAX) -> str:
        """What /readyz says under this name, once it does; the metric and the log say it, too."""
        self.listening()
        end_s = time.monotonic() + seconds
        while name not in (problems := self.problems()):
            assert time.monotonic() < end_s, (problems, self.log[-5:])
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.1)
        metrics = plain_http.get(f"http://{self.http}/metrics").text
        assert f'gatelock_problem{{name="{name}"}} 1' in metrics
        while not any(line.startswith(f"{name}: ") for line in self.errors):
            assert time.monotonic() < end_s, self.log[-5:]
            time.sleep(0.1)
        return problems[name]

    def well(self, seconds: float = NAMED_S_MAX) -> None:
        """Returns when nothing is wrong with it."""
        self.listening()
        end_s = time.monotonic() + seconds
        while not self._ready():
            assert time.monotonic() < end_s, (self.problems(), self.log[-5:])
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
