"""The packages' source, read without importing it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("analyzer", "gatekeeper")


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the packages."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and full name of all that is imported here, inside functions and for types alone too.

        `from a.b import c` is a.b.c, whether c is a module or something in one: rules are about
        what a name begins with.
        """
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    yield from ((node.lineno, alias.name) for alias in node.names)
                case ast.ImportFrom():
                    assert not node.level, f"{self.name}: a relative import"
                    yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@cache
def modules() -> dict[str, Module]:
    """Every module of both packages by its dotted name."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(), path))
    return found


def within(name: str, *rooms: str) -> bool:
    """Whether `name` is one of `rooms` or below one.

    A file that outgrew itself counts by its first word: kafka_raw is within kafka.
    """
    return any(name == room or name.startswith((f"{room}.", f"{room}_")) for room in rooms)


def tracked_files() -> list[Path]:
    """What git knows of, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
