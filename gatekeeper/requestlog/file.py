"""A request log in a file, for an analyzer that follows it: whole lines, appended."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gatekeeper.requestlog.background_writer import WriteOutcome
from gatekeeper.requestlog.log_record import LogLine

MODE = 0o640  # it says who called, and when


class FileSink:
    """Appends to the file at `path`, which any number of processes may do at once: what one of them gives to
    the kernel in one piece stays in one piece.

    When the file is renamed or deleted a new one is begun. A line that a full disk or a SIGKILL has torn is
    ended before the next one begins, so that it costs nobody else's.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        if not lines:
            return WriteOutcome()
        text = b"".join([line.text for line in lines])
        trouble = ""
        try:
            descriptor = self._opened()
        except OSError as error:
            if self._descriptor is None:
                return WriteOutcome(trouble=f"{self._path} cannot be opened: {error}")
            # Whoever follows the file reads the one that was renamed as long as there is no other.
            descriptor, trouble = self._descriptor, f"{self._path} cannot be begun anew: {error}"
        whole, failed = _append(descriptor, text)
        if failed is not None:
            trouble = f"{self._path} cannot be written: {failed}"
        return WriteOutcome(whole, whole, trouble=trouble)

    def _opened(self) -> int:
        """The descriptor of what is at our path now. Raises OSError."""
        if self._descriptor is not None and _is_at(self._path, self._descriptor):
            return self._descriptor
        descriptor = _open(self._path)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor
        return descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def forked(self) -> None:
        """Each write is at the file's end, whoever else has it open."""


def _open(path: Path) -> int:
    # Not to wait for a reader that a pipe lacks; files know no such thing.
    flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    is_pipe = path.exists() and not path.is_file()  # /dev/stdout, perhaps
    return os.open(path, flags | (os.O_WRONLY if is_pipe else os.O_RDWR), MODE)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _append(descriptor: int, text: bytes) -> tuple[int, OSError | None]:
    """How many whole lines of `text` were written, and what went wrong if that is not all of them."""
    written = 0
    try:
        ending = b"\n" if _is_torn(descriptor) else b""
        written = -len(ending)
        while written < len(text):
            written += os.write(descriptor, ending + text if written < 0 else text[written:])
    except OSError as error:
        return text.count(b"\n", 0, max(0, written)), error
    return text.count(b"\n"), None


def _is_torn(descriptor: int) -> bool:
    """Whether the file ends within a line."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    return os.pread(descriptor, 1, status.st_size - 1) not in (b"\n", b"")
