"""Compares a file of a report with its manifest, and both with the tables: the report is made again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.reports.day_report import Report, read_report, report_rows
from analyzer.billing.reports.manifest import MANIFEST, SCHEMA, WrittenFile, encode_manifest, report_contents
from analyzer.billing.reports.report_lines import ReportSums, line_cells, report_columns, usage_lines
from analyzer.billing.reports.row_formats import ROW_FORMATS, RowFormat

READ_BYTES = 1 << 20
SHOWN_CHARS = 200  # of a line


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
    manifest = read_manifest(beside)
    written = hashed(file)
    differences = _stated_otherwise(manifest, written)
    remark = _not_comparable(manifest)
    if remark:
        return AuditedFile(str(file), str(beside), int(manifest.get("lines", 0)), differences, [remark])
    report = _report(engine, manifest)
    rebuilt, sums, row_format = _made_again(engine, report, units, written)
    if rebuilt != written:
        differences.append(_first_difference(engine, report, units, row_format, file))
    # What the file replaced is not in the tables.
    expected = json.loads(encode_manifest(report_contents(report), sums, [rebuilt])) | {
        "replaces": manifest.get("replaces")
    }
    differences += [f"{beside.name}: {difference}" for difference in _differing_keys(manifest, expected)]
    return AuditedFile(str(file), str(beside), sums.lines, differences, [])


def _not_comparable(manifest: Mapping[str, Any]) -> str:
    """Returns why the tables do not say what the file must have; "" where they do."""
    if manifest.get("what") != "usage":
        return f"a file of {manifest.get('what')}: it was compared with its manifest alone"
    if manifest.get("state") != "final":
        return "provisional: its counts still change, so it was compared with its manifest alone"
    return ""


def read_manifest(file: Path) -> dict[str, Any]:
    """Returns the fields of a manifest. Raises FileUnreadable."""
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise FileUnreadable(f"its manifest {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileUnreadable(f"its manifest {file} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise FileUnreadable(f"{file} is not a manifest of schema {SCHEMA}")
    return manifest


def hashed(file: Path) -> WrittenFile:
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


def _stated_otherwise(manifest: Mapping[str, Any], written: WrittenFile) -> list[str]:
    """Returns what the manifest says otherwise about the file."""
    files = [file for file in manifest.get("files", ()) if file.get("name") == written.name]
    if not files:
        return [f"the manifest does not name the file {written.name}"]
    return [
        f"{written.name}: its {name} is {value}, and the manifest says {files[0].get(name)}"
        for name, value in written._asdict().items()
        if files[0].get(name) != value
    ]


def _report(engine: sa.Engine, manifest: Mapping[str, Any]) -> Report:
    """Returns the report that a manifest describes."""
    try:
        meters = list(manifest["meters"])
        only = meters[0] if len(meters) == 1 else None
        report = read_report(engine, manifest["zone"], manifest["from"], manifest["to"], manifest["by"], only)
        return report._replace(human_units="human_value" in manifest["columns"])
    except (LookupError, TypeError, ValueError) as error:
        raise FileUnreadable(f"its manifest describes no report of this database: {error}") from error


def _made_again(
    engine: sa.Engine, report: Report, units: Mapping[str, str], written: WrittenFile
) -> tuple[WrittenFile, ReportSums, RowFormat]:
    """Returns the file as the tables give it, its sums and its format: the one that gives an equal file.

    Of a file that equals none, the format is that of its name.
    """
    of_name = [row_format for name, row_format in ROW_FORMATS.items() if written.name.endswith(name)]
    texts = [row_format for row_format in ROW_FORMATS.values() if row_format.is_text]
    are_texts = all(row_format.is_text for row_format in of_name)
    first: tuple[WrittenFile, ReportSums, RowFormat] | None = None
    for row_format in dict.fromkeys([*of_name, *texts] if are_texts else of_name):
        sums, digest, size = ReportSums(), sha256(), 0
        for part in _content(engine, report, units, row_format, sums):
            digest.update(part)
            size += len(part)
        rebuilt = WrittenFile(written.name, size, digest.hexdigest())
        if rebuilt == written:
            return rebuilt, sums, row_format
        first = first or (rebuilt, sums, row_format)
    if first is None:
        raise LookupError("there are no formats of reports")
    return first


def _content(
    engine: sa.Engine, report: Report, units: Mapping[str, str], row_format: RowFormat, sums: ReportSums
) -> Iterator[bytes]:
    """Yields the file as the tables give it; `sums` are complete after the last part."""
    columns = report_columns(report)
    lines = usage_lines(report, report_rows(engine, report), units, sums)
    return row_format.encode(columns, (line_cells(line, columns) for line in lines))


def _first_difference(
    engine: sa.Engine, report: Report, units: Mapping[str, str], row_format: RowFormat, file: Path
) -> str:
    """Returns the first line that is not the one of the tables, in words."""
    if not row_format.is_text:
        return f"{file.name}: it is not the file that the tables give"
    expected_lines = _lines(_content(engine, report, units, row_format, ReportSums()))
    pairs = itertools.zip_longest(_lines(_parts(file)), expected_lines)
    for number, (stands, expected) in enumerate(pairs, start=1):
        if stands != expected:
            shown = [_shown(line) for line in (stands, expected)]
            return f"{file.name}, line {number}: it has {shown[0]}, and the tables have {shown[1]}"
    return f"{file.name}: the tables have changed while they were compared"


def _shown(line: bytes | None) -> str:
    return "nothing" if line is None else repr(line.decode(errors="replace").rstrip("\r\n")[:SHOWN_CHARS])


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    remainder = b""
    for part in parts:
        *whole, remainder = (remainder + part).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if remainder:
        yield remainder


def _differing_keys(manifest: Mapping[str, Any], expected: Mapping[str, Any], within: str = "") -> list[str]:
    """Returns where a manifest is not the one of the tables: its keys, and those of its days."""
    differences = []
    for name in sorted(manifest.keys() | expected.keys()):
        stated_value, expected_value = manifest.get(name), expected.get(name)
        if stated_value == expected_value:
            continue
        if isinstance(stated_value, dict) and isinstance(expected_value, dict):
            differences += _differing_keys(stated_value, expected_value, f"{within}{name}.")
        elif name == "days" and isinstance(stated_value, list) and isinstance(expected_value, list):
            for pair in itertools.zip_longest(stated_value, expected_value):
                stated_day, expected_day = (part if isinstance(part, dict) else {} for part in pair)
                date = expected_day.get("date", stated_day.get("date", "?"))
                differences += _differing_keys(stated_day, expected_day, f"{within}days[{date}].")
        else:
            shown = f"it has {json.dumps(stated_value)[:SHOWN_CHARS]}"
            differences.append(
                f"{within}{name}: {shown}, and the tables give {json.dumps(expected_value)[:SHOWN_CHARS]}"
            )
    return differences
