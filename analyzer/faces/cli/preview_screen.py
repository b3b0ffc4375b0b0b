"""A look at a log as lines of text that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo

from analyzer.config.values import format_duration
from analyzer.forecast.look.preview_report import LogReport, Rehearsal
from analyzer.forecast.look.traffic_profile import SeriesTraffic
from analyzer.judging.brakes import exceeded_sentence
from analyzer.kernel.number_texts import length_text, share_text, size_text
from analyzer.kernel.sentences import plural
from analyzer.kernel.time_texts import format_second
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.windows import HOUR_S

WIDTH_MIN, WIDTH_MAX = 60, 120
BAR_MAX = 40
BLOCKS = " ▁▂▃▄▅▆▇█"
LOCKED_SHOWN = 10
NOUNS = {"caller": "caller", "address": "address", "range": "network", "tenant": "tenant"}
NOUNS |= {"resource": "resource", "everyone": "series"}


def lines_of(report: LogReport, width: int, zone: tzinfo = UTC) -> Iterator[str]:
    """Yields the lines, none of them wider than `width` columns but for sentences and single long words."""
    width = max(WIDTH_MIN, min(width, WIDTH_MAX))
    yield from _summary(report)
    if not report.requests:
        return
    yield ""
    yield from _top(report, width)
    yield ""
    yield from _peaks(report)
    yield ""
    yield from _hours(report, zone)
    if report.rehearsal is not None:
        yield ""
        yield from wrapped(rehearsal_sentence(report, report.rehearsal), width)
        yield from _locked(report.rehearsal, width)


def series_noun(report: LogReport, count: int) -> str:
    """Returns the noun of `count` series, such as "callers"."""
    grouping = parse_grouping(report.by)
    noun = NOUNS[grouping.scope]
    if grouping.resource is not None and grouping.scope != "resource":
        return f"pair{'s' * (count != 1)} of {noun} and resource"
    return noun if count == 1 else f"{noun}{'es' if noun == 'address' else 's'}"


def noun_of(report: LogReport, count: int) -> str:
    """Returns the number of series with their noun, such as "3 callers"."""
    return f"{count:,} {series_noun(report, count)}"


def _summary(report: LogReport) -> Iterator[str]:
    for file in report.files:
        if not file.format:
            continue
        read = plural(file.lines, "line")
        yield f"{file.name}: {file.format}, {read}, {size_text(file.size_bytes)}"
    if report.from_s is None or report.until_s is None:
        return
    at_least = "at least " if report.joined.series else ""
    lasts = length_text(report.until_s - report.from_s)
    yield f"{plural(report.requests, 'request')} of {at_least}{noun_of(report, report.series)} in {lasts}"
    yield f"from {format_second(report.from_s)} to {format_second(report.until_s)}"
    if report.denied:
        yield f"and {plural(report.denied, 'request')} that a gate had denied"


def _top(report: LogReport, width: int) -> Iterator[str]:
    window = "peak/min"
    if report.rehearsal is not None and report.rehearsal.policy.window.period_s != 60:
        window = f"peak/{format_duration(report.rehearsal.policy.window.period_s)}"
    heads = ["requests", "share", window]
    heads += ["4xx", "5xx"] if report.has_status else []
    heads += ["bytes"] if report.has_bytes else []
    rows = [_cells(report, series) for series in report.top]
    widths = [max(len(head), *(len(row[column]) for row in rows)) for column, head in enumerate(heads)]
    names = [name_of(series.key, series.resource) for series in report.top]
    room = max(16, width - sum(widths) - 2 * len(widths))
    first = min(room, max(len(report.by), *map(len, names)))
    for name, cells in zip([report.by, *names], [heads, *rows], strict=True):
        shown = [f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)]
        yield "  ".join([f"{shortened(name, first):<{first}}", *shown])
    if report.joined.series:
        yield f"and {report.joined.requests:,} requests of callers with fewer than {report.floor:,}"


def _cells(report: LogReport, series: SeriesTraffic) -> list[str]:
    cells = [f"{series.requests:,}", f"{report.share(series.requests):.1%}", f"{series.peak:,}"]
    cells += [f"{series.client_errors:,}", f"{series.server_errors:,}"] if report.has_status else []
    return cells + ([size_text(series.bytes)] if report.has_bytes else [])


def _peaks(report: LogReport) -> Iterator[str]:
    per_s = 60 if report.rehearsal is None else report.rehearsal.policy.window.period_s
    noun = series_noun(report, 2)
    yield f"{noun} by their highest number of requests in {format_duration(per_s)}"
    most = max(peak.series for peak in report.peaks)
    ranges = [
        f"{peak.first:,}" if peak.first == peak.last else f"{peak.first:,}-{peak.last:,}"
        for peak in report.peaks
    ]
    counts = [f"{peak.series:,}" for peak in report.peaks]
    for range_, count, peak in zip(ranges, counts, report.peaks, strict=True):
        bar = "█" * (-(-peak.series * BAR_MAX // most))
        yield f"{range_:>{max(map(len, ranges))}}  {count:>{max(map(len, counts))}}  {bar}".rstrip()


def _hours(report: LogReport, zone: tzinfo) -> Iterator[str]:
    """Yields the mean of each hour of the day, and the loudest and quietest hours of the log."""
    of_day = [0] * 24
    for number, hour in report.hours.items():
        of_day[datetime.fromtimestamp(number * HOUR_S, zone).hour] += hour.requests
    most = max(of_day) or 1
    bars = "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // most)] * 2 for count in of_day)
    yield f"requests by hour of the day ({zone})"
    yield f"  {bars}"
    yield "  " + "".join(f"{hour:<12}" for hour in (0, 6, 12, 18)).rstrip()
    loudest = max(report.hours, key=lambda number: report.hours[number].requests)
    first, last = min(report.hours), max(report.hours)
    # Not the first and the last hour, which may be cut. An hour without requests is not among `hours`.
    inner = range(first + 1, last) if last - first <= 100_000 else report.hours
    text = f"loudest {_hour_text(report, loudest, zone)}"
    if len(inner) > 1:
        empty = next((number for number in inner if number not in report.hours), None)
        kept = {number: report.hours[number].requests for number in inner if number in report.hours}
        quietest = empty if empty is not None else min(kept, key=lambda number: kept[number])
        text += f", quietest {_hour_text(report, quietest, zone)}"
    yield text


def _hour_text(report: LogReport, number: int, zone: tzinfo) -> str:
    begin = datetime.fromtimestamp(number * HOUR_S, zone).isoformat(timespec="minutes").replace("+00:00", "Z")
    requests = report.hours[number].requests if number in report.hours else 0
    return f"{begin} ({requests:,})"


def rehearsal_sentence(report: LogReport, rehearsal: Rehearsal) -> str:
    """Returns what a policy with this limit would have done."""
    policy, locked = rehearsal.policy, rehearsal.locked
    per_s, noun = policy.window.period_s, series_noun(report, 1)
    window = "a minute" if per_s == 60 else f"in {format_duration(per_s)}"
    begin = f"At {policy.limit:,} {window} you would have locked"
    if not locked:
        if report.highest >= policy.limit:
            return f"{begin} no {noun}: the busiest had {report.highest:,}, but most of it from one address"
        reason = "none stands out, " if rehearsal.suggestion is not None else ""
        return f"{begin} no {noun}: {reason}the busiest had {report.highest:,}"
    nouns = "this one" if len(locked) == 1 else noun_of(report, len(locked))
    if 1 < len(locked) <= LOCKED_SHOWN:
        nouns = f"these {nouns}"
    times = "once" if len(rehearsal.locks) == 1 else f"{len(rehearsal.locks):,} times"
    text = (
        f"{begin} {nouns}, {times}, for {length_text(rehearsal.locked_s)} in all, with "
        f"{share_text(report.share(rehearsal.refused))} of the requests, and no other {noun}"
    )
    if rehearsal.suggestion is not None and rehearsal.suggestion.above is not None:
        text += (
            f". The limit is a suggestion: those had {rehearsal.suggestion.above:,} or more at peak, all "
            f"others {rehearsal.suggestion.below:,} at most"
        )
    if rehearsal.braked_s is not None:
        text += f". And {exceeded_sentence(policy, rehearsal.braked_s)}"
    return text


def _locked(rehearsal: Rehearsal, width: int) -> Iterator[str]:
    shown = list(rehearsal.locked.items())[:LOCKED_SHOWN]
    texts = [
        f"first at {format_second(locks[0].began_s)}, {plural(len(locks), 'lock')}, "
        f"{sum(lock.refused for lock in locks):,} refused"
        for _, locks in shown
    ]
    names = [name_of(*series) for series, _ in shown]
    room = max(16, width - 4 - max(map(len, texts), default=0))
    first = min(room, max(map(len, names), default=0))
    for name, text in zip(names, texts, strict=True):
        yield f"  {shortened(name, first):<{first}}  {text}"


def name_of(key: str, resource: str) -> str:
    """Returns a series as one text."""
    return " ".join(part for part in (key, resource) if part) or "(none)"


def shortened(text: str, size: int) -> str:
    """Returns the text, cut in the middle to `size` characters.

    >>> shortened("api_key:0123456789abcdef", 16)
    'api_key:…9abcdef'
    """
    if len(text) <= size:
        return text
    behind = (size - 1) // 2
    return f"{text[: size - 1 - behind]}…{text[len(text) - behind :]}"


def wrapped(text: str, width: int) -> Sequence[str]:
    """Returns a sentence in lines of at most `width` columns."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
