"""Signals: what is wrong with the installation, on a page and in the banner of the first page."""

from __future__ import annotations

from analyzer.faces.pages.page_content import (
    SEVERITY_MOODS,
    Banner,
    Column,
    Content,
    Link,
    PageTable,
    severity_chip,
)
from analyzer.faces.pages.page_request import PageRequest, utc_text
from analyzer.faces.signals.signal_kinds import Signal
from analyzer.faces.signals.signal_table import standing_signals
from analyzer.kernel.database.engine import Engine

PATH = "/signals"
COLUMNS = (
    Column("severity", "Severity", "state"), Column("what", "What", "prose", 1),
    Column("since", "Since", "time"),
    Column("cure", "What to do", "cure", 3), Column("address", "More", "link"),
)  # fmt: skip
NOTHING_WRONG = "Nothing is wrong."


def signals(request: PageRequest) -> Content:
    """Returns all signals that stand, the worst first."""
    standing = standing_signals(request.engine)
    rows = [
        {
            "severity": severity_chip(signal.severity),
            "what": signal.what,
            "since": utc_text(signal.since_ms / 1000) if signal.since_ms else None,
            "cure": signal.cure,
            "address": Link("page", signal.page) if signal.page else None,
        }
        for signal in standing
    ]
    table = PageTable("signals", "What stands", COLUMNS, rows, NOTHING_WRONG)
    return Content("Signals", "As gatelock doctor finds them.", blocks=[table])


def signals_banner(engine: Engine) -> Banner:
    """Returns the worst signal and how many more there are, or that nothing is wrong. Raises StoreAway."""
    standing = standing_signals(engine)
    bad = [signal for signal in standing if signal.severity != "info"]
    if not bad:
        return Banner(NOTHING_WRONG, "good", *_link(standing, "for a decision"))
    worst, *others = bad
    text = f"{worst.what[:1].upper()}{worst.what[1:]}"
    text += "" if text.endswith(("?", ".")) else "."
    return Banner(text, SEVERITY_MOODS[worst.severity], *_link(others, "more"), cure=worst.cure)


def _link(others: list[Signal], words: str) -> tuple[str, str]:
    """Returns the text and the address of the link to the page; empty without other signals."""
    return (f"{len(others)} {words}", PATH) if others else ("", "")
