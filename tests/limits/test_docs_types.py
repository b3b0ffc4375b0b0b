"""Each example of the limiters' documents passes `mypy --strict`, as do docs/examples and the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/limiters.md", "docs/limiters-fleet.md")


def test_every_line_of_the_documents_passes_mypy_strict(tmp_path: Path):
    modules: list[Path] = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            modules.append(tmp_path / f"{re.sub(r'[^a-z]', '_', page)}_{number}.py")
            modules[-1].write_text(block)
    assert len(modules) > 8
    examples = sorted((ROOT / "docs" / "examples").glob("*.py"))
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", str(tmp_path / "mypy.ini")),
            *("--cache-dir", str(ROOT / ".cache" / "mypy-docs"), "--no-error-summary"),
            *map(str, [*modules, *examples]),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0
