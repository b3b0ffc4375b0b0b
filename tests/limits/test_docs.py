"""What docs/limits.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gatekeeper.limits

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.strip().splitlines()[-1][:40] for block in BLOCKS])
def test_an_example_of_the_page_runs(block: str):
    exec(compile(block, "docs/limits.md", "exec"), {})  # noqa: S102 - that is the test


def test_every_public_limiter_is_on_the_page():
    values = {"Key", "Limiter", "Reservation"}
    missing = [name for name in gatekeeper.limits.__all__ if f"{name}(" not in PAGE and name not in values]
    assert not missing
