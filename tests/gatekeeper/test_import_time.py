"""What an application pays for importing us."""

from __future__ import annotations

import subprocess
import sys

MS_MAX = 30.0
TRIES = 20
CODE = "import time; begun = time.perf_counter(); import gatekeeper; print(time.perf_counter() - begun)"


def test_importing_takes_less_than_30_ms() -> None:
    """By the best of some processes, whatever the import brings along; a busy machine needs more of them."""
    took_ms = []
    while len(took_ms) < TRIES and not any(took < MS_MAX for took in took_ms):
        ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        took_ms.append(float(ran.stdout) * 1000)
    assert min(took_ms) < MS_MAX
