"""Processes of `gatelock` that are forks of a server behave as those that an interpreter starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.gatelock_processes import GatelockProcess, run_gatelock, used_s

CONFIGURATION = '[database]\nurl = "sqlite:///{name}.db"\n'


def started_alone(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analyzer.faces.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("arguments", [("--version",), ("usage", "--width", "fortnight"), ("usage",)])
def test_code_and_outputs_are_those_of_an_interpreter(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "gatelock.toml").write_text(CONFIGURATION.format(name="here"))
    alone, forked = started_alone(*arguments, folder=tmp_path), run_gatelock(*arguments, folder=tmp_path)
    assert forked.returncode == alone.returncode
    assert (forked.stdout, forked.stderr) == (alone.stdout, alone.stderr)


def test_a_process_has_the_environment_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text(CONFIGURATION.format(name="elsewhere"))
    given = run_gatelock("usage", folder=tmp_path, env={"GATELOCK_CONFIG": str(file), "PATH": ""})
    assert "elsewhere.db does not exist" in given.stderr
    assert "elsewhere.db" not in run_gatelock("usage", folder=tmp_path).stderr


def test_signals_and_the_end_of_one_process_are_its_own(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as output:
        reading, writing = os.pipe()
        waiting = [GatelockProcess(["look", "-"], stdin=reading, stdout=output) for _ in range(2)]
        assert [child.poll() for child in waiting] == [None, None]
        with pytest.raises(subprocess.TimeoutExpired):
            waiting[0].wait(0.01)
        before_s = used_s()
        waiting[0].kill()
        assert waiting[0].wait(20) == -signal.SIGKILL
        assert used_s() > before_s, "counted when it has ended"
        assert waiting[1].poll() is None
        os.close(reading)
        os.close(writing)  # the end of its standard input
        assert waiting[1].wait(20) >= 0
        waiting[1].kill()  # nothing: it has ended
        assert waiting[1].poll() == waiting[1].returncode
