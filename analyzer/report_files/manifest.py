"""The manifest of a report: what it contains, from which records, and what is taken as given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from analyzer.report_files.report_lines import ReportSums, columns_of
from analyzer.store.reports.billed_days.day_report import Report, ReportedDay

SCHEMA = 1
MANIFEST = ".manifest.json"  # behind the name of the report's file


class WrittenFile(NamedTuple):
    """A file of a report."""

    name: str
    size: int  # bytes
    sha256: str


def manifest_of(report: Report, sums: ReportSums, files: Sequence[WrittenFile]) -> bytes:
    """Returns the manifest as JSON; equal reports have equal manifests."""
    amounts = sorted(sums.meters.items())
    content = {
        "schema": SCHEMA,
        "state": "final" if report.is_final else "provisional",
        "from": report.days[0].date,
        "to": report.days[-1].date,
        "zone": report.zone,
        "by": report.grouping,
        "meters": [*report.meters],
        "columns": columns_of(report),
        "lines": sums.lines,
        "series": sums.series,
        "sums": {meter: {"value": value, "denied": denied} for meter, (value, denied) in amounts},
        "files": [one._asdict() for one in files],
        "days": [*map(_day, report.days)],
    }
    return json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"


def _day(day: ReportedDay) -> dict[str, Any]:
    if day.closed is None:
        return {"date": day.date, "state": "provisional"}
    closed = day.closed
    return {
        "date": day.date,
        "state": "final",
        "requests": closed.requests,
        "digest": closed.digest,
        **json.loads(closed.given),
    }
