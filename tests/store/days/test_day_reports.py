"""Reports of days: what was frozen, what is provisional, what was booked later; files and manifests."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from analyzer.billing.days.by_hand import Correction, correct
from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import Day, add_day
from analyzer.billing.reports.atomic_files import file_at, write_whole
from analyzer.billing.reports.booked_corrections import booked_amounts
from analyzer.billing.reports.day_report import NotFrozen, Report, read_report, report_rows
from analyzer.billing.reports.day_status import day_statuses
from analyzer.billing.reports.manifest import encode_manifest, replaced_file, report_contents
from analyzer.billing.reports.report_lines import (
    ReportLine,
    ReportSums,
    line_cells,
    report_columns,
    usage_lines,
)
from analyzer.billing.reports.row_formats import ROW_FORMATS, encode_csv
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.audit_log import RECORDS_RETRIED, record
from analyzer.kernel.database.engine import open_engine, writing
from analyzer.kernel.database.signed_rows import retry, sign
from analyzer.kernel.errors import NotInstalled
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.billing_tables import referenced_names
from analyzer.kernel.tables.counter_tables import event_ids, named_callers
from analyzer.kernel.tables.schema import offsets
from analyzer.plan.meters import Meter
from analyzer.plan.plan import make_plan
from tests.store.flushing import ACME, ANN, flush, now_s
from tests.support.depth import deeper
from tests.support.fresh_databases import copy_sqlite

DAY_S = 86_400
METERS = [Meter("slowest", "took", "max"), *(Meter(f"m{number}", f"f{number}") for number in range(9))]
PLAN = make_plan(["caller+resource"], METERS, [])  # two pages of meters


class Installation:
    """A database whose open day is some days ago.

    Args:
        engine: Of an empty database.
        past: How many days ago.
    """

    def __init__(self, engine: sa.Engine, past: int = 1) -> None:
        self.engine = engine
        self.store = SqlStore(engine, "analyzer:1")
        self.store.activate(PLAN)
        at_s = now_s(engine) - past * DAY_S
        with writing(engine) as db:
            self.first = add_day(db, "UTC", at_s)
        billing = Billing(grace_s=0.0, groupings=("caller", "caller+resource"))
        self.closing = DayClosing(engine, billing, lambda _: {}, lambda: "mark", lambda: now_s(engine) * 1000)

    def date(self, number: int = 0) -> str:
        return str(date.fromisoformat(self.first.date) + timedelta(days=number))

    def count(self, *rows: CountRow) -> None:
        flush(self.store, PLAN, rows)

    def requests(self, key: str, value: int, day: int = 0, **other: int) -> list[CountRow]:
        """Returns requests of a caller on a day, the first by default, with values of further meters."""
        minute = self.first.begin_s + day * DAY_S + 600
        amounts = {"requests": value, **other}
        return [CountRow("caller", key, "", meter, 60, minute, n, 0) for meter, n in amounts.items()]

    def report(self, first: int = 0, last: int = 0, **wanted: str) -> Report:
        by = wanted.pop("grouping", "caller")
        return read_report(self.engine, "UTC", self.date(first), self.date(last), by, **wanted)

    def amounts(self, first: int = 0, last: int = 0, meter: str = "requests") -> dict[str, int]:
        report = self.report(first, last)
        return {
            row.name: row.amounts[meter][0]
            for row in report_rows(self.engine, report)
            if meter in row.amounts
        }

    def booked(self) -> dict[tuple[str, str], int]:
        """Returns the requests that were booked on any day, by name and kind."""
        found = Counter[tuple[str, str]]()
        for one in booked_amounts(self.engine, "UTC", "0001-01-01", "9999-12-31", "caller", "requests"):
            found[one.name, one.kind] += one.value
        return dict(found)


@pytest.fixture
def here(engine: sa.Engine) -> Installation:
    return Installation(engine)


def test_a_report_of_a_closed_day_stays_as_it_is(here: Installation) -> None:
    here.count(*here.requests(ACME, 3, slowest=70, m8=5), *here.requests(ANN, 1))
    assert not here.report().is_final
    assert here.amounts() == {ACME: 3, ANN: 1}
    assert here.closing.step() == 1
    before = file_of(here)
    here.count(*here.requests(ACME, 2, slowest=90))
    correct(here.engine, closed(here), Correction("caller", ANN, "", "requests", -1), "eve", "a mistake")
    assert here.report().is_final
    assert file_of(here) == before
    assert here.amounts(meter="slowest") == {ACME: 70}
    assert here.amounts(meter="m8") == {ACME: 5}, "of the second page"
    assert here.booked() == {(ACME, "late"): 2, (ANN, "correction"): -1}
    [status, _] = day_statuses(here.engine)
    assert (status.adjusted, status.corrected) == (1, 1)


def closed(here: Installation) -> Day:
    return day_statuses(here.engine)[0].day


def file_of(here: Installation) -> bytes:
    return content(here, "csv")


def test_a_report_over_days_adds_closed_and_open_ones_up(engine: sa.Engine) -> None:
    here = Installation(engine, past=2)
    here.count(*here.requests(ACME, 3, slowest=70), *here.requests(ACME, 4, day=1, slowest=20))
    here.count(*here.requests(ANN, 5, day=1), *here.requests(ACME, 100, day=2))
    assert here.closing.step() == 1
    assert here.amounts(0, 1) == {ACME: 7, ANN: 5}
    assert here.amounts(0, 1, meter="slowest") == {ACME: 70}
    assert not here.report(0, 1).is_final
    assert here.closing.step() == 1
    assert here.amounts(0, 1) == {ACME: 7, ANN: 5}
    assert here.amounts(0, 1, meter="slowest") == {ACME: 70}
    assert here.report(0, 1).is_final


def test_a_report_by_two_parts_reads_closed_and_open_days_in_one_order(engine: sa.Engine) -> None:
    """More rows than are fetched at once, of two pages of meters; a part was counted by callers alone."""
    here = Installation(engine, past=1)
    for day in (0, 1):
        names = [f"api_key:{number:04}" for number in range(600)]
        parts = [
            row._replace(grouping="caller+resource", resource=resource)
            for name in names
            for resource, value in (("/a", 2), ("/b", 1))
            for row in here.requests(name, value, day, m8=value)
        ]
        here.count(*(row for name in names for row in here.requests(name, 5, day, m8=5, slowest=9)), *parts)
        if day == 0:
            assert here.closing.step() == 1
    rows = list(report_rows(engine, here.report(0, 1, grouping="caller+resource")))
    assert [(row.name, row.resource) for row in rows] == [
        (name, resource) for name in names for resource in ("/a", "/b", "(not counted)")
    ]
    assert [row.amounts for row in rows[:3]] == [
        {"requests": (value, 0), "m8": (value, 0)} for value in (4, 2, 4)
    ]


def test_a_report_by_what_was_not_frozen_is_refused(here: Installation) -> None:
    here.closing._billing = Billing(grace_s=0.0)
    here.count(*here.requests(ACME, 1))
    assert here.closing.step() == 1
    with pytest.raises(NotFrozen, match=r"was closed by caller, and not by caller\+resource"):
        here.report(grouping="caller+resource")
    with pytest.raises(LookupError, match="wrong was never counted; there are m0"):
        here.report(meter="wrong")


def test_a_forgotten_name_leaves_its_amounts(here: Installation) -> None:
    here.count(*here.requests(ACME, 3))
    assert here.closing.step() == 1
    with writing(here.engine) as db:
        reference = db.execute(sa.select(referenced_names.c.reference)).scalar_one()
        db.execute(sa.delete(referenced_names))
    assert here.amounts() == {f"forgotten:{reference}": 3}


def test_the_manifest_says_what_the_file_is_made_of(here: Installation, tmp_path: Path) -> None:
    here.count(*here.requests(ACME, 3, m1=7), *here.requests(ANN, 1))
    assert here.closing.step() == 1
    report, sums = here.report(), ReportSums()
    written = write_whole(tmp_path / "day.csv", encode_csv(report_columns(report), cells(here, report, sums)))
    found = json.loads(encode_manifest(report_contents(report), sums, [written]))
    assert found["state"] == "final"
    assert (found["lines"], found["series"]) == (3, 2)
    assert found["sums"] == {"m1": {"denied": 0, "value": 7}, "requests": {"denied": 0, "value": 4}}
    assert found["files"][0]["size"] == (tmp_path / "day.csv").stat().st_size
    [day] = found["days"]
    assert (day["date"], day["state"], day["requests"]) == (here.date(), "final", 4)
    assert day["digest"] == closed(here).digest


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("before")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "day.csv", broken())
    assert (tmp_path / "day.csv").read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["day.csv"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\ttab"])
def test_no_cell_is_executed_by_a_spreadsheet(here: Installation, name: str) -> None:
    line = ReportLine("2026-11-20", "2026-11-20", "UTC", name, "", "requests", "", -1, 0, False)
    columns = report_columns(here.report())
    written = b"".join(encode_csv(columns, [line_cells(line, columns)])).decode()
    assert written.count("\r\n") == 2, "RFC 4180"
    [_, row] = csv.reader(io.StringIO(written))
    assert row[3] == f"'{name}"
    assert row[6] == "-1", "a number is not a formula"


Delivery = tuple[str, int, int]  # caller, day, amount


@st.composite
def deliveries(draw: st.DrawFn) -> list[list[Delivery] | None]:
    """Batches of records of three days, and None where a day is closed if one can be."""
    callers = st.sampled_from([ACME, ANN, "user:bob"])
    record = st.tuples(callers, st.integers(0, 2), st.integers(1, 9))
    batch = st.lists(record, min_size=1, max_size=6)
    return draw(st.lists(st.one_of(batch, batch, st.none()), min_size=1, max_size=12))


@settings(max_examples=deeper(25), deadline=None)
@given(batches=deliveries())
def test_closed_days_and_corrections_add_up_to_all_records(
    new_installation: Callable[[], Installation], batches: list[list[Delivery] | None]
) -> None:
    """An oracle recounts the records: of each day those before its cut, and all others as booked later."""
    here = new_installation()
    counted: list[Counter[str]] = [Counter(), Counter(), Counter()]
    frozen: list[dict[str, int]] = []
    late = Counter[str]()
    for batch in batches:
        if batch is None:
            if here.closing.step():
                frozen.append(dict(counted[len(frozen)]))
            continue
        merged = Counter[tuple[str, int]]()
        for caller, day, amount in batch:
            merged[caller, day] += amount
            counted[day][caller] += amount
            if day < len(frozen):
                late[caller] += amount
        here.count(
            *(row for (caller, day), n in sorted(merged.items()) for row in here.requests(caller, n, day))
        )
    for number, expected in enumerate(frozen):
        assert here.amounts(number, number) == expected
    assert here.booked() == {(caller, "late"): amount for caller, amount in late.items()}
    for number in range(len(frozen), 3):
        assert here.amounts(number, number) == counted[number], "provisional: all that was counted so far"
    total = Counter[str](here.amounts(0, 2)) + late
    assert total == sum(counted, Counter[str]())


@pytest.fixture(scope="module")
def new_installation(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Installation]]:
    opened: list[sa.Engine] = []
    folder = tmp_path_factory.mktemp("reports")

    def new() -> Installation:
        opened.append(open_engine(copy_sqlite(sqlite_template, folder / f"{len(opened)}.db")))
        return Installation(opened[-1], past=3)

    yield new
    for engine in opened:
        engine.dispose()


def test_a_report_has_the_same_bytes_on_both_databases(
    new_installation: Callable[[], Installation], separate_postgres_url: str
) -> None:
    """Names of all kinds, in an order that no locale of a database decides."""
    engine = open_engine(separate_postgres_url)
    names = ["user:B", "user:a", "user:é", "user:z", "api_key:Z", "user:_", "user:ß", "user:A b"]
    files = []
    for here in (new_installation(), Installation(engine, past=3)):
        for number, name in enumerate(names):
            here.count(*here.requests(name, number + 1, slowest=number, m8=number))
        assert here.closing.step() == 1
        files.append({form: content(here, form) for form in ROW_FORMATS})
    engine.dispose()
    assert files[0] == files[1]
    assert files[0]["csv"].count(b"\r\n") == 1 + len(names) * 3 - 2


def cells(here: Installation, report: Report, sums: ReportSums) -> Iterator[list[str | int]]:
    lines = usage_lines(report, report_rows(here.engine, report), {}, sums)
    return (line_cells(line, report_columns(report)) for line in lines)


def content(here: Installation, form: str) -> bytes:
    report = here.report()
    return b"".join(ROW_FORMATS[form].encode(report_columns(report), cells(here, report, ReportSums())))


def test_parquet_has_the_rows_with_their_types(here: Installation) -> None:
    here.count(*here.requests(ACME, 3, slowest=70), *here.requests(ANN, 1))
    assert here.closing.step() == 1
    table = parquet.read_table(io.BytesIO(content(here, "parquet")))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("from", "date32[day]"),
        ("to", "date32[day]"),
        *((name, "string") for name in ("zone", "caller", "meter", "unit")),
        ("value", "int64"),
        ("denied", "int64"),
        ("provisional", "bool"),
    ]
    day = date.fromisoformat(here.date())
    rows = [(row["from"], row["caller"], row["meter"], row["value"]) for row in table.to_pylist()]
    assert rows == [(day, ACME, "requests", 3), (day, ACME, "slowest", 70), (day, ANN, "requests", 1)]
    assert content(here, "parquet") == content(here, "parquet")


def test_without_rows_parquet_has_its_columns() -> None:
    empty = b"".join(ROW_FORMATS["parquet"].encode(["day", "value"], []))
    assert parquet.read_table(io.BytesIO(empty)).schema.names == ["day", "value"]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotInstalled, match=r"pip install 'gatelock\[parquet\]'"):
        b"".join(ROW_FORMATS["parquet"].encode(["day"], []))


def test_a_manifest_names_what_the_file_has_replaced(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    assert file_at(file) is None
    first = write_whole(file, [b"provisional"])
    assert replaced_file(None, first, None) is None
    second = write_whole(file, [b"final"])
    assert replaced_file(first, second, None) == first
    manifest = json.dumps({"replaces": first._asdict()}).encode()
    assert replaced_file(file_at(file), write_whole(file, [b"final"]), manifest) == first, "the same again"
    assert replaced_file(second, second, b"[]") is None


def test_the_origin_of_a_day_has_what_it_takes_as_given(here: Installation) -> None:
    """Names and ids are those that partitions remembered when the day before was cut."""
    part = {"cluster": "cluster", "topic_id": "topic-id", "partition": 0}
    with writing(here.engine) as db:
        db.execute(
            sa.insert(offsets).values(**part, topic="log", source="log", next=5, ids_kept_ms=3_600_000)
        )
        db.execute(
            sa.insert(named_callers).values(**part, hour=1, how="new", next=5, callers="user:a\nuser:b")
        )
        db.execute(sa.insert(event_ids).values(**part, generation=1, number=0, began_ms=0, hashes=bytes(24)))
        retried = record(db, "eve", RECORDS_RETRIED, "3 records, log[0]@1 to 3", "a mapping that was mended")
        sign(db, retry(retried))
    here.count(*here.requests(ACME, 3))
    assert here.closing.step() == 1
    first = json.loads(closed(here).given)
    remembered = {"topic_id": "topic-id", "partition": 0, "callers": 2, "ids": 3, "ids_kept_ms": 3_600_000}
    assert first["remembered"] == [remembered]
    assert first["given"]["carried"] == []
    [retried] = first["given"]["retried"]
    assert (retried["records"], retried["who"]) == ("3 records, log[0]@1 to 3", "eve")


def test_a_day_carries_what_the_day_before_remembered(engine: sa.Engine) -> None:
    here = Installation(engine, past=2)
    part = {"cluster": "cluster", "topic_id": "topic-id", "partition": 0}
    with writing(engine) as db:
        db.execute(sa.insert(offsets).values(**part, topic="log", source="log", next=5))
        db.execute(sa.insert(named_callers).values(**part, hour=1, how="new", next=5, callers="user:a"))
    here.count(*here.requests(ACME, 3))
    assert here.closing.step() == 1
    with writing(engine) as db:
        sign(db, retry(record(db, "eve", RECORDS_RETRIED, "log[0]@1", "later")))
    assert here.closing.step() == 1
    first, second = (json.loads(status.day.given) for status in day_statuses(engine)[:2])
    assert second["given"]["carried"] == first["remembered"] != []
    assert [one["records"] for one in second["given"]["retried"]] == ["log[0]@1"]
    assert first["given"]["retried"] == []
