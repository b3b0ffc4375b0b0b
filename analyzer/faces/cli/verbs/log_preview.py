"""`gatelock look`: shows what a log holds, and what a limit would have done; needs no configuration."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

from click.exceptions import Exit
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from analyzer.config.single_tables import TableInvalid, parse_mapping, parse_surge
from analyzer.config.tables.named_values import unknown_grouping
from analyzer.config.values import format_duration, zone_cure
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import JsonOption
from analyzer.faces.cli.output import json_lines, say
from analyzer.faces.cli.preview_screen import lines_of, rehearsal_sentence
from analyzer.faces.cli.reject_reasons import expected
from analyzer.faces.cli.verbs.init import shipped
from analyzer.forecast.look.limit_suggestions import suggest_limit
from analyzer.forecast.look.log_scan import LogScan, ScannedFile
from analyzer.forecast.look.preview_report import Rehearsal, as_json, build_report
from analyzer.forecast.look.rehearsal import rehearse
from analyzer.forecast.look.starter_config import policy_table, policy_text, source_text
from analyzer.garbage_collector import rare_collections
from analyzer.judging.totals import is_judged
from analyzer.kernel.refused_values import quote
from analyzer.kernel.sentences import plural
from analyzer.plan.groupings import known_grouping, parse_grouping
from analyzer.plan.policies import Surge
from analyzer.plan.windows import is_zone
from analyzer.sources.files.compressed_files import plain_content
from analyzer.sources.files.file_reader import shown_path

if TYPE_CHECKING:
    from analyzer.forecast.look.preview_report import LogReport
    from analyzer.forecast.look.traffic_profile import SeriesTraffic

STDIN = "-"
COMPRESSED = re.compile(r"([.-]\d[\d.T:_-]*)?\.(gz|zst)$|[.-]\d[\d.T:_-]*$")  # a rotated or compressed log
REFRESHES_PER_S = 5.0


def look(
    files: Annotated[
        list[str],
        Argument(metavar="FILE...", help="Logs; .gz and .zst are unpacked, - is standard input."),
    ],
    limit: Annotated[
        int | None,
        Option(min=1, help="Requests in --per, from which on a lock is set. Default: a suggestion."),
    ] = None,
    per: Annotated[str, Option(metavar="LENGTH", help="Rolling window, from 5s to 1h.")] = "60s",
    by: Annotated[
        str,
        Option(
            metavar="GROUPING", help="caller, address, address/24, resource, tenant, everyone; +resource."
        ),
    ] = "caller",
    top: Annotated[int, Option(min=1, max=1_000, help="Rows of the table.")] = 10,
    zone: Annotated[str, Option(help="Time zone in which hours are shown.")] = "UTC",
    write: Annotated[
        Path | None,
        Option(metavar="PATH", help="Write a configuration with the limit; it locks no caller yet."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the callers of a log, and those that a limit would lock.

    Needs no configuration, no database and no Kafka. Recognises the combined and common formats and JSON
    lines (nginx, Caddy, Traefik, Envoy, and others with usual names of fields). Ctrl-C shows what was read
    until then. Exit code 1 if no request was found.

    Example: gatelock look access.log --limit 600 --write gatelock.toml
    """
    with reporting_errors(), rare_collections():
        shown_in = _zone(zone)
        policy = _policy(by, limit or 1, per)
        _require_files(files)
        if write is not None:
            _require_new(write, files)
        report = _report(files, by, limit, policy, top)
        _require_fields(report)
        if json:
            json_lines([as_json(report)])
        else:
            say("\n".join(lines_of(report, _width(), shown_in)))
        _say_problems(report, policy)
        if not report.requests:
            raise Exit(FOUND)
        if write is not None:
            _write(write, files, report)


def _zone(name: str) -> ZoneInfo:

    if not is_zone(name):
        raise usage_error(f"--zone {name}: is not a time zone; {zone_cure(name)}")
    return ZoneInfo(name)


def _policy(by: str, limit: int, per: str) -> Surge:
    """The surge policy of these options, as a configuration would have it. Exits with 2 if it is not one."""
    try:
        known_grouping(by)
    except ValueError as error:
        raise usage_error(f"--by {by}: {quote(by)} is not a grouping; {unknown_grouping(by)}") from error
    try:
        policy = parse_surge(policy_table(by, limit, per))
    except TableInvalid as invalid:
        option = {"per": f"--by {by}", "window": f"--per {per}"}.get(invalid.key, f"--limit {limit}")
        raise usage_error(f"{option}: {invalid}") from invalid
    if not policy.window.has_slots:
        raise usage_error(f"--per {per}: a window has at most 1h; longer ones are for quotas")
    return policy


def _require_files(files: Sequence[str]) -> None:
    """Exits with 2 if one of the files cannot be opened, before any is read."""
    for name in files:
        path = Path(name)
        if name == STDIN:
            if sys.stdin.isatty():
                raise usage_error("- reads standard input: gatelock look - < access.log")
            continue
        if path.is_dir():
            raise usage_error(f"{name} is a directory; name the logs in it: gatelock look {name}/*.log")
        try:
            path.open("rb").close()
        except OSError as error:
            raise usage_error(f"{name}: {error.strerror}") from error


def _require_new(write: Path, files: Sequence[str]) -> None:
    if write.exists() or write.is_symlink():
        raise usage_error(f"{write}: exists, and is not overwritten; write --write PATH")
    if all(name == STDIN for name in files):
        raise usage_error("--write needs the name of the log, which `gatelock run` follows")


def _require_fields(report: LogReport) -> None:
    """Exits with 2 if the grouping needs a field that no file has."""
    if report.requests or not any(file.missing for file in report.files):
        return
    fields = frozenset[str]().union(*(file.fields for file in report.files))
    possible = ["caller", *(f"address{network}" for network in ("", "/24") if "address" in fields)]
    possible += [name for name in ("tenant", "resource") if name in fields]
    missing = next(file.problem for file in report.files if file.missing)
    raise usage_error(f"--by {report.by}: {missing}; use {', '.join(possible)}")


def _report(files: Sequence[str], by: str, limit: int | None, policy: Surge, top: int) -> LogReport:

    now_ms = time.time_ns() // 1_000_000
    scan = LogScan(by, policy.window, floor=limit or 1, now_ms=now_ms, mapping_of=parse_mapping)
    scanned, is_interrupted = _read(scan, files)
    series = list(scan.profile.series())
    suggestion = None
    if limit is None:
        suggestion = suggest_limit(_judged_peaks(by, series), scan.profile.floor)
        policy = _policy(by, suggestion.limit, f"{policy.window.period_s}s")
    rehearsal: Rehearsal | None = None
    if series and policy.limit >= scan.profile.floor:
        rehearsal = Rehearsal(policy, suggestion, rehearse(policy, series))
    return build_report(scan.profile, series, scanned, by, rehearsal, top=top, is_interrupted=is_interrupted)


def _judged_peaks(by: str, series: Sequence[SeriesTraffic]) -> list[int]:

    grouping = parse_grouping(by)
    return [traffic.peak for traffic in series if is_judged(grouping, traffic.key, traffic.resource)]


def _read(scan: LogScan, files: Sequence[str]) -> tuple[list[ScannedFile], bool]:
    """Reads all files; returns what was found in each, and whether Ctrl-C ended it."""
    scanned: list[ScannedFile] = []
    with interruptible() as stop, _progress(files) as advance:
        for name in files:
            file = ScannedFile("standard input" if name == STDIN else shown_path(name))
            scanned.append(file)
            with contextlib.ExitStack() as opened:
                raw = sys.stdin.buffer if name == STDIN else opened.enter_context(Path(name).open("rb"))
                try:
                    stream = plain_content(raw)
                except OSError as error:
                    file.problem = str(error.strerror)
                    continue
                for _ in scan.read(file, stop.stream(stream)):
                    advance(raw, file)
            if stop.is_set:
                break
        return scanned, stop.is_set


class InterruptedStream:
    """A stream that ends when it is interrupted."""

    def __init__(self, stream: IO[bytes], stop: Interrupt) -> None:
        self._stop = stop
        # Of a pipe: what is there, at once. An interrupt would drop what `read` has waited for.
        self._read = getattr(stream, "read1", stream.read)

    def read(self, size: int) -> bytes:
        """Returns the next bytes; b"" at the end, and after an interrupt."""
        if self._stop.is_set:
            return b""
        self._stop.is_reading = True
        try:
            data: bytes = self._read(size)
            return data
        except KeyboardInterrupt:
            return b""
        finally:
            self._stop.is_reading = False


class Interrupt:
    """Whether Ctrl-C was pressed. A read that waits is ended by it, counting never is."""

    def __init__(self) -> None:
        self.is_set = self.is_reading = False

    def stream(self, stream: IO[bytes]) -> Any:
        return InterruptedStream(stream, self)

    def receive(self, *_: object) -> None:
        """Handles the signal; the second one ends the process."""
        if self.is_set or self.is_reading:
            self.is_set = True
            raise KeyboardInterrupt
        self.is_set = True


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Handles SIGINT by an `Interrupt` for a while."""
    stop = Interrupt()
    handler = signal.signal(signal.SIGINT, stop.receive)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _progress(files: Sequence[str]) -> Iterator[Callable[[IO[bytes], ScannedFile], None]]:
    """Shows on a terminal how much is read; yields a function that is called for each part of a file."""
    if not sys.stderr.isatty():
        yield lambda _raw, _file: None
        return

    sizes = [0 if name == STDIN else Path(name).stat().st_size for name in files]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[lines]} lines"))
    shown = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=REFRESHES_PER_S,
    )
    read: dict[int, int] = {}  # bytes of each file, as they are stored
    lines: dict[int, int] = {}
    with shown as progress:
        task = progress.add_task("reading", total=sum(sizes) if STDIN not in files else None, lines="0")

        def advance(raw: IO[bytes], file: ScannedFile) -> None:
            read[id(file)] = raw.tell() if raw.seekable() else file.size_bytes
            lines[id(file)] = file.lines
            progress.update(task, completed=sum(read.values()), lines=f"{sum(lines.values()):,}")

        yield advance


def _width() -> int:
    """Columns of the terminal; of a file or a pipe, that of $COLUMNS or 80."""
    return shutil.get_terminal_size().columns


def _say_problems(report: LogReport, policy: Surge) -> None:
    for file in report.files:
        if file.problem:
            say(f"{file.name}: {file.problem}", err=True)
        if file.unread:
            _say_unread(file)
        if file.guessed_zone:
            say(
                f"{file.name}: its times have no time zone, and are read as {file.guessed_zone}; --write "
                "keeps it as `zone`, to be corrected there",
                err=True,
            )
    if question := report.question:
        say(question, err=True)
    if report.is_interrupted:
        say("interrupted: this is what was read until then", err=True)
    if report.requests and report.rehearsal is None:
        say(
            f"the log is too large to judge a limit of {policy.limit:,}: only windows with {report.floor:,} "
            f"requests or more are kept; write --limit {report.floor}",
            err=True,
        )
    if report.late:
        say(f"{plural(report.late, 'request')} came far out of order: peaks may be too low", err=True)


def _say_unread(file: ScannedFile) -> None:

    total = file.unread.total()
    say(f"{file.name}: {plural(total, 'line')} of {file.lines:,} not read", err=True)
    mapping = None if file.source is None else parse_mapping(file.source)
    for first in file.first_unread:
        reason = f"{first.reason} ({file.unread[first.reason]:,})"
        say(f"  {reason}: expected {expected(first.reason, 'look', mapping)}", err=True)
        say(f"    the first is line {first.line}: {first.sample}", err=True)


def _write(path: Path, files: Sequence[str], report: LogReport) -> None:

    read = [file for file in report.files if file.source is not None]
    plain = [file for file in read if not COMPRESSED.search(file.name) and Path(file.name).is_file()]
    sample = (plain or read)[0]
    followed = Path(sample.name if plain else COMPRESSED.sub("", sample.name)).absolute()
    if not str(followed).isprintable() or sample.source is None or report.rehearsal is None:
        raise usage_error(
            f"{followed}: write this name into a configuration by hand; see `gatelock init --help`"
        )
    rehearsal = report.rehearsal

    policy = policy_table(
        report.by, rehearsal.policy.limit, format_duration(rehearsal.policy.window.period_s)
    )
    parts = (
        shipped("begin.toml").strip() + "\n",
        source_text(sample.source, str(followed)),
        policy_text(policy, rehearsal_sentence(report, rehearsal)),
    )
    try:
        with path.open("x") as new:
            new.write("\n".join(parts))
    except OSError as error:
        raise usage_error(f"{path}: {error.strerror}") from error
    say(f"{path}: written; next: gatelock check, then gatelock run", err=True)
    if not followed.exists():
        say(f"{followed} does not exist: correct `file` in {path}", err=True)
