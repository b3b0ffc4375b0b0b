"""What an application gets that installs `gatelock` without extras."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.house.reading import ROOT, modules, within

GATEKEEPER = [name for name in modules() if within(name, "gatekeeper")]


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where the standard library and this repository are all there is to import."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    return subprocess.run([sys.executable, "-ISc", start], capture_output=True, text=True, check=False)


def test_the_gatekeeper_stands_on_the_standard_library_alone() -> None:
    ran = run_bare("had = set(sys.modules); import gatekeeper; print(*set(sys.modules) - had)")
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"gatekeeper"}, ran.stderr


@pytest.mark.parametrize("name", GATEKEEPER)
def test_a_module_starts_bare_or_names_what_to_install(name: str) -> None:
    ran = run_bare(f"import {name}")
    assert ran.returncode == 0 or re.search(r"ImportError: gatekeeper\.\S+ .*: install \S+", ran.stderr), (
        ran.stderr
    )


def test_extras_are_asked_for_and_nothing_is_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert set(project["optional-dependencies"]) == {
        *("sql", "postgres", "redis", "kafka", "analyzer", "demo", "all"),
        *("django", "fastapi", "flask"),
    }


def test_everything_that_is_asked_for_is_pinned() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = (*settings["project"]["optional-dependencies"].values(), *settings["dependency-groups"].values())
    names = {re.split(r"[^\w.-]", wanted, maxsplit=1)[0].lower() for group in groups for wanted in group}
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert names - {"gatelock"} <= pinned, "run: make constraints"
