"""The manifest of a report: what it contains, from which records, and what is taken as given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from analyzer.billing.days.day_rows import Day
from analyzer.billing.reports.day_report import Report
from analyzer.billing.reports.report_lines import ReportSums, report_columns
from analyzer.kernel.time_texts import format_second

SCHEMA = 1
MANIFEST = ".manifest.json"  # behind the name of the report's file


class WrittenFile(NamedTuple):
    """A file of a report."""

    name: str
    size: int  # bytes
    sha256: str


class Contents(NamedTuple):
    """The contents of a file, as a manifest states them.

    Attributes:
        what: "usage" of the days, "periods" of callers, the "corrections" that are booked on the days, or
            "events" for a billing service.
        days: In order; the second value is None for a day that is not closed.
        columns: Or, of events, the format.
        meters: Of usage, those that the report can have.
        complete_until_ms: Of provisional usage, as `Report` has it.
    """

    what: Literal["usage", "periods", "corrections", "events"]
    zone: str
    grouping: str
    days: Sequence[tuple[str, Day | None]]
    columns: Sequence[str]
    meters: Sequence[str] = ()
    complete_until_ms: int | None = None

    @property
    def is_final(self) -> bool:
        return all(closed is not None for _, closed in self.days)


def report_contents(report: Report) -> Contents:
    """Returns the contents of the report of some days."""
    days = [(day.date, day.closed) for day in report.days]
    columns = report_columns(report)
    until_ms = report.complete_until_ms
    return Contents("usage", report.zone, report.grouping, days, columns, [*report.meters], until_ms)


def encode_manifest(
    contents: Contents,
    sums: ReportSums,
    files: Sequence[WrittenFile],
    replaces: WrittenFile | None = None,
) -> bytes:
    """Returns the manifest as JSON; equal contents have equal manifests.

    `replaces` is the file of this name with another content that was there before.
    """
    amounts = sorted(sums.meters.items())
    until_ms = contents.complete_until_ms
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "what": contents.what,
        "state": "final" if contents.is_final else "provisional",
        **({} if until_ms is None else {"complete_until": format_second(until_ms // 1000)}),
        "from": contents.days[0][0],
        "to": contents.days[-1][0],
        "zone": contents.zone,
        "by": contents.grouping,
        "meters": list(contents.meters),
        "columns": list(contents.columns),
        "lines": sums.lines,
        "series": sums.series,
        "sums": {meter: {"value": value, "denied": denied} for meter, (value, denied) in amounts},
        "files": [file._asdict() for file in files],
        "replaces": None if replaces is None else replaces._asdict(),
        "days": [_day(*day) for day in contents.days],
    }
    return json.dumps(fields, ensure_ascii=False, indent=2).encode() + b"\n"


def replaced_file(
    previous: WrittenFile | None, written: WrittenFile, manifest: bytes | None
) -> WrittenFile | None:
    """Returns the file that `written` replaces: another one that was there before.

    When the same report was written again, the one that its manifest names.
    """
    if previous is None or previous.sha256 != written.sha256:
        return previous
    try:
        replaced = json.loads(manifest or b"null")["replaces"]
        return (
            None if replaced is None else WrittenFile(replaced["name"], replaced["size"], replaced["sha256"])
        )
    except (ValueError, KeyError, TypeError):
        return None  # written by another program


def _day(date: str, closed: Day | None) -> dict[str, Any]:
    if closed is None:
        return {"date": date, "state": "provisional"}
    return {
        "date": date,
        "state": "final",
        "requests": closed.requests,
        "digest": closed.digest,
        "digest_key": closed.digest_key,
        **json.loads(closed.given),
    }
