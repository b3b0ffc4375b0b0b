"""A request log in a file, for an analyzer that follows it: appends whole lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gatekeeper.requestlog.background_writer import WriteOutcome
from gatekeeper.requestlog.log_record import LogLine

__all__ = ["FileSink"]

MODE = 0o640  # the log shows who called, and when


class FileSink:
    r"""Appends lines to a file, which any number of processes may do at once.

    Each write stays in one piece, because the file is opened with O_APPEND.

    When the file is renamed or deleted, the next write creates a new one. After a line that a full disk or a
    SIGKILL has torn, a newline is written first, so that the torn line spoils no other.

    Args:
        path: The file, also /dev/stdout; created with mode 0640.

    Example:
        >>> import tempfile
        >>> from gatekeeper.requestlog.log_record import LogLine
        >>> folder = tempfile.TemporaryDirectory()
        >>> sink = FileSink(Path(folder.name) / "requests.log")  # RequestLog(app, to=sink)
        >>> sink.write([LogLine(b'{"path":"/"}\n', key="")]).written
        1
        >>> sink.close(), folder.cleanup()
        (None, None)
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    def write(self, lines: Sequence[LogLine]) -> WriteOutcome:
        """Appends `lines`; takes only those that were written whole."""
        if not lines:
            return WriteOutcome()
        text = b"".join([line.text for line in lines])
        trouble = ""
        try:
            descriptor = self._open_current()
        except OSError as error:
            if self._descriptor is None:
                return WriteOutcome(trouble=f"{self._path} cannot be opened: {error}")
            # An analyzer that follows the path reads the renamed file until there is another.
            descriptor, trouble = self._descriptor, f"{self._path} cannot be created again: {error}"
        whole, failed = _append(descriptor, text)
        if failed is not None:
            trouble = f"{self._path} cannot be written: {failed}"
        return WriteOutcome(whole, whole, trouble=trouble)

    def _open_current(self) -> int:
        """Returns the descriptor of the file that is at the path now. Raises OSError."""
        if self._descriptor is not None and _is_at(self._path, self._descriptor):
            return self._descriptor
        descriptor = _open(self._path)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor
        return descriptor

    def close(self) -> None:
        """Closes the file; a later `write` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def forked(self) -> None:
        """Does nothing: processes may share a descriptor that appends."""


def _open(path: Path) -> int:
    # O_NONBLOCK: a pipe without a reader fails at once instead of blocking. It has no effect on files.
    flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    is_pipe = path.exists() and not path.is_file()  # such as /dev/stdout
    return os.open(path, flags | (os.O_WRONLY if is_pipe else os.O_RDWR), MODE)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _append(descriptor: int, text: bytes) -> tuple[int, OSError | None]:
    """Returns the number of whole lines of `text` that were written, and the error if not all were."""
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
