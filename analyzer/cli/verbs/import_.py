"""`gatelock import`: files, read once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.cli.exit_codes import AWAY, FOUND, reporting_errors, usage_error
from analyzer.cli.options import ConfigOption, JsonOption, a_source_to_add, config_file

if TYPE_CHECKING:
    from analyzer.config.settings import Settings
    from analyzer.core.model import Gap, Partition
    from analyzer.daemon import Daemon
    from analyzer.files import ImportedFiles
    from analyzer.pipeline import FlushResult
    from gatekeeper.model import Change

PATIENCE = 10  # attempts in a row at a database that is away; some fifteen seconds


@dataclass(slots=True)
class ImportProgress:
    """What an import's loop tells: how much was stored, and how often in a row the database was away."""

    stored: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("seen", "counted", "dead", "late"), 0)
    )
    away: int = 0
    sentence: str = ""

    def turned(self, _holding: int) -> None:
        """Nobody asks whether we live: somebody is watching."""

    def lost(self) -> None:
        """Another one imports the same file: what both have counted is stored once."""

    def flushed(self, flushed: FlushResult) -> None:
        for progress in flushed.counted.parts:
            for name in self.stored:
                self.stored[name] += getattr(progress, name)

    def ended(self, _changes: Sequence[Change]) -> None:
        """Locks end all the time; that is not what this command was asked for."""

    def failed(self, _what: str, sentence: str) -> None:
        self.away += 1
        self.sentence = sentence

    def recovered(self, _what: str) -> None:
        self.away = 0

    def stopped(self, _gaps: Mapping[Partition, Gap]) -> None:
        """What stops a file is said at the end."""


def import_(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files; .gz is unpacked, - is stdin.")
    ],
    source: Annotated[str, typer.Option(help="The name of the source that says how their records are read.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Count the records of files, once.

    The files are complete; those that grow are sources of `gatelock run`. The same file again counts
    nothing twice. Exit code 1 when one of them cannot be read to its end, or none of the records that are
    new could be counted.
    """
    from analyzer.config.settings import load

    with reporting_errors():
        file = config_file(context, config)
        settings = load(file)
        _known(settings, source, file)
        from analyzer.build import build_import, opened
        from analyzer.logs import set_up

        set_up(settings.analyzer.log)
        with opened(settings) as engine:
            heard = ImportProgress()
            try:
                daemon, once = build_import(settings, engine, heard, source, files)
            except OSError as error:
                raise usage_error(f"{error.filename}: {error.strerror}") from error
            problems = _work(daemon, once, heard)
        _say(heard, problems, as_json=json)


def _known(settings: Settings, source: str, file: Path | None) -> None:
    from analyzer.config.values import quote, suggestion

    names = [each.name for each in settings.sources]
    if source not in names:
        known = f"known are: {', '.join(names)}" if names else a_source_to_add(file)
        raise usage_error(f"no source is called {quote(source)}; {suggestion(source, names, known)}")


def _work(daemon: Daemon, once: ImportedFiles, heard: ImportProgress) -> dict[str, str]:
    """What keeps which file from being read to its end, when everything else is counted and stored."""
    pause = threading.Event()
    try:
        while not once.done:
            pause.wait(daemon.turn())
            if heard.away >= PATIENCE:
                typer.echo(
                    f"cannot reach the database: {heard.sentence}; import again to go on where it ended",
                    err=True,
                )
                raise typer.Exit(AWAY)
        return dict(once.problems())  # a source that is closed has none
    finally:
        daemon.close()


def _say(heard: ImportProgress, problems: dict[str, str], *, as_json: bool) -> None:
    from analyzer.cli.output import json_lines

    if as_json:
        json_lines([{**heard.stored, "problems": problems}])
    else:
        counts = ", ".join(f"{count:,} {name}" for name, count in heard.stored.items())
        typer.echo(counts if heard.stored["seen"] or problems else "nothing that was not counted before")
        if heard.stored["dead"]:
            typer.echo("those that cannot be read are kept, each with why: gatelock rejects list", err=True)
        for name, why in problems.items():
            typer.echo(f"{name}: {why}", err=True)
    if problems or (heard.stored["seen"] and not heard.stored["counted"]):
        raise typer.Exit(FOUND)
