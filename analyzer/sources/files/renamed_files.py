"""Finds a followed file that was renamed, by its content, in the folder in which it was followed."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import NamedTuple

from analyzer.kernel.errors import LogUnreadable
from analyzer.kernel.model import Partition
from analyzer.sources.files.compressed_files import open_log
from analyzer.sources.files.file_sources import READ_ERRORS
from analyzer.sources.files.replayed_lines import counted_file
from analyzer.sources.positions import PositionStore

READ_BYTES = 1 << 20


class RenamedFile(NamedTuple):
    """A file under its name by now, and how many bytes of its plain content are not counted."""

    path: Path
    uncounted: int


def find_renamed(part: Partition, positions: PositionStore, host: str = "") -> RenamedFile | None:
    """Returns the file that was counted as `part`; None if it is not in the folder, or not on this machine.

    `host` is that of its source. Reads files whose names begin with that of `part` as far as they were
    counted. Raises StoreAway.
    """
    followed = Path(part.topic)
    for path in sorted(followed.parent.glob(f"{glob.escape(followed.name)}?*")):
        try:
            counted = counted_file(path, part.source, host, positions)
            if counted.part.topic_id == part.topic_id:
                return RenamedFile(path, _plain_bytes(path) - counted.next)
        except (LogUnreadable, *READ_ERRORS):
            continue
    return None


def _plain_bytes(path: Path) -> int:
    with open_log(path) as stream:
        return sum(map(len, iter(lambda: stream.read(READ_BYTES), b"")))
