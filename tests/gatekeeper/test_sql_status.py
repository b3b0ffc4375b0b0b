"""What a gate tells over SQL: only when it is asked to, into a table of its own, by a role of its own."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.store.database.engine import open_engine
from analyzer.store.reports.gate_reports import reporting_gates
from gatekeeper import Gate
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.sources.sql import REPORT_S, SqlSource
from gatekeeper.testing import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "gatekeeper.md").read_text()
on_postgresql = pytest.mark.parametrize("database", ["postgresql"])
on_sqlite = pytest.mark.parametrize("database", ["sqlite"])


def told(number: int = 1, instance: str = "host:1:ab", **said: Any) -> GateStatus:
    given: dict[str, Any] = {"application": "shop", "library": "0.1.0", "at": None, "age": 0.4, "locks": (),
                             "more": (0, 0), "callers": ("user:ann", "user:\x00", "user:\ud800")}  # fmt: skip
    return GateStatus(instance=instance, number=number, **given | said)


@pytest.fixture
def engine(migrated_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(migrated_url)
    yield engine
    engine.dispose()


@pytest.fixture
def source(migrated_url: str) -> Iterator[SqlSource]:
    source = SqlSource(migrated_url, report_status=True)
    yield source
    source.close()


def test_a_gate_over_sql_tells_nothing_unless_it_is_asked_to(migrated_url: str, engine: sa.Engine) -> None:
    for asked, number in ((None, 0), (False, 0), (True, 1)):
        clock = ManualClock()
        with Gate(migrated_url, name="shop", report_status=asked, clock=clock) as gate:
            clock.advance(1)
            assert gate.version == 0
            assert gate.healthy
        assert len(reporting_gates(engine)) == number
    (gate_told,) = reporting_gates(engine)
    assert gate_told.told.application == "shop"


def test_of_each_instance_the_newest_stays_however_often_it_comes(
    source: SqlSource, engine: sa.Engine
) -> None:
    source.report_status(told(1))
    for number in (3, 2, 3, 1):
        source.report_status(told(number, more=(number, 0)))
    source.report_status(told(1, "other:2:cd"))
    assert {gate.told.instance: gate.checks for gate in reporting_gates(engine)} == {
        "host:1:ab": 3,
        "other:2:cd": 0,
    }
    assert reporting_gates(engine)[1].told == told(3, more=(3, 0)), "with all that may be asked for"


def test_after_telling_the_source_fetches_as_before(source: SqlSource, engine: sa.Engine) -> None:
    first = source.fetch(None)
    source.report_status(told())
    again = source.fetch(first.at)
    assert (again.at, again.snapshot) == (first.at, False)
    with engine.connect() as db:
        db.execute(sa.text("drop table gates"))
        db.commit()
    with pytest.raises(SourceError, match="has `gatelock db upgrade` been run there"):
        source.report_status(told(2))
    assert not source.fetch(first.at).snapshot


@on_postgresql
class TestRoles:
    """The grants that docs/gatekeeper.md names are enough, and give nothing more."""

    @pytest.fixture
    def login(self, migrated_url: str, engine: sa.Engine) -> Iterator[Any]:
        made: list[str] = []

        def login(role_shown: str) -> str:
            """Somebody with the rights that the page gives to `role_shown`."""
            grants = re.findall(rf"^(GRANT .*) TO {role_shown};$", PAGE, re.MULTILINE)
            assert len(grants) == 1
            role = f"gate_{secrets.token_hex(4)}"
            with engine.begin() as db:
                db.exec_driver_sql(f"create role {role} login password 'gate'")
                made.append(role)
                db.exec_driver_sql(f"{grants[0]} TO {role}")
            url = sa.make_url(migrated_url).set(username=role, password="gate")
            return url.render_as_string(hide_password=False)

        yield login
        with engine.begin() as db:
            for role in made:
                db.exec_driver_sql(f"drop owned by {role}")
                db.exec_driver_sql(f"drop role {role}")

    def test_one_role_reads_and_another_tells(self, login: Any, engine: sa.Engine) -> None:
        reads = login("gate")
        tells = login("gate_tells")
        source = SqlSource(reads, report_status=tells)
        try:
            assert source.fetch(None).snapshot
            source.report_status(told(1))
            source.report_status(told(2))
            assert source.fetch(None).snapshot
            assert [gate.told.number for gate in reporting_gates(engine)] == [2]
        finally:
            source.close()

    def test_who_only_reads_cannot_tell_and_goes_on_reading(self, login: Any) -> None:
        source = SqlSource(login("gate"), report_status=True)
        try:
            with pytest.raises(SourceError, match="permission denied for table gates"):
                source.report_status(told())
            assert source.fetch(None).snapshot
        finally:
            source.close()

    def test_who_only_tells_can_read_neither_locks_nor_what_others_told(
        self, login: Any, engine: sa.Engine
    ) -> None:
        tells = open_engine(login("gate_tells"))
        try:
            for statement in ("select * from locks", "select told from gates", "delete from gates"):
                with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), tells.begin() as db:
                    db.exec_driver_sql(statement)
        finally:
            tells.dispose()


@on_postgresql
def test_a_row_that_somebody_holds_holds_up_the_poll_for_a_second_at_most(
    source: SqlSource, engine: sa.Engine
) -> None:
    source.report_status(told(1))
    with engine.begin() as db:
        db.execute(sa.text("select * from gates for update"))
        begun_s = time.monotonic()
        with pytest.raises(SourceError):
            source.report_status(told(2))
        assert time.monotonic() - begun_s < REPORT_S + 1
    assert source.fetch(None).snapshot
    source.report_status(told(3))
    assert [gate.told.number for gate in reporting_gates(engine)] == [3]


@on_sqlite
def test_a_file_that_is_being_written_to_holds_up_the_poll_for_a_second_at_most(
    source: SqlSource, migrated_url: str
) -> None:
    path = sa.make_url(migrated_url).database
    assert path is not None
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("begin immediate")
        begun_s = time.monotonic()
        with pytest.raises(SourceError, match="locked"):
            source.report_status(told())
        assert time.monotonic() - begun_s < REPORT_S + 1
    finally:
        writer.close()
    source.report_status(told())
