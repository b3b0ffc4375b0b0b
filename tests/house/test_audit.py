"""`.ci/audit`: an advisory fails the build, an index that cannot be reached is reported and does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.reading import ROOT

FINE = {"name": "h11", "version": "0.16.0", "vulns": []}
BAD = {"name": "h2", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "h3", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("dependencies", "code", "words"),
    [
        ([FINE], 0, "1 packages audited, 0 advisories"),
        ([FINE, BAD], 1, "h2 1: PYSEC-1; mended in: 2"),
        ([FINE, UNKNOWN], 0, "NOT AUDITED: 1 packages: h3"),
        ([UNKNOWN], 0, "NOT AUDITED: no index of advisories could be used: not found"),
        (None, 0, "NOT AUDITED: no index of advisories could be used: connection refused"),
    ],
)
def test_an_advisory_fails_and_a_missing_index_is_reported(
    tmp_path: Path, dependencies: list[object] | None, code: int, words: str
) -> None:
    uv = tmp_path / "uv"
    answer = "" if dependencies is None else json.dumps({"dependencies": dependencies})
    uv.write_text(
        f"#!{sys.executable}\nimport sys\nprint({answer!r})\nprint('connection refused', file=sys.stderr)\n"
    )
    uv.chmod(0o755)
    found = subprocess.run([ROOT / ".ci" / "audit", uv], capture_output=True, text=True)
    assert words in found.stdout
    assert found.returncode == code


def test_every_pinned_package_has_hashes() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pinned = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(pinned) > 50
    assert [one.split()[0] for one in pinned if "--hash=sha256:" not in one] == []
