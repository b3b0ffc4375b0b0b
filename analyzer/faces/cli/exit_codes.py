"""Exit codes, and errors as one sentence on stderr instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from click.exceptions import Exit

from analyzer.faces.cli.output import say

FINE, FOUND, USAGE, UNREACHABLE, BUG = 0, 1, 2, 3, 4
MESSAGE_CHARS_MAX = 300  # of an unexpected error, in its sentence; its details have all of it
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Prints errors that an operator can act on, and exits with a code.

    0 if the reader closed the pipe, 3 if the database cannot be reached or refuses, or the output cannot be
    written, else 2.
    """
    from analyzer.kernel.errors import AnalyzerError, StoreAway, StoreRefused

    try:
        yield
    except AnalyzerError as error:
        from analyzer.config.tables.database import CHECK_URL
        from analyzer.kernel.secrets import masked

        is_away = isinstance(error, StoreAway)
        is_reached = not is_away or isinstance(error, StoreRefused)
        sentence = str(error) if is_reached else f"cannot reach the database: {error}; {CHECK_URL}"
        say(masked(sentence), err=True)
        raise Exit(UNREACHABLE if is_away else USAGE) from error
    except BrokenPipeError:
        _discard_output()  # the reader, such as `| head`, has closed the pipe
        raise Exit(FINE) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _discard_output()
        say(f"the output cannot be written: {error.strerror}", err=True)
        raise Exit(UNREACHABLE) from error


def report_bug(error: Exception) -> int:
    """Prints an error that no command expects as one sentence, and returns the exit code of the process.

    Its details, without passwords, are written to a file that only this user can read.
    """
    import traceback

    from analyzer.kernel.secrets import masked

    message = masked(" ".join(f"{type(error).__name__}: {error}".split()))
    if len(message) > MESSAGE_CHARS_MAX:
        message = f"{message[:MESSAGE_CHARS_MAX]} ..."
    details = masked("".join(traceback.format_exception(error)))
    say(f"an error in gatelock itself: {message}; {_written(details)}", err=True)
    return BUG


def _written(details: str) -> str:
    """Writes the details of an error; returns a phrase that says where they are."""
    import platform
    import tempfile
    from importlib.metadata import version

    heading = f"gatelock {version('gatelock')}, Python {platform.python_version()}, {platform.platform()}\n"
    try:
        number, path = tempfile.mkstemp(prefix="gatelock-error-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(heading + details)
    except OSError as error:
        return f"its details cannot be written to {tempfile.gettempdir()}: {error.strerror}; set $TMPDIR"
    return f"its details are in {path}; please report it with them"


def _discard_output() -> None:
    """Lets the flush of stdout at exit succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage_error(sentence: str) -> Exit:
    """Prints the sentence, and returns the exit of a command with impossible arguments, to be raised."""
    say(sentence, err=True)
    return Exit(USAGE)
