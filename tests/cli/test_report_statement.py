"""`gatelock billing report statement`: a page with what one customer used, added up here from the records."""

from __future__ import annotations

from calendar import monthrange
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.kernel.tables.billing_tables import days
from tests.cli.test_reports import CONFIGURATION, Request, close_until, log

__all__ = ["log"]  # a fixture

Gatelock = Callable[..., Any]
HOSTILE = '"><script>alert(1)</script>'
REASON = "<img src=x onerror=alert(1)> & goodwill"


@pytest.fixture
def configuration() -> str:
    return CONFIGURATION


class Tables(HTMLParser):
    """The rows of a page's tables by the heading in front, without notes in small print."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: defaultdict[str, list[list[str]]] = defaultdict(list)
        self.small: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self._heading = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        if tag == "h2":
            self._heading = ""
        if tag == "tr":
            self.rows[self._heading].append([])
        if tag == "td":
            self.rows[self._heading][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "h2" in self._open:
            self._heading += data
        elif "small" in self._open:
            self.small.append(data)
        elif "td" in self._open:
            self.rows[self._heading][-1][-1] += data.strip()

    def under(self, heading: str) -> list[list[str]]:
        return [row for row in self.rows[heading] if row]


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def last_of(month: date) -> date:
    return month.replace(day=monthrange(month.year, month.month)[1])


def correct(gatelock: Gatelock, day: date, name: str, amount: str, meter: str = "requests") -> None:
    done = gatelock(
        *("billing", "days", "correct", str(day), "--caller", name, "--meter", meter, "--reason", REASON),
        f"--amount={amount}",
    )
    assert done.exit_code == 0, done.output


def page_of(gatelock: Gatelock, name: str, month: date, *, is_final: bool = True) -> str:
    written = gatelock(
        "billing", "report", "statement", name, "--month", f"{month:%Y-%m}", "--out", "page.html"
    )
    assert written.exit_code == 0, written.output
    file = Path("page.html" if is_final else "page.provisional.html")
    state = "final" if is_final else "provisional"
    assert written.stdout == f"{file}: {state}; sha256 {sha256(file.read_bytes()).hexdigest()}\n"
    content = file.read_text()
    file.unlink()
    return content


def test_a_statement_has_use_by_day_corrections_and_digests(
    gatelock: Gatelock, engine: sa.Engine, log: Callable[[Iterable[Request]], None]
) -> None:
    """One month is billed; then an earlier day is corrected, and later a day of the month."""
    before = (datetime.now(UTC) - timedelta(days=95)).date().replace(day=1)
    month = last_of(before) + timedelta(days=1)
    year_month = [month + timedelta(days=number) for number in range(last_of(month).day)]
    corrected, late_day = before + timedelta(days=9), before + timedelta(days=3)
    name = f"api_key:{HOSTILE}"
    requests = [Request(HOSTILE, noon(day), took=1_250_000 * day.day) for day in year_month[::2]]
    others = [Request("other", noon(day), took=77) for day in [corrected, late_day, *year_month]]
    of_before = [Request(HOSTILE, noon(day)) for day in (corrected, late_day)]
    log([*of_before, *others, *requests])
    close_until(engine, before, last_of(before))
    log([Request(HOSTILE, noon(late_day))] * 2)
    correct(gatelock, corrected, name, "-250ms", "busy")
    close_until(engine, month, last_of(month))
    page = page_of(gatelock, name, month)
    shown = Tables(page)
    assert "script" not in shown.tags | {"img", "link"} & shown.tags
    assert f"<h1>{name}".encode() not in page.encode()
    busy = sum(request.took for request in requests)
    booked = 2 * 1_250_000 - 250_000
    total = {row[0]: row[1:] for row in shown.under("Total")}
    assert total["busy"][:3] == [f"{amount / 10**6:,g} s" for amount in (busy, booked, busy + booked)]
    assert f"{busy + booked:,} microseconds" in shown.small
    assert total["requests"] == [str(len(requests)), "2", str(len(requests) + 2), "0"]
    by_day = {row[0]: row for row in reversed(shown.under("Use by day"))}  # the first two meters
    assert list(by_day) == list(map(str, reversed(year_month)))
    took = {str(request.at.date()): request.took for request in requests}
    assert {day: row[1] for day, row in by_day.items()} == {
        str(day): f"{took.get(str(day), 0) / 10**6:g} s" for day in year_month
    }
    changes = {(row[1], row[2]): row for row in shown.under("Changes of earlier statements")}
    assert changes[str(corrected), "busy"] == [str(month), str(corrected), "busy", "-0.25 s", REASON]
    assert changes[str(late_day), "requests"][3] == "2"
    assert "Booked since" not in shown.rows
    with engine.connect() as db:
        is_closed = days.c.state == "closed"
        digests = db.execute(sa.select(days.c.date, days.c.digest).where(is_closed).order_by(days.c.id)).all()
    assert shown.under("Check it") == [[day, digest] for day, digest in digests if day >= str(month)]

    correct(gatelock, year_month[0], name, "-1")
    again = page_of(gatelock, name, month)
    shown = Tables(again)
    booked_on = str(last_of(month) + timedelta(days=1))
    assert shown.under("Booked since") == [[booked_on, str(year_month[0]), "requests", "-1", REASON]]
    assert {row[0]: row[1:] for row in shown.under("Total")} == total, "it is part of the next statement"
    following = last_of(month) + timedelta(days=1)
    shown = Tables(page_of(gatelock, name, following, is_final=False))
    assert shown.under("Changes of earlier statements") == [
        [booked_on, str(year_month[0]), "requests", "-1", REASON]
    ]
    tenant = Tables(page_of(gatelock, "tenant:north", month))
    both = len(requests) + len([one for one in others if one.at.date() >= month])
    assert {row[0]: row[1] for row in tenant.under("Total")}["requests"] == str(both)


def test_the_commands_of_a_statement_check_its_days(
    gatelock: Gatelock, engine: sa.Engine, log: Callable[[Iterable[Request]], None]
) -> None:
    month = (datetime.now(UTC) - timedelta(days=65)).date().replace(day=1)
    log([Request("acme", noon(month))])
    close_until(engine, month, last_of(month))
    page = page_of(gatelock, "acme", month)
    commands = [
        line.partition(">")[2].partition("<")[0]
        for line in page.splitlines()
        if line.startswith('<code class="command">') and "--against-kafka" not in line
    ]
    assert len(commands) == 2
    for command in commands:
        done = gatelock(*command.split()[1:])
        assert done.exit_code == 0, done.output
    assert page == page_of(gatelock, "acme", month), "the same at any time"


def test_a_statement_is_of_the_callers_period_and_marked_while_it_is_open(
    gatelock: Gatelock, engine: sa.Engine, log: Callable[[Iterable[Request]], None]
) -> None:
    begin = datetime.now(UTC) - timedelta(days=40)
    log([Request("acme", begin - timedelta(days=1)), *[Request("acme", begin)] * 3])
    done = gatelock("callers", "set", "api_key:acme", "--anchor", f"{begin:%Y-%m-%d}")
    assert done.exit_code == 0, done.output
    shown = gatelock("billing", "report", "statement", "acme", "--month", f"{begin:%Y-%m}")
    assert shown.stderr.startswith("provisional: ")
    assert "Provisional: " in shown.stdout
    assert f"Statement of {begin:%Y-%m-%d} to " in shown.stdout
    assert {row[0]: row[1] for row in Tables(shown.stdout).under("Total")}["requests"] == "3"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ("acme --month november", 2, "--month november: write a month, such as 2026-11"),
        ("api_key:acne --month 2026-11", 1, "api_key:acme"),
    ],
)
def test_impossible_statements_are_refused(
    gatelock: Gatelock,
    log: Callable[[Iterable[Request]], None],
    arguments: str,
    code: int,
    why: str,
) -> None:
    log([Request("acme", datetime.now(UTC))])
    result = gatelock("billing", "report", "statement", *arguments.split())
    assert (result.exit_code, why in result.stderr) == (code, True), result.output
