"""Commands of `gatelock` in this process.

Typer builds all commands for each call, ten times as long as most of them take: here it builds them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from unittest.mock import patch

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from analyzer.cli import app

built = cache(get_command)


def run_command(arguments: Sequence[str]) -> Result:
    """Runs `gatelock` with these arguments; returns its output, exit code and exception."""
    with patch.object(typer.testing, "_get_command", built):
        return CliRunner().invoke(app, arguments)
