"""The result of a look at a log, as values and as JSON, which docs/look.md describes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analyzer.counting.records.reading_doubts import doubt
from analyzer.forecast.look.limit_suggestions import LimitSuggestion
from analyzer.forecast.look.log_scan import ScannedFile
from analyzer.forecast.look.rehearsal import RehearsedLock
from analyzer.forecast.look.traffic_profile import Hour, JoinedSeries, SeriesTraffic, TrafficProfile
from analyzer.judging.brakes import first_exceeded_s
from analyzer.plan.policies import Surge
from analyzer.plan.windows import HOUR_S

LISTED_MAX = 100  # locked series that JSON lists


class PeakRange(NamedTuple):
    """The number of series whose peak is from `first` to `last`."""

    first: int
    last: int
    series: int


class Rehearsal(NamedTuple):
    """The locks that a policy would have set."""

    policy: Surge
    suggestion: LimitSuggestion | None  # None: the limit was given
    locks: Sequence[RehearsedLock]

    @property
    def locked(self) -> dict[tuple[str, str], list[RehearsedLock]]:
        """The locks by series, the one with most refused requests first."""
        by_series: dict[tuple[str, str], list[RehearsedLock]] = {}
        for lock in self.locks:
            by_series.setdefault((lock.key, lock.resource), []).append(lock)
        return dict(sorted(by_series.items(), key=lambda item: -sum(lock.refused for lock in item[1])))

    @property
    def locked_s(self) -> int:
        """The length of all locks together."""
        return sum(lock.until_s - lock.began_s for lock in self.locks)

    @property
    def braked_s(self) -> int | None:
        """The time at which a brake in its first day would have put the policy in shadow; None if never."""
        return first_exceeded_s(self.policy, (lock.began_s for lock in self.locks))

    @property
    def refused(self) -> int:
        """Requests that came while their series was locked."""
        return sum(lock.refused for lock in self.locks)


class LogReport(NamedTuple):
    """Everything that is shown of a log. Times are whole seconds since 1970 UTC."""

    files: Sequence[ScannedFile]
    by: str
    from_s: int | None  # begin of the first slot with requests
    until_s: int | None  # end of the last one
    requests: int
    denied: int  # that a gate had denied, not among the requests
    series: int
    client_errors: int
    server_errors: int
    bytes: int
    top: Sequence[SeriesTraffic]
    highest: int  # the largest peak
    peaks: Sequence[PeakRange]
    hours: Mapping[int, Hour]  # by their number since 1970
    rehearsal: Rehearsal | None
    joined: JoinedSeries
    floor: int  # the smallest limit that can be rehearsed
    late: int
    has_status: bool
    has_bytes: bool
    is_interrupted: bool

    @property
    def question(self) -> str:
        """Returns what the number of callers makes doubtful about the reading; "" for nothing."""
        if self.by != "caller" or not self.top or self.joined.series:
            return ""
        elsewhere = next((file.elsewhere for file in self.files if file.elsewhere), "")
        return doubt(self.requests, self.series, self.top[0].key, elsewhere)

    @property
    def unread(self) -> int:
        """Lines of all files that were not read."""
        return sum(file.unread.total() for file in self.files)

    def share(self, requests: int) -> float:
        """The share of the requests, from 0 to 1."""
        return requests / self.requests if self.requests else 0.0


def build_report(
    profile: TrafficProfile,
    series: Sequence[SeriesTraffic],
    files: Sequence[ScannedFile],
    by: str,
    rehearsal: Rehearsal | None,
    *,
    top: int,
    is_interrupted: bool = False,
) -> LogReport:
    """Returns the report; `series` are all that the profile keeps, `top` how many of them are listed."""
    peaks = Counter(traffic.peak for traffic in series) + profile.joined_peaks
    fields = frozenset[str]().union(*(file.fields for file in files))
    return LogReport(
        files=files,
        by=by,
        from_s=profile.from_s,
        until_s=profile.until_s,
        requests=profile.requests,
        denied=profile.denied,
        series=len(series) + profile.joined.series,
        client_errors=profile.client_errors,
        server_errors=profile.server_errors,
        bytes=profile.bytes,
        top=heapq.nsmallest(
            top, series, key=lambda traffic: (-traffic.requests, traffic.key, traffic.resource)
        ),
        highest=max(peaks, default=0),
        peaks=peak_ranges(peaks),
        hours=profile.hours(),
        rehearsal=rehearsal,
        joined=profile.joined,
        floor=profile.floor,
        late=profile.late,
        has_status="status" in fields,
        has_bytes="bytes" in fields,
        is_interrupted=is_interrupted,
    )


def peak_ranges(peaks: Mapping[int, int]) -> list[PeakRange]:
    """Returns the numbers of series by peak, in ranges whose ends are 1, 3, 10, 30, 100 and so on.

    >>> peak_ranges({1: 5, 2: 1, 3: 1, 40: 2})
    [PeakRange(first=1, last=1, series=5), PeakRange(first=2, last=3, series=2), \
PeakRange(first=4, last=10, series=0), PeakRange(first=11, last=30, series=0), \
PeakRange(first=31, last=100, series=2)]
    """
    highest = max(peaks, default=0)
    ranges: list[PeakRange] = []
    last, factor = 0, 1
    while last < highest:
        for end in (factor, 3 * factor):
            if last < highest:
                count = sum(count for peak, count in peaks.items() if last < peak <= end)
                ranges.append(PeakRange(last + 1, end, count))
                last = end
        factor *= 10
    return ranges


def as_json(report: LogReport) -> dict[str, Any]:
    """Returns the report as a JSON object; times are whole seconds since 1970 UTC."""
    return {
        "files": [_file_json(file) for file in report.files],
        "by": report.by,
        "from_s": report.from_s,
        "until_s": report.until_s,
        "requests": report.requests,
        "denied": report.denied,
        "series": report.series,
        "client_errors": report.client_errors if report.has_status else None,
        "server_errors": report.server_errors if report.has_status else None,
        "bytes": report.bytes if report.has_bytes else None,
        "top": [_series_json(report, traffic) for traffic in report.top],
        "peaks": [peak._asdict() for peak in report.peaks],
        "hours": [
            {"hour_s": number * HOUR_S, "requests": hour.requests, "errors": hour.errors}
            for number, hour in report.hours.items()
        ],
        "rehearsal": None if report.rehearsal is None else _rehearsal_json(report, report.rehearsal),
        "joined": report.joined._asdict(),
        "floor": report.floor,
        "late": report.late,
        "question": report.question or None,
        "interrupted": report.is_interrupted,
    }


def _file_json(file: ScannedFile) -> dict[str, Any]:
    return {
        "file": file.name,
        "format": file.format or None,
        "lines": file.lines,
        "bytes": file.size_bytes,
        "unread": dict(file.unread),
        "first_unread": [line._asdict() for line in file.first_unread],
        "problem": file.problem or None,
        "guessed_zone": file.guessed_zone or None,
    }


def _series_json(report: LogReport, traffic: SeriesTraffic) -> dict[str, Any]:
    return {
        "key": traffic.key,
        "resource": traffic.resource,
        "requests": traffic.requests,
        "share": round(report.share(traffic.requests), 6),
        "peak": traffic.peak,
        "client_errors": traffic.client_errors if report.has_status else None,
        "server_errors": traffic.server_errors if report.has_status else None,
        "bytes": traffic.bytes if report.has_bytes else None,
    }


def _rehearsal_json(report: LogReport, rehearsal: Rehearsal) -> dict[str, Any]:
    policy, locked = rehearsal.policy, rehearsal.locked
    return {
        "limit": policy.limit,
        "suggested": rehearsal.suggestion is not None,
        "per_s": policy.window.period_s,
        "slot_s": policy.window.slot_s,
        "lock_for_s": list(policy.lock_for_s),
        "series": len(locked),
        "locks": len(rehearsal.locks),
        "locked_s": rehearsal.locked_s,
        "refused": rehearsal.refused,
        "refused_share": round(report.share(rehearsal.refused), 6),
        "braked_s": rehearsal.braked_s,
        "locked": [
            {
                "key": key,
                "resource": resource,
                "locks": [
                    {"began_s": lock.began_s, "until_s": lock.until_s, "refused": lock.refused}
                    for lock in locks[:LISTED_MAX]
                ],
            }
            for (key, resource), locks in list(locked.items())[:LISTED_MAX]
        ],
    }
