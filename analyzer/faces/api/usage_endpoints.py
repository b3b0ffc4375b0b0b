"""`/v1/usage`: counts of series by time, and `/v1/days`, `/v1/reports` of closed days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain
from zoneinfo import ZoneInfo

from analyzer.acting.parameters import Caller, OfText, OneOf, Time, Whole
from analyzer.billing.audit.audit_outcomes import outcomes
from analyzer.billing.reports.day_report import NotFrozen, read_report, report_rows
from analyzer.billing.reports.day_status import day_statuses
from analyzer.billing.reports.report_lines import ReportSums, line_cells, report_columns, usage_lines
from analyzer.callers.counted_names import never_counted
from analyzer.counting.largest_rows import largest_rows
from analyzer.counting.usage import UsageQuery, counted_values, is_counted, usage_rows
from analyzer.counting.usage_rows import UsageAnswer
from analyzer.counting.usage_windows import counted_meters, final_until_s
from analyzer.faces.api.endpoints import ApiContext, ApiRequest, Endpoint, NotPossible, NotThere
from analyzer.faces.api.pages import ROWS_MAX, PlacedRow
from analyzer.faces.api.requested_values import parameter
from analyzer.faces.day_answers import audit_fields, day_fields
from analyzer.faces.live_callers import ROWS_MAX as LIVE_ROWS_MAX
from analyzer.faces.live_callers import SORTS, SPANS_S, LiveQuery, live_callers
from analyzer.plan.groupings import Grouping, known_grouping
from analyzer.plan.windows import is_zone

WIDTHS_S = {"minute": 60, "hour": 3_600, "day": 86_400}
RANGE_S = {"minute": 2 * 86_400, "hour": 62 * 86_400, "day": 800 * 86_400}  # the longest of a request
DATE = r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
DAYS_MAX = 62  # of a report

BY = parameter(
    "by", OfText(r"^[a-z0-9_/+-]+$", "a grouping"), "What to group by: caller, tenant, resource, address, "
    "address/24, everyone; two parts as caller+resource, of which each has a key.", "caller", "caller",
)  # fmt: skip
ZONE = parameter(
    "zone", OfText(r"^[A-Za-z0-9_+/-]+$", "a time zone"), "The time zone of the days.", "UTC", "UTC"
)


def live(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns the callers of this moment."""
    query = LiveQuery(request["span"], request["sort"], request["text"] or "", request["rows"])
    kinds = {kind for source in context.settings.sources for kind in source.callers}
    return live_callers(context.engine, query, kinds).as_object()


def _asked(
    context: ApiContext, request: ApiRequest, top: int | None = None
) -> tuple[UsageQuery, UsageAnswer]:
    """Returns the query of a request, and what makes objects of its rows.

    Raises NotPossible for what cannot be asked for.
    """
    grouping = _grouping(context, request["by"])
    width, meter, caller = request["width"], request["meter"], request.values.get("caller")
    from_s, until_s = context.second(request["from"]), context.second(request["to"])
    if from_s >= until_s or until_s - from_s > RANGE_S[width]:
        days = RANGE_S[width] // 86_400
        raise NotPossible(f"`from` must be before `to`, by at most {days} days with the width {width}")
    if caller is not None and not grouping.is_of_callers:
        raise NotPossible(f"counts by {grouping.name} have no caller: leave `caller` out")
    meters = counted_meters(context.engine)
    if meter is not None and meter not in meters:
        raise NotPossible(f"no such meter was counted; there are: {', '.join(sorted(meters)) or 'none'}")
    if caller is not None:
        caller = context.settings.counted_name(caller)
    if request.after is not None:
        from_s = max(from_s, int(request.after[0]))
    query = UsageQuery(grouping.name, WIDTHS_S[width], from_s, until_s, caller, meter, top)
    made = UsageAnswer(
        grouping, WIDTHS_S[width], ZoneInfo("UTC"), context.settings.units(), final_until_s(context.engine)
    )
    return query, made


def _require_counted(context: ApiContext, query: UsageQuery, *, has_rows: bool) -> None:
    """Raises NotThere for a caller without rows that was never counted."""
    if not has_rows and query.key is not None:
        absence = never_counted(context.engine, query.key)
        if absence is not None:
            raise NotThere(str(absence))


def _known(context: ApiContext, name: str) -> Grouping:
    return known_grouping(name, {*context.settings.named_values, *counted_values(context.engine)})


def _grouping(context: ApiContext, name: str) -> Grouping:
    try:
        grouping = _known(context, name)
    except ValueError as error:
        raise NotPossible(f"`by`: {error}") from error
    if grouping.name != "caller" and not is_counted(context.engine, grouping.name):
        raise NotPossible(f"nothing was counted by {grouping.name}: add it to groupings in [[sources]]")
    return grouping


def list_usage(context: ApiContext, request: ApiRequest) -> Iterator[PlacedRow]:
    """Yields the counts by time, key, resource and meter."""
    query, made = _asked(context, request)
    rows = usage_rows(context.engine, query)
    first = next(rows, None)
    _require_counted(context, query, has_rows=first is not None)
    for row in [] if first is None else chain([first], rows):
        yield (row.bucket_s, row.key, row.resource, row.width_s, row.meter), made.as_object(row)


def top_usage(context: ApiContext, request: ApiRequest) -> Mapping[str, object]:
    """Returns the largest rows, and what others have at most."""
    query, made = _asked(context, request, request["top"])
    largest = largest_rows(context.engine, query)
    _require_counted(context, query, has_rows=bool(largest.rows))
    return {
        "items": [made.as_object(row) for row in largest.rows],
        "exact": largest.is_exact,
        "unlisted_at_most": largest.unlisted_at_most,
    }


def list_days(context: ApiContext, request: ApiRequest) -> Iterator[PlacedRow]:
    """Yields the stored days, the newest first."""
    audited = {outcome.day: outcome for outcome in outcomes(context.engine)}
    for status in reversed(day_statuses(context.engine, request["zone"])):
        place = (-status.day.begin_s, status.day.zone)
        yield place, day_fields(status) | audit_fields(audited.get(status.day.id))


def list_report(context: ApiContext, request: ApiRequest) -> Iterator[PlacedRow]:
    """Yields the lines of a report of days, as `gatelock billing report write` has them."""
    first, last, zone = request["from"], request["to"], request["zone"]
    for name, day in (("from", first), ("to", last)):
        if not _is_day(day):
            raise NotPossible(f"`{name}`: there is no day {day}")
    if first > last or not is_zone(zone):
        raise NotPossible("`from` must not be behind `to`, and `zone` must be one of [billing] zones")
    zones = context.settings.billing.zones
    if zone not in zones:
        raise NotPossible(f"`zone` must be one of [billing] zones: {', '.join(zones)}")
    try:
        _known(context, request["by"])
        report = read_report(context.engine, zone, first, last, request["by"], request["meter"])
    except (NotFrozen, LookupError, ValueError) as error:
        raise NotPossible(str(error)) from error
    if len(report.days) > DAYS_MAX:
        raise NotPossible(
            f"a report has at most {DAYS_MAX} days here: `gatelock billing report write` has more"
        )
    columns = report_columns(report)
    lines = usage_lines(report, report_rows(context.engine, report), context.settings.units(), ReportSums())
    for number, line in enumerate(lines):
        yield (number,), dict(zip(columns, line_cells(line, columns), strict=True))


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


METER = parameter("meter", OfText(), "Only this meter, such as requests.", "requests")
COUNTED = (
    BY,
    parameter("width", OneOf([*WIDTHS_S]), "Length of a bucket, in UTC.", "hour", "day"),
    parameter(
        "from", Time(), "Begin, inclusive: a date, a time with its zone, or an age.", "24h", required=True
    ),
    parameter("to", Time(), "End, exclusive.", "0s", required=True),
    parameter("caller", Caller(), "Only this one.", "user:ann"),
    METER,
)
COUNTED_ROW = {
    "caller": "api_key:acme", "resource": "", "meter": "requests", "bucket": "2026-11-20T21:00:00Z",
    "value": 100_214, "denied": 12, "provisional": False,
}  # fmt: skip

LIVE = {
    "at": "2026-11-20T21:14:03Z", "span": "1h", "rate": 83.2, "requests": 301_204, "denied": 1_204,
    "suspended": "", "note": "",
    "rows": [
        {"caller": "api_key:acme", "rate": 40.1, "requests": 150_000, "denied": 1_204, "share": 0.498,
         "earlier": 20_000, "policy": "daily", "used": 1.002, "is_shadow": False, "locked_by": ["daily"],
         "until": "2026-11-21T00:00:00Z"}
    ],
}  # fmt: skip

ENDPOINTS = (
    Endpoint(
        "GET", "/v1/usage", "view",
        "Counts: a row for each series, bucket and meter. Amounts are whole numbers, in `unit` if "
        "that is there; `denied` is not part of `value`. Rows of another width than was asked for have "
        "`width_s`, in seconds.",
        list_usage, COUNTED_ROW, COUNTED, (0, "", "", 0, ""),
    ),
    Endpoint(
        "GET", "/v1/usage/top", "view",
        "The rows with the most of a meter, the largest first. With `exact`, no other row has more than the "
        "last of them; without it, another one has `unlisted_at_most` at most.",
        top_usage, {"items": [COUNTED_ROW], "exact": True, "unlisted_at_most": 0},
        (*COUNTED, parameter("top", Whole(1, ROWS_MAX), "So many rows.", 10, 10)),
    ),
    Endpoint(
        "GET", "/v1/usage/live", "view",
        "The callers of this moment: rate per second of the last minute or two, requests of a span and of "
        "the one before, the nearest limit, locks. Sorts other than `requests` and `rate` order the callers "
        "with the most of these.",
        live, LIVE,
        (
            parameter("span", OneOf([*SPANS_S]), "The time whose requests are added up.", "1h", "1h"),
            parameter("sort", OneOf([*SORTS]), "The order.", "rate", "requests"),
            parameter("text", OfText(), "Only callers whose name contains it.", "acme"),
            parameter("rows", Whole(1, LIVE_ROWS_MAX), "So many callers.", 40, 40),
        ),
    ),
    Endpoint(
        "GET", "/v1/days/list", "view", "Days that are closed or open, the newest first.", list_days,
        {"day": "2026-11-20", "zone": "UTC", "state": "closed", "requests": 1_200_000, "audit": "equal"},
        (parameter("zone", ZONE.param.kind, "Only days of this time zone.", "UTC"),), (0, ""),
    ),
    Endpoint(
        "GET", "/v1/reports/list", "view", "The lines of reports of closed days, for invoices.",
        list_report, {"day": "2026-11-20", "caller": "api_key:acme", "requests": 100_214},
        (
            parameter("from", OfText(DATE, "a date"), "The first day.", "2026-11-01", required=True),
            parameter("to", OfText(DATE, "a date"), "The last day, included.", "2026-11-20", required=True),
            ZONE, BY, METER,
        ),
        (0,),
    ),
)  # fmt: skip
