"""Commands of `gatelock`, in this process or on a terminal."""

from __future__ import annotations

import os
import pty
import tempfile
from collections.abc import Sequence

from click.testing import CliRunner, Result

from analyzer.faces.cli import app
from tests.support.gatelock_processes import GatelockProcess
from tests.support.waiting import PATIENCE_S


def run_command(arguments: Sequence[str], stdin: str | None = None) -> Result:
    """Runs `gatelock` with these arguments; returns its output, exit code and exception."""
    return CliRunner().invoke(app, arguments, input=stdin)


def on_a_terminal(*arguments: str, answer: str) -> tuple[int, str, str]:
    """Runs a command on a terminal and answers its question; returns exit code, standard output, terminal."""
    terminal, end = pty.openpty()
    with tempfile.TemporaryFile("w+") as output:
        child = GatelockProcess(arguments, stdin=end, stdout=output, stderr=end)
        os.close(end)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 1_000)  # raises OSError when the command ends without a question
        os.write(terminal, answer.encode() + b"\n")
        code = child.wait(PATIENCE_S)
        output.seek(0)
        printed = output.read()
    os.close(terminal)
    return code, printed, shown.decode()
