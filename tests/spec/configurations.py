"""The configurations in docs/spec, with what each one says about its result.

    \\* Two analyzers take a caller across its limit together.
    \\* Result: holds, 2,002 states
    \\* Checked by make test.

The module's name is the part of the file's name before the first hyphen.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.tlc import Outcome

FOLDER = Path(__file__).parents[2] / "docs" / "spec"
HOLDS = re.compile(r"^\\\* Result: holds, ([\d,]+) states$", re.MULTILINE)
VIOLATES = re.compile(r"^\\\* Result: violates (.+) in (\d+) states$", re.MULTILINE)
IN_TESTS = "\\* Checked by make test."


class Configuration(NamedTuple):
    """One configuration of one module, and the result that TLC must find."""

    path: Path
    module: Path
    expected: Outcome
    is_in_tests: bool

    @property
    def name(self) -> str:
        return self.path.stem


def configurations() -> list[Configuration]:
    """Returns all configurations, by name."""
    return [configuration_at(path) for path in sorted(FOLDER.glob("*.cfg"))]


def configuration_at(path: Path) -> Configuration:
    text = path.read_text()
    if holds := HOLDS.search(text):
        expected = Outcome("", int(holds[1].replace(",", "")))
    else:
        violates = VIOLATES.search(text)
        assert violates, f"{path}: no line about the result"
        expected = Outcome(violates[1], int(violates[2]))
    module = path.with_name(f"{path.stem.partition('-')[0]}.tla")
    return Configuration(path, module, expected, IN_TESTS in text)
