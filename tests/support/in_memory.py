"""Where tests, and the servers and processes that they start, keep their files: in memory, if there is room.

To copy an empty PostgreSQL database costs 0.2 CPU-seconds on a disk and 0.01 in memory, and each commit of
SQLite waits for a disk. No test needs one: what is killed here is a process, not the machine's power.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")  # Linux keeps it in memory, and gives it up under no other name
ROOM = 4 << 30  # a whole run takes a quarter of it


def keep_files_in_memory() -> None:
    """Nothing where somebody chose a folder by TMPDIR, or the memory is small."""
    if "TMPDIR" not in os.environ and room_in(MEMORY) >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it looks once


def room_in(folder: Path) -> int:
    """Bytes that may be written below a folder in memory; 0 where it is none."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return 0
    found = os.statvfs(folder)
    return min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
