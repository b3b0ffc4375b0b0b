"""Gates and the audit log: who enforces, and who did what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from analyzer.faces.api.pages import PagePlace
from analyzer.faces.pages.page_content import Chip, Column, Content, PageTable, RowOrder, Tile
from analyzer.faces.pages.page_request import PageRequest, PlacedFields, listed, utc_text
from analyzer.gates.gate_answers import listed_gates
from analyzer.kernel.database.audit_log import count_entries, entries
from analyzer.kernel.database.clock import millis
from analyzer.kernel.number_texts import length_text, share_text
from analyzer.kernel.sentences import plural

TRAIL = "/trail"
LIKE: PagePlace = (0, "")

GATE_COLUMNS = (
    Column("application", "Application", rank=1), Column("instance", "Process"),
    Column("state", "State", "state"),
    Column("mode", "Mode"), Column("version", "Version", "count"), Column("age_s", "Age of its view", "age"),
    Column("heard_s", "Reported", "age"), Column("checks", "Checks", "count"),
    Column("denials", "Refused", "count"),
    Column("wrong", "What is wrong", rank=3),
)  # fmt: skip
TRAIL_COLUMNS = (
    Column("at", "Time", "time"), Column("act", "Act", "find"), Column("about", "About", rank=1),
    Column("who", "By", "find"), Column("why", "Why", rank=3),
)  # fmt: skip


def gates(request: PageRequest) -> Content:
    """Returns the gates that report, with the age of their views and what is wrong with each."""
    rows: list[dict[str, Any]] = []
    for gate in listed_gates(request.engine).as_objects():
        wrong = cast("dict[str, str]", gate["wrong"])
        state = Chip("wrong", "bad") if wrong else Chip("fine", "good")
        name = gate["application"] or gate.get("address") or "unknown"
        rows.append(gate | {"state": state, "wrong": "; ".join(wrong.values()), "application": name})
    rows.sort(key=lambda row: (row["state"].mood == "good", str(row["application"]), str(row["instance"])))
    ages = [row["age_s"] for row in rows if row.get("age_s") is not None]
    checks, denials = (sum(row.get(name) or 0 for row in rows) for name in ("checks", "denials"))
    wrong_count = sum(row["state"].mood == "bad" for row in rows)
    tiles = [
        Tile("processes", f"{len(rows):,}", plural(len({row["application"] for row in rows}), "application")),
        Tile("wrong", f"{wrong_count:,}", "gates and refused clients", "bad" if wrong_count else "good"),
        Tile("oldest view", length_text(round(max(ages), 1)) if ages else "unknown"),
        Tile("refused", share_text(denials, checks), f"{denials:,} of {checks:,} checks"),
    ]  # fmt: skip
    empty = "No gate has reported yet. An application gets one by gatekeeper.Gate."
    table = PageTable("gates", "Gates", GATE_COLUMNS, rows, empty)
    return Content("Gates", tiles=tiles if rows else (), blocks=[table])


def trail(request: PageRequest) -> Content:
    """Returns the audit log: who did what, and why. Raises HttpProblem for a wrong cursor."""
    filters, engine = request.filters, request.engine
    since_ms, until_ms = (filters.now_s - filters.length_s) * 1000, (filters.now_s + 1) * 1000
    text = filters.caller

    def behind(place: PagePlace | None) -> Iterator[PlacedFields]:
        start = None if place is None else (int(place[0]), str(place[1]))
        for entry in entries(engine, since_ms, until_ms, text, start):
            row = {"at": utc_text(entry.at.timestamp()), "who": entry.who, "act": entry.act,
                   "about": entry.about, "why": entry.why}  # fmt: skip
            yield (-millis(entry.at), entry.id), row

    rows = listed(request, TRAIL, behind, LIKE)
    empty = f"Nothing was done in {filters.time_text}{' about this' if text else ''}."
    total = count_entries(engine, since_ms, until_ms, text)
    table = PageTable(
        "trail", "What was done", TRAIL_COLUMNS, **rows._asdict(), empty=empty, total=total,
        order=RowOrder("at", "The latest first: the order that has an index."),
    )  # fmt: skip
    return Content("Audit log", blocks=[table])
