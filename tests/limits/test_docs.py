"""Examples in docs/limiters.md run, and its tables and links are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gatekeeper.limits
from tests.limits.burst_picture import picture

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limiters.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.strip().splitlines()[-1][:40] for block in BLOCKS])
def test_an_example_of_the_page_runs(block: str):
    names: dict[str, object] = {}
    exec(compile(block, "docs/limiters.md", "exec"), names)  # noqa: S102 - that is the test
    assert names.keys() - {"__builtins__"}, "it defines nothing"


def test_every_public_limiter_is_on_the_page():
    not_called = {"Key", "Limiter", "QueueEvent", "Reservation", "Share", "WaitingJob"}
    missing = [
        name for name in gatekeeper.limits.__all__ if f"{name}(" not in PAGE and name not in not_called
    ]
    assert not missing


def test_the_picture_shows_the_admissions():
    assert picture() in PAGE


def test_the_tests_on_the_page_pass(pytester: pytest.Pytester):
    shown = next(block for block in BLOCKS if block.startswith("# test_uploads.py"))
    pytester.makepyfile(test_uploads=shown)
    pytester.runpytest_subprocess("-q", "-W", "error").assert_outcomes(passed=3)


@pytest.mark.parametrize("name", re.findall(r"\]\((examples/[\w.]+)\)", PAGE))
def test_every_linked_example_exists(name: str):
    assert (ROOT / "docs" / name).is_file()
