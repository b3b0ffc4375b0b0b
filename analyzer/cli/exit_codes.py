"""Exit codes, and errors as one sentence on stderr instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from analyzer.cli.output import say

FINE, FOUND, USAGE, UNREACHABLE = 0, 1, 2, 3
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Prints errors that an operator can act on, and exits with a code.

    0 if the reader closed the pipe, 3 if the database cannot be reached or refuses, or the output cannot be
    written, else 2.
    """
    from analyzer.errors import AnalyzerError, StoreAway, StoreRefused

    try:
        yield
    except AnalyzerError as error:
        from analyzer.config.secrets import masked
        from analyzer.config.tables.database import CHECK_URL

        is_away = isinstance(error, StoreAway)
        is_reached = not is_away or isinstance(error, StoreRefused)
        sentence = str(error) if is_reached else f"cannot reach the database: {error}; {CHECK_URL}"
        say(masked(sentence), err=True)
        raise typer.Exit(UNREACHABLE if is_away else USAGE) from error
    except BrokenPipeError:
        _discard_output()  # the reader, such as `| head`, has closed the pipe
        raise typer.Exit(FINE) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _discard_output()
        say(f"the output cannot be written: {error.strerror}", err=True)
        raise typer.Exit(UNREACHABLE) from error


def _discard_output() -> None:
    """Lets the flush of stdout at exit succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage_error(sentence: str) -> typer.Exit:
    """Prints the sentence, and returns the exit of a command with impossible arguments, to be raised."""
    say(sentence, err=True)
    return typer.Exit(USAGE)
