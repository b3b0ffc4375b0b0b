"""What is shipped beside the code: the example and the page are of this version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analyzer.config.diagnostics.pydantic_errors import SECTIONS, TABLES
from analyzer.config.settings import load
from analyzer.config.tables.fields import PlainEntry
from analyzer.core.judging.windows import Calendar

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE = ROOT / "deploy" / "gatelock.toml"


def test_the_example_is_without_fault_and_says_what_it_means() -> None:
    settings = load(EXAMPLE)
    (policy,) = settings.plan().policies
    assert (policy.limit, policy.window) == (100_000, Calendar("day", "Europe/Berlin"))
    assert settings.mappings()["access-log"].caller == ("api_key", "user", "address")


def test_what_the_example_shows_in_comments_is_without_fault_too(tmp_path: Path) -> None:
    told = re.sub(r"(?m)^# ?(?=[a-z_0-9]+ *= )", "", EXAMPLE.read_text())
    assert 'assign          = "all"' in told
    for name in ("database-url", "kafka-password"):
        (tmp_path / name).write_text("postgresql+psycopg://ada:secret@db/gatelock")
    file = tmp_path / "gatelock.toml"
    file.write_text(told.replace("/run/secrets", str(tmp_path)))
    settings = load(file)
    assert settings.kafka.assign == "all"
    assert settings.sources[0].start == "latest"
    assert settings.plan().groupings == ("caller", "caller+resource")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_table_has_its_heading(section: str) -> None:
    assert re.search(rf"(?m)^## `\[+{section}\]+`$", PAGE)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (".".join(table), field.alias or name)
        for table, model in {**TABLES, ("sources", "fields", "*"): PlainEntry}.items()
        for name, field in model.model_fields.items()
    ],
)
def test_every_key_is_described(table: str, key: str) -> None:
    assert re.search(rf"\b{key}\b", PAGE), f"{key} of [{table}]"
