"""The example configuration and the headings of its page agree with this version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analyzer.config.diagnostics.pydantic_errors import SECTIONS
from analyzer.config.settings import load
from analyzer.plan.windows import Calendar

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE = ROOT / "deploy" / "gatelock.toml"


def test_the_example_has_no_fault() -> None:
    settings = load(EXAMPLE)
    (policy,) = settings.plan().policies
    assert (policy.limit, policy.window) == (100_000, Calendar("day", "Europe/Berlin"))
    assert settings.mappings()["access-log"].caller == ("api_key", "user", "address")


def test_the_example_has_no_fault_with_its_comments_made_settings(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^# ?(?=[a-z_0-9]+ *= )", "", EXAMPLE.read_text())
    assert 'assign          = "all"' in text
    for name in ("database-url", "kafka-password"):
        (tmp_path / name).write_text("postgresql+psycopg://ada:secret@db/gatelock")
    file = tmp_path / "gatelock.toml"
    file.write_text(text.replace("/run/secrets", str(tmp_path)))
    settings = load(file)
    assert settings.kafka.assign == "all"
    assert settings.sources[0].start == "latest"
    assert settings.plan().groupings == ("caller", "caller+resource")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_a_heading(section: str) -> None:
    assert re.search(rf"(?m)^## `\[+{section}\]+`$", PAGE)
