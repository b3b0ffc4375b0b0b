"""`gatelock` without extras: the standard library is enough, or the error names the extra to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.house.reading import ROOT, modules, within

# Imports each module afresh: without the modules of the gatekeeper that those before it have loaded. Prints
# the name and the error of each that fails.
PROBE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module("gatekeeper")
for name in sys.argv[2:]:
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "gatekeeper"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        print(name, type(error).__name__, error, sep="|")
"""
NAMES_ITS_EXTRA = re.compile(
    r"\|ImportError\|gatekeeper\.\S+ .*: (?:install \S+|pip install 'gatelock\[\w+\]')$"
)


def run_bare(code: str, *arguments: str) -> str:
    """Runs `code` in an interpreter without site-packages: third-party packages cannot be imported."""
    command = [sys.executable, "-ISc", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def failing_imports(root: Path, names: Sequence[str]) -> list[str]:
    """Returns the modules that cannot be imported and do not name what to install."""
    failed = run_bare(PROBE, str(root), *names).splitlines()
    return [line for line in failed if not NAMES_ITS_EXTRA.search(line)]


def test_the_gatekeeper_needs_the_standard_library_alone() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); had = set(sys.modules); import gatekeeper; "
    loaded = run_bare(code + "print(*set(sys.modules) - had)", str(ROOT)).split()
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"gatekeeper"}


def test_each_module_can_be_imported_or_names_what_to_install() -> None:
    names = [name for name in modules() if within(name, "gatekeeper")]
    assert len(names) > 50
    assert failing_imports(ROOT, names) == []


def test_a_module_that_needs_an_extra_without_naming_it_is_found(tmp_path: Path) -> None:
    package = tmp_path / "gatekeeper"
    package.mkdir()
    for name, content in {
        "__init__": "",
        "plain": "import json",
        "silent": "import sqlalchemy",
        "user": "from gatekeeper import silent",  # fails by itself, not because `silent` failed before it
        "polite": "raise ImportError(\"gatekeeper.polite needs Flask: pip install 'gatelock[flask]'\")",
    }.items():
        (package / f"{name}.py").write_text(content)
    names = [f"gatekeeper.{name}" for name in ("plain", "silent", "user", "polite")]
    error = "ModuleNotFoundError|No module named 'sqlalchemy'"
    assert failing_imports(tmp_path, names) == [f"gatekeeper.silent|{error}", f"gatekeeper.user|{error}"]


def test_nothing_is_required_and_these_are_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert set(project["optional-dependencies"]) == {
        *("sql", "postgres", "redis", "kafka", "analyzer", "demo", "parquet", "tui", "otel", "all"),
        *("django", "fastapi", "flask", "prometheus"),
    }


def test_every_requirement_is_pinned() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = (*settings["project"]["optional-dependencies"].values(), *settings["dependency-groups"].values())
    names = {
        re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower() for group in groups for requirement in group
    }
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert names - {"gatelock"} <= pinned, "run: make constraints"
