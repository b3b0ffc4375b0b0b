"""The manifest of a report: what it contains, from which records, and what is taken as given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from analyzer.billing.days.day_rows import Day
from analyzer.billing.reports.day_report import Report
from analyzer.billing.reports.report_lines import ReportSums, columns_of

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
        what: "usage" of the days, the "corrections" that are booked on them, or "events" for a billing
            service. days: In order; the second value is None for a day that is not closed. columns: Or, of
            events, the format. meters: Of usage, those that the report can have.
    """

    what: Literal["usage", "corrections", "events"]
    zone: str
    grouping: str
    days: Sequence[tuple[str, Day | None]]
    columns: Sequence[str]
    meters: Sequence[str] = ()

    @property
    def is_final(self) -> bool:
        return all(closed is not None for _, closed in self.days)


def contents_of(report: Report) -> Contents:
    """Returns the contents of the report of some days."""
    days = [(day.date, day.closed) for day in report.days]
    return Contents("usage", report.zone, report.grouping, days, columns_of(report), [*report.meters])


def manifest_of(
    contents: Contents,
    sums: ReportSums,
    files: Sequence[WrittenFile],
    replaces: WrittenFile | None = None,
) -> bytes:
    """Returns the manifest as JSON; equal contents have equal manifests.

    `replaces` is the file of this name with another content that was there before.
    """
    amounts = sorted(sums.meters.items())
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "what": contents.what,
        "state": "final" if contents.is_final else "provisional",
        "from": contents.days[0][0],
        "to": contents.days[-1][0],
        "zone": contents.zone,
        "by": contents.grouping,
        "meters": list(contents.meters),
        "columns": list(contents.columns),
        "lines": sums.lines,
        "series": sums.series,
        "sums": {meter: {"value": value, "denied": denied} for meter, (value, denied) in amounts},
        "files": [one._asdict() for one in files],
        "replaces": None if replaces is None else replaces._asdict(),
        "days": [_day(*day) for day in contents.days],
    }
    return json.dumps(found, ensure_ascii=False, indent=2).encode() + b"\n"


def replaced_file(
    before: WrittenFile | None, written: WrittenFile, manifest: bytes | None
) -> WrittenFile | None:
    """Returns the file that `written` replaces: another one that was there before.

    When the same report was written again, the one that its manifest names.
    """
    if before is None or before.sha256 != written.sha256:
        return before
    try:
        named = json.loads(manifest or b"null")["replaces"]
        return None if named is None else WrittenFile(named["name"], named["size"], named["sha256"])
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
        **json.loads(closed.given),
    }
