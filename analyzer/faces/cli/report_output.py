"""Writes reports to a file with its manifest, or to standard output; a progress bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from analyzer.billing.reports.atomic_files import file_at, write_whole
from analyzer.billing.reports.manifest import MANIFEST, encode_manifest, replaced_file
from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.cli.output import say

if TYPE_CHECKING:
    from analyzer.billing.reports.manifest import Contents
    from analyzer.billing.reports.report_lines import ReportSums

SHOWN_EVERY = 1_000  # lines

Advance = Callable[[int], None]
Item = TypeVar("Item")


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Advance]:
    """Shows a bar on standard error if that is a terminal; yields what advances it by a number."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def advancing(items: Iterable[Item], advance: Advance) -> Iterator[Item]:
    """Yields the items, and advances a bar."""
    count = 0
    for count, item in enumerate(items, start=1):
        if count % SHOWN_EVERY == 0:
            advance(SHOWN_EVERY)
        yield item
    advance(count % SHOWN_EVERY)


def print_content(content: Iterable[bytes]) -> None:
    """Writes the parts to standard output as they come."""
    for part in content:
        sys.stdout.buffer.write(part)
    sys.stdout.flush()


def provisional_name(out: Path) -> Path:
    """Returns where a file is written while a day of it is not closed.

    >>> provisional_name(Path("day.csv")).name
    'day.provisional.csv'
    """
    return out.with_name(f"{out.stem}.provisional{out.suffix}")


def write_with_manifest(out: Path, content: Iterable[bytes], contents: Contents, sums: ReportSums) -> None:
    """Writes a file and its manifest, each whole or not at all. `sums` are complete after the content.

    A provisional one has `.provisional` in its name, so that it never stands where a final one is expected.
    Exits with 2 when it cannot be written.
    """
    if not contents.is_final:
        out = provisional_name(out)
    manifest = out.with_name(out.name + MANIFEST)
    try:
        file_state, named = file_at(out), None
        with suppress(FileNotFoundError):
            named = manifest.read_bytes()
        written = write_whole(out, content)
        replaces = replaced_file(file_state, written, named)
        write_whole(manifest, [encode_manifest(contents, sums, [written], replaces)])
    except OSError as error:
        raise usage_error(f"--out {out}: cannot be written: {error.strerror}") from error
    state = "final" if contents.is_final else "provisional"
    lines = f"{sums.lines:,} line{'s' * (sums.lines != 1)}"
    say(f"{out}: {lines}, {state}; sha256 {written.sha256}; origin: {manifest.name}")
    if replaces is not None and file_state is not None and file_state.sha256 != written.sha256:
        say(f"{out}: another report was there before; sha256 {file_state.sha256}", err=True)
