"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import file_digest, sha256
from pathlib import Path

from analyzer.billing.reports.manifest import WrittenFile


def write_whole(file: Path, content: Iterable[bytes]) -> WrittenFile:
    """Writes a file beside its place, and moves it there when it is on the disk; returns its digest.

    What was there before stays until then, and after an error. Raises OSError.
    """
    being_written = file.with_name(f".{file.name}.{os.getpid()}")
    digest, size = sha256(), 0
    try:
        with being_written.open("wb") as out:
            for part in content:
                out.write(part)
                digest.update(part)
                size += len(part)
            out.flush()
            os.fsync(out.fileno())
        being_written.replace(file)
    finally:
        being_written.unlink(missing_ok=True)
    _sync_folder(file.parent)
    return WrittenFile(file.name, size, digest.hexdigest())


def file_at(file: Path) -> WrittenFile | None:
    """Returns what is at a path: its size and digest; None if nothing is there. Raises OSError."""
    try:
        with file.open("rb") as stream:
            digest = file_digest(stream, "sha256")
            return WrittenFile(file.name, stream.tell(), digest.hexdigest())
    except FileNotFoundError:
        return None


def _sync_folder(folder: Path) -> None:
    """Has the new name survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
