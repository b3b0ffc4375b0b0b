"""A real Prometheus that scrapes given targets once a second, and answers queries."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import plain_http
from tests.support.servers import Missing
from tests.support.servers.child import Child, accepts, free_port


def find_programs() -> tuple[str, str]:
    """Returns the paths of prometheus and promtool. Raises Missing."""
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server is None or tool is None:
        raise Missing("no prometheus and promtool in PATH")
    return server, tool


class NativePrometheus:
    """A process of Prometheus on loopback, with `rules` and the `targets`, as host and port."""

    def __init__(self, folder: Path, targets: Iterable[str], rules: Path) -> None:
        self.port = free_port()
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "gatelock", "static_configs": [{"targets": list(targets)}]}],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(configuration))  # YAML contains JSON
        server, _ = find_programs()
        self._child = Child(
            [
                server,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            folder,
            parent_death_signal=signal.SIGKILL,
        )
        self._child.start(self._is_ready)

    def _is_ready(self) -> bool:
        return accepts(self.port) and plain_http.get(f"http://127.0.0.1:{self.port}/-/ready").is_success

    def get(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer of the API."""
        answer = plain_http.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an expression, each with `metric` and `value`."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def stop(self) -> None:
        self._child.end(signal.SIGTERM)
