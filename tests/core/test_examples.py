"""The examples in docstrings run, and docs/spec/counter.md names every reason, status, unit and part."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import get_args

import pytest

from analyzer.counting.records.combined_format import FIELDS, TIME
from analyzer.kernel.model import FeedStatus, RejectReason
from analyzer.plan.mapping import TimeUnit
from tests.house.reading import PURE, modules, within

PAGE = (Path(__file__).parents[2] / "docs" / "spec" / "counter.md").read_text()
MODULES = [name for name in modules() if within(name, *PURE)]


@pytest.mark.parametrize("name", [*MODULES, "gatekeeper.identity"])
def test_every_example_has_the_result_that_it_shows(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_contract_names_every_reason_status_unit_and_part() -> None:
    named = set(re.findall(r"`([^`]+)`", PAGE))
    wanted = {*get_args(RejectReason), *get_args(FeedStatus), *get_args(TimeUnit), *FIELDS, *TIME.path} - {
        "ok"
    }
    assert wanted - named == set()
