"""Compares a file of a report with its manifest, and both with the tables: the report is made again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.reports.day_report import Report, report_of, report_rows
from analyzer.billing.reports.manifest import MANIFEST, SCHEMA, WrittenFile, contents_of, manifest_of
from analyzer.billing.reports.report_lines import ReportSums, cells_of, columns_of, lines_of
from analyzer.billing.reports.row_formats import WRITERS, Writer

READ_BYTES = 1 << 20
SHOWN_CHARS = 200  # of a line
PARQUET = "parquet"  # which has no lines, and needs a package


class FileUnreadable(ValueError):
    """A file that is not a report, has no manifest, or cannot be read."""


class AuditedFile(NamedTuple):
    """The outcome of an audit of a file.

    Attributes:
        file: Its path.
        manifest: The path of its manifest.
        lines: How many the tables give.
        differences: Sentences.
        remarks: What was not compared, and why.
    """

    file: str
    manifest: str
    lines: int
    differences: Sequence[str]
    remarks: Sequence[str]

    @property
    def equal(self) -> bool:
        return not self.differences


def audit_file(engine: sa.Engine, file: Path, units: Mapping[str, str]) -> AuditedFile:
    """Returns what differs between a file, its manifest and the tables.

    `file` may be that of the report or of its manifest. Of a report that is provisional only the file and the
    manifest are compared. `units` has those of the meters. Raises FileUnreadable, StoreAway.
    """
    if file.name.endswith(MANIFEST):
        file = file.with_name(file.name.removesuffix(MANIFEST))
    beside = file.with_name(file.name + MANIFEST)
    stated = _manifest(beside)
    written = _hashed(file)
    differences = _stated_otherwise(stated, written)
    remark = _not_comparable(stated)
    if remark:
        return AuditedFile(str(file), str(beside), int(stated.get("lines", 0)), differences, [remark])
    report = _report(engine, stated)
    made, sums, writer = _made_again(engine, report, units, written)
    if made != written:
        differences.append(_first_difference(engine, report, units, writer, file))
    # What the file replaced is not in the tables.
    expected = json.loads(manifest_of(contents_of(report), sums, [made])) | {
        "replaces": stated.get("replaces")
    }
    differences += [f"{beside.name}: {what}" for what in _differing_keys(stated, expected)]
    return AuditedFile(str(file), str(beside), sums.lines, differences, [])


def _not_comparable(stated: Mapping[str, Any]) -> str:
    """Returns why the tables do not say what the file must have; "" where they do."""
    if stated.get("what") != "usage":
        return f"a file of {stated.get('what')}: it was compared with its manifest alone"
    if stated.get("state") != "final":
        return "provisional: its counts still change, so it was compared with its manifest alone"
    return ""


def _manifest(file: Path) -> dict[str, Any]:
    try:
        stated = json.loads(file.read_bytes())
    except OSError as error:
        raise FileUnreadable(f"its manifest {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileUnreadable(f"its manifest {file} is not JSON: {error}") from error
    if not isinstance(stated, dict) or stated.get("schema") != SCHEMA:
        raise FileUnreadable(f"{file} is not a manifest of schema {SCHEMA}")
    return stated


def _hashed(file: Path) -> WrittenFile:
    digest, size = sha256(), 0
    for part in _parts(file):
        digest.update(part)
        size += len(part)
    return WrittenFile(file.name, size, digest.hexdigest())


def _parts(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            while part := opened.read(READ_BYTES):
                yield part
    except OSError as error:
        raise FileUnreadable(f"cannot be read: {error.strerror}") from error


def _stated_otherwise(stated: Mapping[str, Any], written: WrittenFile) -> list[str]:
    """Returns what the manifest says otherwise about the file."""
    files = [one for one in stated.get("files", ()) if one.get("name") == written.name]
    if not files:
        return [f"the manifest does not name the file {written.name}"]
    return [
        f"{written.name}: its {name} is {value}, and the manifest says {files[0].get(name)}"
        for name, value in written._asdict().items()
        if files[0].get(name) != value
    ]


def _report(engine: sa.Engine, stated: Mapping[str, Any]) -> Report:
    """Returns the report that a manifest describes."""
    try:
        meters = list(stated["meters"])
        only = meters[0] if len(meters) == 1 else None
        return report_of(engine, stated["zone"], stated["from"], stated["to"], stated["by"], only)
    except (LookupError, TypeError, ValueError) as error:
        raise FileUnreadable(f"its manifest describes no report of this database: {error}") from error


def _made_again(
    engine: sa.Engine, report: Report, units: Mapping[str, str], written: WrittenFile
) -> tuple[WrittenFile, ReportSums, Writer]:
    """Returns the file as the tables give it, its sums and its format: the one that gives an equal file.

    Of a file that equals none, the format is that of its name.
    """
    names = [PARQUET] if written.name.endswith(PARQUET) else [name for name in WRITERS if name != PARQUET]
    of_name = sorted(names, key=lambda name: not written.name.endswith(name))
    first: tuple[WrittenFile, ReportSums, Writer] | None = None
    for name in of_name:
        sums, digest, size = ReportSums(), sha256(), 0
        for part in _content(engine, report, units, WRITERS[name], sums):
            digest.update(part)
            size += len(part)
        made = WrittenFile(written.name, size, digest.hexdigest())
        if made == written:
            return made, sums, WRITERS[name]
        first = first or (made, sums, WRITERS[name])
    if first is None:
        raise LookupError("there are no formats of reports")
    return first


def _content(
    engine: sa.Engine, report: Report, units: Mapping[str, str], writer: Writer, sums: ReportSums
) -> Iterator[bytes]:
    """Yields the file as the tables give it; `sums` are complete after the last part."""
    columns = columns_of(report)
    lines = lines_of(report, report_rows(engine, report), units, sums)
    return writer(columns, (cells_of(line, columns) for line in lines))


def _first_difference(
    engine: sa.Engine, report: Report, units: Mapping[str, str], writer: Writer, file: Path
) -> str:
    """Returns the first line that is not the one of the tables, in words."""
    if writer is WRITERS[PARQUET]:
        return f"{file.name}: it is not the file that the tables give"
    made = _lines(_content(engine, report, units, writer, ReportSums()))
    pairs = itertools.zip_longest(_lines(_parts(file)), made)
    for number, (stands, expected) in enumerate(pairs, start=1):
        if stands != expected:
            shown = [_shown(one) for one in (stands, expected)]
            return f"{file.name}, line {number}: it has {shown[0]}, and the tables have {shown[1]}"
    return f"{file.name}: the tables have changed while they were compared"


def _shown(line: bytes | None) -> str:
    return "nothing" if line is None else repr(line.decode(errors="replace").rstrip("\r\n")[:SHOWN_CHARS])


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _differing_keys(stated: Mapping[str, Any], expected: Mapping[str, Any], within: str = "") -> list[str]:
    """Returns where a manifest is not the one of the tables: its keys, and those of its days."""
    found = []
    for name in sorted(stated.keys() | expected.keys()):
        left, right = stated.get(name), expected.get(name)
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            found += _differing_keys(left, right, f"{within}{name}.")
        elif name == "days" and isinstance(left, list) and isinstance(right, list):
            for pair in itertools.zip_longest(left, right):
                one, other = (part if isinstance(part, dict) else {} for part in pair)
                date = other.get("date", one.get("date", "?"))
                found += _differing_keys(one, other, f"{within}days[{date}].")
        else:
            what = f"it has {json.dumps(left)[:SHOWN_CHARS]}"
            found.append(f"{within}{name}: {what}, and the tables give {json.dumps(right)[:SHOWN_CHARS]}")
    return found
