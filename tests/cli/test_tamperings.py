"""Every SQL right and no key: each tampering is found, by the ways that docs/billing.md names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.cli import tampered_bill
from tests.cli.tampered_bill import CLOSING, TAMPERINGS, Bill, found_by
from tests.house.reading import ROOT
from tests.support.billing_server import KEY, billing_server
from tests.support.depth import IS_DEEP
from tests.support.restoring import backed_up

ROWS = {  # of the table of docs/billing.md: what is done, and which ways find each
    "a row of a day, a lost row, an adjustment or a correction of a closed day": {
        "late requests moved, booked on a closed day": ("audit", "audit --days", "days list"),
        "an adjustment moved to another booking": ("audit", "audit --days", "days list"),
        "an adjustment of a closed booking added": ("audit", "audit --days", "days list"),
        "a correction booked on another day": ("audit", "audit --days", "days list", CLOSING),
    },
    "the date, zone, end, meters, groupings, sums, cut or origin of a closed day": {
        "the number of requests of a day": ("audit", "audit --days", "audit --report", "days list"),
        "the number of rows of a day": ("audit", "audit --days", "days list"),
        "the time of a closing": ("audit", "audit --days", "days list"),
        "the time of a cut": ("audit", "audit --days", "days list"),
        "the zone of a day": ("audit", "audit --days", "audit --report", "days list"),
        "the date of a day": ("audit", "audit --report"),
        "the end of a day": ("audit", "audit --days", "days list"),
        "the meters of a day": ("audit", "audit --days", "audit --report", "days list"),
        "the groupings of a day": ("audit", "audit --days", "audit --report", "days list"),
        "what a day takes as given": ("audit", "audit --days", "audit --report", "days list"),
        "a cut": ("audit", "audit --days", "days list"),
        "a target": ("audit", "audit --days", "days list"),
        "a position of a day lost": ("audit", "audit --days", "days list"),
    },
    "a row that was moved from one caller to another": {
        "requests moved on a closed day": ("audit", "audit --days", "audit --report", "days list"),
    },
    "the digest too": {
        "the same, and the digests made again": ("audit", "audit --days", "audit --report", "days list"),
    },
    "the digest too, and the chain": {
        "the same, and the chain made again": (
            "audit",
            "audit --days",
            "audit --report",
            "days list",
            CLOSING,
        ),
    },
    "the buckets of a closed day": {
        "buckets of a closed day": ("audit --days", "days list"),
    },
    "the buckets of the open day, and what is booked on it late": {
        "buckets of the open day": (CLOSING,),
        "late requests moved, booked on an open day": (CLOSING,),
        "late requests taken away": ("audit", CLOSING),
        "numbers of two meters swapped": ("audit", CLOSING),
    },
    "the offset or the ledger of a partition": {
        "an offset": ("audit", "audit --days", "days list", CLOSING),
        "the ledger of a partition": ("audit",),
    },
    "the name of a caller, or the key of its reference": {
        "names of two callers swapped": ("audit", "audit --days", "audit --report", "days list", CLOSING),
        "a name lost": ("audit", "audit --days", "audit --report", "days list"),
        "the key of references": ("audit", "audit --days", "days list"),
    },
    "what was handed over of a day": {
        "a delivery's amount": ("audit", "audit --days", "days list"),
        "a delivery lost": ("audit", "audit --days", "days list"),
        "a delivery that is not finished": ("days list",),
        "a delivery to another destination": ("audit", "audit --days", "days list"),
    },
    "a correction, or the reason of one": {
        "a reason": ("audit", "audit --days", "days list", CLOSING),
        "the meter of a correction": ("audit", "audit --days", "days list", CLOSING),
        "a correction copied": ("audit", "audit --days", "days list"),
        "a salt of a correction lost": ("audit", "audit --days", "days list", CLOSING),
    },
    "a plan": {
        "the salt of a plan lost, and its body changed": ("audit", "audit --days", "days list", CLOSING),
    },
    "the last entries, with what they are about": {
        "the last entry lost": ("audit", "audit --days", "days list", CLOSING),
        "the last closing lost, with its day": (
            "audit",
            "audit --days",
            "audit --report",
            "days list",
            CLOSING,
        ),
    },
    "the whole chain": {
        "the whole chain lost": ("audit", "audit --days", "days list", CLOSING),
    },
}

ELSEWHERE = {  # further rows, with the tests that try them
    "a day that was deleted": "tests/store/days/test_chain.py",
    "a file of a report, or its manifest": "tests/cli/test_day_audits.py",
    "a stretch, a skipped gap, a retry, a mark of deletion, a replay, a delivery that no act has made": (
        "tests/store/days/test_chain.py"
    ),
    "a correction, a plan or a delivery that is gone": "tests/store/days/test_chain.py",
    "a closed day that was set back to open, to be signed once more": "tests/store/days/test_chain.py",
    "an entry of the chain": "tests/store/days/test_chain.py",
}


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    return tampered_bill.configuration(tmp_path)


@pytest.fixture
def bill(gatelock: Callable[..., Any], engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bill]:
    monkeypatch.setenv("GATELOCK_SEND_TOKEN", KEY)
    with billing_server("lago") as service:
        yield Bill(gatelock, engine, service)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_each_tampering_is_found_by_the_ways_of_its_row(bill: Bill) -> None:
    """One after the other on copies; in `make test` by one of its ways, in `make deep` by exactly these."""
    restore, witness = backed_up(bill.engine), Path("witness.json").read_bytes()
    wrong = {}
    expected = {name: ways for row in ROWS.values() for name, ways in row.items()}
    assert expected.keys() == TAMPERINGS.keys()
    for name, ways in {"nothing": (), **expected}.items():
        restore()
        Path("witness.json").write_bytes(witness)
        if name in TAMPERINGS:
            TAMPERINGS[name](bill)
        asked = None if IS_DEEP or not ways else ways[:1]
        found = tuple(found_by(bill, asked))
        if found != (ways if asked is None else asked):
            wrong[name] = found
    assert wrong == {}


def test_the_table_of_the_page_has_the_tried_rows() -> None:
    page = (ROOT / "docs/billing.md").read_text()
    table = page[page.index("| changed by hand | is found by |") : page.index("\nNothing finds\n")]
    rows = set(re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)) - {"changed by hand", "---"}
    assert ROWS.keys() <= rows
    assert rows - ROWS.keys() == ELSEWHERE.keys()
    for module in ELSEWHERE.values():
        assert (ROOT / module).exists()
