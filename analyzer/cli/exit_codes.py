"""How a command ends: one clear sentence and an exit code, never a traceback for what a person can mend."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

FINE, FOUND, USAGE, AWAY = 0, 1, 2, 3
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
LOOK = "look at [database] url, or name another configuration with --config"


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn our own errors into their sentence on stderr: 3 when something cannot be reached, else 2."""
    from analyzer.config.secrets import masked
    from analyzer.errors import AnalyzerError, StoreAway

    try:
        yield
    except AnalyzerError as error:
        away = isinstance(error, StoreAway)
        typer.echo(masked(f"cannot reach the database: {error}; {LOOK}" if away else str(error)), err=True)
        raise typer.Exit(AWAY if away else USAGE) from error
    except BrokenPipeError:
        _write_no_more()  # whoever read us (`| head`) has seen enough
        raise typer.Exit(FINE) from None
    except OSError as error:
        if error.errno not in FULL:
            raise
        _write_no_more()
        typer.echo(f"the output cannot be written: {error.strerror}", err=True)
        raise typer.Exit(AWAY) from error


def _write_no_more() -> None:
    """What Python flushes at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def usage_error(sentence: str) -> typer.Exit:
    """The end of a command that was asked for what cannot be: raise it."""
    typer.echo(sentence, err=True)
    return typer.Exit(USAGE)
