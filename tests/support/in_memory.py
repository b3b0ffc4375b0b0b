"""The folder for temporary files of tests and their servers: in memory, if there is room.

Copying an empty PostgreSQL database costs 0.2 CPU-seconds on a disk and 0.01 in memory, and each commit of
SQLite waits for the disk. No test needs a disk: tests kill processes, but do not cut the power.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")  # a folder that Linux keeps in memory
ROOM = 4 << 30  # a whole run takes a quarter of it


def keep_files_in_memory() -> None:
    """Sets TMPDIR to a folder in memory, unless it is set or the memory is small."""
    if "TMPDIR" not in os.environ and room_in(MEMORY) >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # cached


def room_in(folder: Path) -> int:
    """Returns the number of bytes that fit into a folder in memory; 0 when it cannot be written."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return 0
    found = os.statvfs(folder)
    return min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
