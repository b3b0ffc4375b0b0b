"""Commands of the pages for operators run as they are written, on an installation with counts and a lock."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.house.reading import ROOT
from tests.support.command_line import run_command

PAGES = (
    *("troubleshooting", "upgrading", "backup", "doctor", "reports", "gaps"),
    *("operating", "delays", "security", "policies"),
)
INLINE = re.compile(r"`(gatelock [^`\n]+)`")
BLOCK = re.compile(r"^(?:    |\$ )*(gatelock .+?)(?: +#.*)?$", re.MULTILINE)
# They run until a signal, need a terminal or Kafka's partitions, or have their own test.
ELSEWHERE = re.compile(
    r"gatelock (run|serve|demo|upkeep sources resume|upkeep rejects (show|retry|export)|upkeep import|init"
    r"|restore (check|days))\b|gatelock top$"
)
PLACEHOLDERS = {
    "INCIDENT": "INC-1",
    "TEXT": "a reason",
    "SOURCE": "web",
    "COMMAND": "usage",
    "...": "2015-01-01",
}
CONFIGURATION = """
[database]
url = "sqlite:///gatelock.db"
[[sources]]
name = "web"
file = "requests.jsonl"
groupings = ["caller+resource"]
[sources.fields]
time = { path = "ts", unit = "s" }
api_key = "key"
resource = "path"
[[policies]]
name = "daily"
limit = 2
window = { per = "day" }
"""


def commands_of(page: str) -> list[str]:
    """The commands of a page in order, each once, without those that another test runs."""
    path = ROOT / "docs" / f"{page}.md"
    text = path.read_text() if path.exists() else ""
    found = [*INLINE.findall(text), *BLOCK.findall(text)]
    return [command for command in dict.fromkeys(found) if not ELSEWHERE.match(command)]


def words_of(command: str) -> list[str]:
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(command, comments=True)[1:]]


@pytest.fixture
def gatelock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command in a folder with a configuration, a database, three requests and their lock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    Path("gatelock.toml").write_text(CONFIGURATION)
    request = {"ts": int(time.time()), "key": "acme", "path": "/hello"}
    Path("requests.jsonl").write_text(f"{json.dumps(request)}\n" * 3)
    Path("access.log.gz").write_bytes((ROOT / "tests/data/apache_combined_10k.log.gz").read_bytes())

    def gatelock(*arguments: str) -> Any:
        return run_command(arguments)

    assert gatelock("upkeep", "import", "requests.jsonl", "--source", "web").exit_code == 0
    assert gatelock("policies", "apply").exit_code == 0
    return gatelock


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, gatelock: Callable[..., Any]) -> None:
    """Found, or nothing to change, but neither wrong usage nor unreachable."""
    commands = commands_of(page)
    assert commands
    for command in commands:
        result = gatelock(*words_of(command))
        if "confirm with --yes" in result.output:  # a terminal would have asked
            result = gatelock(*words_of(command), "--yes")
        assert result.exit_code in (0, 1), f"{page}: {command}: {result.output}"
        assert result.exception is None or isinstance(result.exception, SystemExit), command
