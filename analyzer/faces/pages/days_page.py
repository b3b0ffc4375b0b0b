"""Days: what is open with its running totals, what was closed, audited, corrected and handed over."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from analyzer.billing.audit.audit_outcomes import outcomes
from analyzer.billing.hand_over.delivered_sums import read_delivered_sums
from analyzer.billing.reports.booked_corrections import booked_amounts
from analyzer.billing.reports.day_status import DayStatus, day_statuses
from analyzer.counting.traffic import TrafficQuery, traffic
from analyzer.counting.usage_windows import counted_meters
from analyzer.faces.day_answers import audit_fields, day_fields, delivery_fields
from analyzer.faces.pages.page_content import Chip, Column, Content, Link, Mood, PageTable, Quantity, Tile
from analyzer.faces.pages.page_request import PageRequest
from analyzer.faces.pages.traffic_blocks import NOTHING
from analyzer.kernel.number_texts import count_text
from analyzer.plan.meter_units import rounded_text

DELIVERED_DAYS = 10  # whose deliveries are compared with their rows for a page
STEP_S = 3_600
OPEN_METERS = 4  # whose running totals are tiles
STATES: Mapping[str, Mood] = {"closed": "good", "open": "plain", "closing": "watch"}
AUDITS: Mapping[str, Mood] = {"equal": "good", "differs": "bad"}

DAY_COLUMNS = (
    Column("day", "Day", rank=1), Column("zone", "Zone"), Column("state", "State", "state"),
    Column("audit", "Audit", "state"), Column("requests", "Requests", "count"),
    Column("rows", "Rows", "count"),
    Column("adjusted", "Late", "count"), Column("corrected", "Corrected", "count"),
    Column("closed", "Closed", "time"), Column("digest", "Digest", rank=0),
    Column("report", "Report", "link"),
)  # fmt: skip
DELIVERY_COLUMNS = (
    Column("day", "Day", rank=1), Column("zone", "Zone"), Column("destination", "To"), Column("by", "By"),
    Column("meter", "Meter"), Column("kind", "Kind"), Column("amount", "Acknowledged", "count"),
    Column("left_out_amount", "Left out", "count"), Column("to_send", "Left to send", "count"),
    Column("of_day", "The day has", "count"), Column("state", "Reconciled", "state"),
)  # fmt: skip

CORRECTIONS = 100  # rows
CORRECTION_COLUMNS = (
    Column("booked", "Booked on"), Column("day", "Corrects"), Column("zone", "Zone"),
    Column("name", "Who", "caller", 1), Column("meter", "Meter"), Column("value", "Amount", "amount"),
    Column("kind", "Kind", "state"), Column("who", "By"), Column("reason", "Why", rank=3),
)  # fmt: skip


def days(request: PageRequest) -> Content:
    """Returns the days of billing."""
    engine = request.engine
    audited = {outcome.day: outcome for outcome in outcomes(engine)}
    statuses = sorted(day_statuses(engine, None), key=lambda status: (-status.day.begin_s, status.day.zone))
    rows = [_day_row(status, dict(audit_fields(audited.get(status.day.id)))) for status in statuses]
    newest = {status.day.id: status.day for status in statuses[:DELIVERED_DAYS]}
    delivered = [
        _delivery_row({"day": newest[day].date, "zone": newest[day].zone, **delivery_fields(sums)})
        for day, deliveries in read_delivered_sums(engine, list(newest.values())).items()
        for sums in deliveries
    ]
    empty = "No day is closed yet: set zones in [billing], and the first day closes after its end."
    return Content(
        "Days",
        tiles=_open_day(request, statuses),
        blocks=[
            PageTable("days", "Days", DAY_COLUMNS, rows, empty),
            PageTable(
                "deliveries", f"Handed over and reconciled, of the last {DELIVERED_DAYS} days",
                DELIVERY_COLUMNS, delivered, "Nothing of these days was handed over to a billing service.",
            ),
            _corrections(request, statuses),
        ],
    )  # fmt: skip


def _corrections(request: PageRequest, statuses: list[DayStatus]) -> PageTable:
    """Returns what was booked on the newest days because earlier ones were closed."""
    dates = sorted({status.day.date for status in statuses})[-DELIVERED_DAYS:]
    rows: list[dict[str, Any]] = []
    for zone in sorted({status.day.zone for status in statuses}) if dates else ():
        amounts = booked_amounts(request.engine, zone, dates[0], dates[-1], "caller")
        rows += [
            amount._asdict()
            | {"value": Quantity(amount.value, request.unit(amount.meter)), "kind": Chip(amount.kind)}
            for amount in islice(amounts, CORRECTIONS)
        ]
    return PageTable(
        "corrections", f"Corrections and late records, booked in the last {DELIVERED_DAYS} days",
        CORRECTION_COLUMNS, rows[:CORRECTIONS], "Nothing was corrected, and no record came late.",
        f"The first {CORRECTIONS}; reports have all." if len(rows) >= CORRECTIONS else "",
    )  # fmt: skip


def _day_row(status: DayStatus, audit: dict[str, Any]) -> dict[str, Any]:
    day, fields = status.day, {**day_fields(status), **audit}
    can_be_read = day.state == "closed" and status.deleted_ms is None
    report = Link("CSV", f"/download/report?day={day.date}&zone={day.zone}") if can_be_read else None
    state = str(fields["state"])
    result = fields["audit"]
    return fields | {
        "state": Chip(state, STATES.get(state, "plain")),
        "audit": Chip(str(result), AUDITS.get(str(result), "watch")) if result else None,
        # Those of an open day are not frozen: its tiles have the running totals.
        "requests": fields["requests"] if day.state == "closed" else None,
        "rows": fields["rows"] if day.state == "closed" else None,
        "report": report,
    }  # fmt: skip


def _delivery_row(fields: dict[str, Any]) -> dict[str, Any]:
    if fields["difference"]:
        return fields | {"state": Chip(str(fields["difference"]), "bad")}
    return fields | {"state": Chip("equal", "good") if fields["complete"] else Chip("sending")}


def _open_day(request: PageRequest, statuses: list[DayStatus]) -> list[Tile]:
    """Returns the running totals of the newest open day."""
    is_open = [status.day for status in statuses if status.day.state == "open"]
    if not is_open:
        return []
    now_s = request.filters.now_s
    day = next((day for day in is_open if day.begin_s <= now_s < day.end_s), is_open[0])
    tiles = [Tile("open day", day.date, f"{day.zone}, so far")]
    for meter in sorted(counted_meters(request.engine), key=lambda name: (name != "requests", name))[
        :OPEN_METERS
    ]:
        query = TrafficQuery("caller", day.begin_s, min(day.end_s, now_s + 1), STEP_S, 1, meter)
        amounts, unit = traffic(request.engine, query), request.unit(meter)
        line = [
            amounts.whole.get(at_s, NOTHING).value
            for at_s in range(day.begin_s - day.begin_s % STEP_S, min(day.end_s, now_s + 1), STEP_S)
        ]
        total = amounts.total.value
        value = count_text(total) if unit is None else rounded_text(total, unit)
        tiles.append(Tile(meter, value, "running total", line=line))
    return tiles
