"""Errors that no command expects: one sentence, a file with details, and a dedicated exit code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
from pydantic import BaseModel, ValidationError

from analyzer.faces import cli
from analyzer.faces.cli import main
from analyzer.faces.cli.exit_codes import BUG


class Model(BaseModel):
    """A model whose faults are none of the operator's."""

    number: int


def raise_validation_error(**_options: object) -> None:
    Model.model_validate({"number": "postgresql://ada:s3cret@db/x"})


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["gatelock", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command line whose `demo` fails by a fault of the program; returns the folder for temporary files."""
    command = cli.app.get_command(click.Context(cli.app), "demo")
    monkeypatch.setattr(command, "callback", raise_validation_error)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_unexpected_error_is_one_sentence_with_where_its_details_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: Path
) -> None:
    assert run_main(monkeypatch, "demo") == BUG == 4
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("an error in gatelock itself: ValidationError: 1 validation error for Model")
    found = re.search(r"its details are in (\S+gatelock-error-\S+\.txt); please report", sentence)
    assert found is not None
    details = Path(found[1])
    assert details.parent == broken
    assert details.stat().st_mode & 0o077 == 0
    assert "in raise_validation_error" in details.read_text()
    assert ValidationError.__name__ in details.read_text()
    assert "s3cret" not in sentence + details.read_text()


def test_details_that_cannot_be_written_say_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(broken / "missing"))
    assert run_main(monkeypatch, "demo") == BUG
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "its details cannot be written to" in sentence
    assert "No such file or directory; set $TMPDIR" in sentence


def test_expected_ends_keep_their_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "--version") == 0
    assert run_main(monkeypatch, "look", "missing.log") == 2
    assert "missing.log: No such file" in capsys.readouterr().err
