"""The tutorial runs as it is written: from an empty folder to the first refusal and its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.house.reading import ROOT
from tests.support.servers.child import accepts, free_port
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent


def block(part: str, kind: str = "") -> str:
    """The only block of this kind with this text."""
    (found,) = [text for named, text in BLOCKS if named == kind and part in text]
    return str(found)


class Tutorial:
    """A reader of the page: runs its blocks in a shell, in one folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "GATELOCK_ANALYZER__HTTP": "off",  # the default port may be in use here
        }

    def shell(self, commands: str) -> str:
        ran = subprocess.run(
            ["bash", "-ec", self.local(commands)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    @contextmanager
    def terminal(self, command: str) -> Iterator[None]:
        """Runs a command until the end of the block."""
        with (self.folder / "terminal.log").open("ab") as output:
            child = subprocess.Popen(
                self.local(command).split(),
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        try:
            yield
            assert child.poll() is None, (self.folder / "terminal.log").read_text()
        finally:
            child.terminate()
            child.wait(20)

    def local(self, commands: str) -> str:
        """The commands with a port that is free on this machine."""
        return commands.replace("8000", str(self.port))


@pytest.mark.slow
def test_from_an_empty_folder_to_the_first_refusal_and_its_end(tmp_path: Path) -> None:
    tutorial = Tutorial(tmp_path, free_port())
    (tmp_path / "app.py").write_text(block("RequestLog", "python"))
    tutorial.shell(block("gatelock init"))
    file = tmp_path / "gatelock.toml"
    begin, _, _ = file.read_text().partition("[[policies]]")
    file.write_text(begin + block("minutely", "toml"))
    assert "at most 20 requests" in tutorial.shell(block("gatelock check"))
    with tutorial.terminal(block("gatelock run")), tutorial.terminal(block("uvicorn")):
        wait_until(lambda: accepts(tutorial.port), 30)
        answers: list[str] = []
        reading = block("gatelock doctor").replace("gatelock doctor", "gatelock doctor || true")

        def is_refused_and_shown() -> bool:
            answers.extend(tutorial.shell(block("seq 40")).split())
            shown = tutorial.shell(reading)
            assert re.search(r" \*\tapi_key:acme\t\d+\t\d+\n", shown)
            is_locked = re.search(r"caller\tapi_key:acme\t\tminutely\tdeny 429", shown)
            return 'denied;policy="minutely"' in shown and is_locked is not None

        wait_until(is_refused_and_shown, 150, lambda: answers)  # again, where a minute ended in between
        assert answers[0] == "200"
        assert set(answers) == {"200", "429"}
        suspend, ask, resume = block("suspend").strip().splitlines()
        tutorial.shell(suspend)
        wait_until(lambda: tutorial.shell(ask).strip() == "200", 20)
        assert "enforce their locks again" in tutorial.shell(resume)


def test_the_extra_of_the_tutorial_exists() -> None:
    (extra,) = re.findall(r"pip install '\.\[(\w+)\]'", PAGE)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
