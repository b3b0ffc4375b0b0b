"""`gatelock upkeep import`: counts complete files, once."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.build import build_import, opened
from analyzer.config.settings import load
from analyzer.config.values import suggestion
from analyzer.counting.records.reading_doubts import ReadingTally, requests_and_callers
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, JsonOption, add_a_source, config_file
from analyzer.faces.cli.output import json_lines, say
from analyzer.faces.cli.reject_reasons import advice, expected
from analyzer.forecast.look.log_detection import SAMPLE_LINES, detect
from analyzer.kernel.database.engine import open_batch_engine
from analyzer.kernel.logs import set_up
from analyzer.kernel.refused_values import quote
from analyzer.sources.files import shown_path
from analyzer.sources.files.compressed_files import DamagedFile, open_log
from analyzer.sources.files.line_reader import LineReader

if TYPE_CHECKING:
    from analyzer.config.settings import Settings
    from analyzer.daemon import Daemon
    from analyzer.flush.pipeline import FlushResult
    from analyzer.judging.judge import Judged
    from analyzer.kernel.model import Gap, Partition, Rejected
    from analyzer.plan.mapping import SourceMapping
    from analyzer.sources.files import ImportedFiles

LINE_BYTES_MAX = 1 << 20  # of a line that is searched for another field with addresses
RECORDS_SEARCHED_MAX = 20  # for each reason, until one shows what it has instead
ATTEMPTS_MAX = 10  # consecutive failures to reach the database; about ten seconds if it refuses at once


@dataclass(slots=True)
class ImportProgress:
    """Observes the loop of an import: records stored, and failed attempts in a row at the database.

    `renamed` records are counted under another name, because theirs is unusable. `question` is what the
    callers of the first ones make doubtful about the mapping.
    """

    stored: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("seen", "counted", "dead", "late"), 0)
    )
    renamed: int = 0
    tally: ReadingTally = field(default_factory=ReadingTally)
    rejected: Tally[str] = field(default_factory=Tally)  # records by reason
    advice: dict[str, str] = field(default_factory=dict)  # for each reason, by a record that shows it
    mapping: SourceMapping | None = None
    failures: int = 0
    sentence: str = ""  # of the last failure

    def loop_completed(self, _partitions: int) -> None:
        """Ignored: an import has no liveness probe."""

    def partition_lost(self) -> None:
        """Ignored: another process imports the same file, and each record is stored once."""

    def flush_committed(self, result: FlushResult) -> None:
        for progress in result.counted.parts:
            for name in self.stored:
                self.stored[name] += getattr(progress, name)
            self.renamed += progress.renamed
        self.tally.note(*requests_and_callers(result.counted))
        for rejected in result.counted.rejected:
            self.rejected[rejected.reason] += 1
            self.note(rejected)

    def note(self, rejected: Rejected) -> None:
        """Keeps what the first record that shows it says about its reason."""
        if self.rejected[rejected.reason] <= RECORDS_SEARCHED_MAX and not self.advice.get(rejected.reason):
            self.advice[rejected.reason] = advice(rejected.reason, rejected.sample, self.mapping)

    @property
    def rejected_share(self) -> float:
        """The share of the records that were rejected, from 0 to 1."""
        return self.rejected.total() / self.stored["seen"] if self.stored["seen"] else 0.0

    def judged(self, _judged: Judged, _cause: str = "") -> None:
        """Ignored: the log names what the warden judges."""

    def dependency_failed(self, _dependency: str, sentence: str) -> None:
        self.failures += 1
        self.sentence = sentence

    def dependency_recovered(self, _dependency: str) -> None:
        self.failures = 0

    def job_failed(self, _job: str, _error: str) -> None:
        """Ignored: a later analyzer does the job."""

    def job_recovered(self, _job: str) -> None:
        """Ignored, as its failure."""

    def partitions_stopped(self, _gaps: Mapping[Partition, Gap]) -> None:
        """Ignored: the end of the import reports what stopped a file."""


OfSourceOption = Annotated[
    str | None,
    Option(
        "--source",
        metavar="NAME",
        help="Name of the entry of [[sources]]; default: the only one, or that of the file.",
    ),
]


def import_(
    context: Context,
    files: Annotated[
        list[Path],
        Argument(metavar="FILE...", help="Files; .gz and .zst are unpacked, - is standard input."),
    ],
    source: OfSourceOption = None,
    host: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The machine that wrote the files, if several share a database; default: the source's host.",
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    max_rejected: Annotated[
        str,
        Option(
            metavar="SHARE", help="Exit with 1 if more of the new records are rejected; such as 1% or 0%."
        ),
    ] = "1%",
) -> None:
    """Count the records of complete files, once.

    Files that still grow belong in [[sources]] of `gatelock run`. Importing a file again counts only what is
    new in it. Exit code 1 if a file cannot be read to its end, if more than --max-rejected of the new records
    are rejected, or if there are new ones and none was counted.

    Example: gatelock upkeep import access.log.1 access.log.2.gz --source web
    """
    share_max = _parse_share(max_rejected)
    with reporting_errors():
        file = config_file(context, config)
        settings = load(file)
        source = _source_of(settings, source, files, file)

        set_up(settings.analyzer.log or "console")  # lines for people, among the sentences of this command
        with _silent("analyzer.sources.files"), opened(settings, open_batch_engine) as engine:
            progress = ImportProgress(mapping=settings.mappings()[source])
            try:
                daemon, imported = build_import(settings, engine, progress, source, files, host)
            except OSError as error:
                raise usage_error(f"{shown_path(str(error.filename))}: {error.strerror}") from error
            problems = _import(daemon, imported, progress)
        for rejected in daemon.pipeline.unreadable.values():
            progress.note(rejected)
        _print(progress, problems, source, files, as_json=json)
        is_readable = progress.rejected_share <= share_max and not problems
        if not is_readable or (progress.stored["seen"] and not progress.stored["counted"]):
            raise Exit(FOUND)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keeps a logger silent: the end reports each file that stopped, in the words of its log line."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _parse_share(text: str) -> float:
    """A share from 0 to 1, of text such as "1%". Exits with 2 if it is not one."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?) *%", text.strip())
    if number is None or float(number[1]) > 100:
        raise usage_error(f"--max-rejected {text}: write a share of the records, such as 1% or 0%")
    return float(number[1]) / 100


def _source_of(settings: Settings, source: str | None, files: Sequence[Path], file: Path | None) -> str:
    """The name of the source whose mapping reads the files. Exits with 2 if it is not clear which."""
    names = [entry.name for entry in settings.sources]
    if source is None:
        read = {Path(entry.file).resolve(): entry.name for entry in settings.sources if entry.file}
        named = {read.get(path.resolve()) for path in files}
        [chosen, *more] = [*named] if None not in named else names or [""]
        if more or not names:
            raise usage_error(f"--source is missing: write one of {', '.join(names) or add_a_source(file)}")
        return str(chosen)
    if source not in names:
        otherwise = f"use one of: {', '.join(names)}" if names else add_a_source(file)
        raise usage_error(f"no source is named {quote(source)}; {suggestion(source, names, otherwise)}")
    return source


def _import(daemon: Daemon, imported: ImportedFiles, progress: ImportProgress) -> dict[str, str]:
    """Reads and stores everything; returns why files could not be read to their end, by name."""
    pause = threading.Event()
    try:
        while not imported.done:
            pause.wait(daemon.run_once())
            if progress.failures >= ATTEMPTS_MAX:
                say(
                    f"stopped by the database: {progress.sentence}; import again to continue from there",
                    err=True,
                )
                raise Exit(UNREACHABLE)
        # Without an analyzer that runs, nothing else fills the totals of a new policy.
        if daemon.jobs is not None:
            daemon.jobs.finish_jobs()
        return dict(imported.problems())  # before the source is closed, which clears them
    finally:
        daemon.close()


def _print(
    progress: ImportProgress, problems: dict[str, str], source: str, files: Sequence[Path], *, as_json: bool
) -> None:

    stored = progress.stored
    if as_json:
        advice = {reason: sentence for reason, sentence in progress.advice.items() if sentence}
        fields = {"renamed": progress.renamed, "problems": problems, "rejected": progress.rejected}
        question = progress.tally.question() and progress.tally.question(_elsewhere(files))
        json_lines([{**stored, **fields, "advice": advice, "question": question}])
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in stored.items())
    say(counts if stored["seen"] or problems else "nothing new: every record was counted before")
    for line in (*_why_rejected(progress, source), *_doubts(progress, files)):
        say(line, err=True)
    for name, reason in problems.items():
        say(f"{name}: {reason}", err=True)


def _doubts(progress: ImportProgress, files: Sequence[Path]) -> Iterator[str]:
    """Yields what a wrong mapping would look like, for the operator to decide."""
    if progress.tally.question():
        yield progress.tally.question(_elsewhere(files))
    if progress.renamed:
        yield (
            f"{progress.renamed:,} of them had no usable name, or lost it by count_if, and count under their "
            "address or unnamed:. A name has at most 256 bytes and no hidden characters, and an address is "
            'an IP address; to count host names write caller = ["host"], and host = "address" in '
            "[sources.fields]"
        )
        if instead := _names_instead(files, progress.mapping):
            yield f"    {instead}"


def _elsewhere(files: Sequence[Path]) -> str:
    """A sentence on another field of these files that has addresses; "" where none is recognised."""
    for values in _first_lines(files):
        detected = detect(values)
        if detected is not None and detected.elsewhere:
            return detected.elsewhere
    return ""


def _names_instead(files: Sequence[Path], mapping: SourceMapping | None) -> str:
    """A sentence on what the first record without a usable name has instead; "" where that is not clear."""
    sentences = (advice("bad-caller", value, mapping) for values in _first_lines(files) for value in values)
    return next((sentence for sentence in sentences if "did you mean" in sentence), "")


def _first_lines(files: Sequence[Path]) -> Iterator[list[bytes]]:
    """Yields some lines of each file that can be read."""
    for file in files:
        with suppress(OSError, EOFError, DamagedFile), closing(open_log(str(file))) as stream:
            lines = LineReader(stream, LINE_BYTES_MAX).take(final=True)
            yield [] if lines is None else [value for value in lines.values[:SAMPLE_LINES] if value]


def _why_rejected(progress: ImportProgress, source: str) -> Iterator[str]:
    """Yields a line for each reason: how many records, what was expected, what a record has instead."""
    reasons = sorted(progress.advice, key=lambda reason: -progress.rejected[reason])
    for reason in reasons:
        # A run of records that stopped the file is not rejected yet.
        number = f"{progress.rejected[reason]:,} rejected" if progress.rejected[reason] else "stopped"
        yield f"{number}: {reason}: expected {expected(reason, source, progress.mapping)}"
        if progress.advice[reason]:
            yield f"    {progress.advice[reason]}"
    if progress.rejected:
        share = progress.rejected_share
        yield f"{share:.1%} of the records are rejected; see each of them: gatelock upkeep rejects list"
