"""The numbers of the rules, changed one at a time in a copy: the tables of cases notice each change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FAILED = 1  # pytest's code when tests have failed, and not of errors in their collection


class Mutation(NamedTuple):
    """A change of one place in the code, and the file of tests that notices it."""

    what: str
    file: str
    old: str
    new: str
    caught_by: str


MUTATIONS = [
    Mutation(**table)
    for table in tomllib.loads((HERE / "rule_mutations.toml").read_text("utf-8"))["mutations"]
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and of the tests of judging, whose own files are imported."""
    root = tmp_path_factory.mktemp("mutated")
    for package in ("analyzer", "gatekeeper"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "core").mkdir(parents=True)
    for name in ("__init__.py", "budget.toml", "conftest.py", "support"):
        (root / "tests" / name).symlink_to(ROOT / "tests" / name)
    shutil.copytree(HERE, root / "tests" / "core" / "judging")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def passed(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Runs a file of tests in the copy, as it is now."""
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-qx", "-pno:cacheprovider", f"tests/core/judging/{tests}"],
        cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[one.what for one in MUTATIONS])
def test_each_mutation_stands_for_one_place_in_the_code(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text("utf-8").count(mutation.old) == 1
    assert (HERE / mutation.caught_by).is_file()
    assert mutation.old != mutation.new


@pytest.mark.deep("a process of pytest for each")
@pytest.mark.parametrize("tests", sorted({one.caught_by for one in MUTATIONS}))
def test_without_a_mutation_the_copy_passes(copy: Path, tests: str) -> None:
    run = passed(copy, tests)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.deep("a process of pytest for each")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[one.what for one in MUTATIONS])
def test_a_mutation_is_caught(copy: Path, mutation: Mutation) -> None:
    file = copy / mutation.file
    text = file.read_text("utf-8")
    file.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    try:
        run = passed(copy, mutation.caught_by)
    finally:
        file.write_text(text, "utf-8")
    assert run.returncode == FAILED, f"it survives: {run.stdout}{run.stderr}"
