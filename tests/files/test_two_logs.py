"""Two followed logs with the same first line, for example a header, through `build`."""

from __future__ import annotations

import time
from pathlib import Path

from analyzer.build import build, opened
from analyzer.config.settings import Settings
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.metrics import Metrics
from analyzer.maintenance.audit import audit

LINE = '192.0.2.{} - - [21/Nov/2026:10:00:{:02} +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n'


def test_two_logs_with_the_same_first_line_are_both_counted(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.log", "b.log")]
    for number, path in enumerate(paths):
        path.write_text(LINE.format(0, 0) + "".join(LINE.format(number, second) for second in range(50)))
    settings = Settings(
        database={"url": f"sqlite:///{tmp_path}/gatelock.db"},
        analyzer={"flush_every": "10ms"},
        sources=[{"name": path.name, "file": str(path), "format": "combined"} for path in paths],
    )
    with opened(settings) as engine:
        daemon = build(settings, engine, Health(Metrics("test"), time.monotonic))
        for _ in range(10):
            daemon.run_once()
        found = audit(engine)
        daemon.close()
    assert {(ledger.topic, ledger.counted) for ledger in found.partitions} == {(str(p), 51) for p in paths}
