"""Notices that a file has changed, by its metadata.

Editors and copies write a file in steps: they truncate it and write, or delete it and rename another one. So
a change counts when two looks in a row have seen the same. A symbolic link stands for the file that it leads
to, which is how Kubernetes replaces the files of a ConfigMap.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FileState(NamedTuple):
    """The metadata that change whenever a file does."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int  # of content or metadata: also where a copy keeps the time of modification


class FileWatch:
    """Compares the metadata of a file with those that it had when it was last read.

    Args:
        file: The file; None: there is none, and nothing changes. Create the watch before the file is read for
            the first time, so that no change is missed between the two.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._read = self._seen = self.state()

    def state(self) -> FileState | None:
        """Returns the metadata of now; None where the file is missing or may not be read."""
        if self.file is None:
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def has_changed(self) -> bool:
        """Whether the file is another one than was last read, and the same as at the last look."""
        previous, self._seen = self._seen, self.state()
        return self._seen == previous and self._seen != self._read

    def is_read(self, state: FileState | None) -> bool:
        """Notes that the file was read when it had `state`; returns whether it has it still.

        False: it was written meanwhile, and what was read may be a part of it. The next looks find it.
        """
        self._seen = self.state()
        if self._seen == state:
            self._read = state
        return self._seen == state
