"""The time that importing the package takes."""

from __future__ import annotations

import subprocess
import sys

MS_MAX = 30.0
TRIES = 20
CODE = "import time; began = time.process_time(); import gatekeeper; print(time.process_time() - began)"


def test_importing_takes_less_than_30_ms() -> None:
    """In CPU time, the least of several processes, because others disturb a measurement."""
    took_ms = []
    while len(took_ms) < TRIES and not any(took < MS_MAX for took in took_ms):
        ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        took_ms.append(float(ran.stdout) * 1000)
    assert min(took_ms) < MS_MAX


def test_guards_load_no_openssl() -> None:
    """Only digests of names need it."""
    loaded = "import sys, gatekeeper.adapters.asgi; print('_hashlib' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
