"""`[analyzer]`: the process itself: its name, its pace, its HTTP server, its retention."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import Field

from analyzer.config.tables import ConfigTable
from analyzer.config.values import DAY_S, Listen, Name, Text, one_of, seconds


class AnalyzerTable(ConfigTable):
    name: Name = Field(default_factory=socket.gethostname)  # who owns a partition, for people
    flush_every: Annotated[float, seconds(0.01, 60)] = 0.1
    http: Listen = "127.0.0.1:8321"
    http_cert: Text | None = None  # PEM files: with them the web application speaks TLS
    http_key: Text | None = None
    log: Annotated[Literal["json", "console"], one_of("json", "console")] | None = (
        None  # None: as the terminal is
    )
    # Finer buckets become coarser ones after this long; each count stays in exactly one of them.
    # Longer than the oldest record that is still counted, and than the longest window, a month.
    keep_minutes: Annotated[float, seconds(36 * DAY_S, 3660 * DAY_S)] = 40.0 * DAY_S
    keep_quarters: Annotated[float, seconds(36 * DAY_S, 36600 * DAY_S)] = 400.0 * DAY_S

    @property
    def listen(self) -> tuple[str, int] | None:
        """Host and port of the web application; None when it is off."""
        if self.http == "off":
            return None
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port)
