"""Status reports over SQL: only on request, into one table, possibly with a separate role."""

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

from analyzer.gates.gate_reports import reporting_gates
from analyzer.kernel.database.engine import open_engine
from gatekeeper import Gate
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.sources.sql import REPORT_S, SqlSource
from gatekeeper.testing import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "guards.md").read_text()
on_postgresql = pytest.mark.parametrize("database", ["postgresql"])
on_sqlite = pytest.mark.parametrize("database", ["sqlite"])


def a_status(number: int = 1, instance: str = "host:1:ab", **fields: Any) -> GateStatus:
    defaults: dict[str, Any] = {
        "application": "shop",
        "library": "0.1.0",
        "at": None,
        "age": 0.4,
        "locks": (),
        "more": (0, 0),
        "callers": ("user:ann", "user:\x00", "user:\ud800"),
    }
    return GateStatus(instance=instance, number=number, **defaults | fields)


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


def test_a_gate_over_sql_reports_nothing_by_default(migrated_url: str, engine: sa.Engine) -> None:
    for report_status, number in ((None, 0), (False, 0), (True, 1)):
        clock = ManualClock()
        with Gate(migrated_url, name="shop", report_status=report_status, clock=clock) as gate:
            clock.advance(1)
            assert gate.version == 0
            assert gate.healthy
        assert len(reporting_gates(engine)) == number
    (reported,) = reporting_gates(engine)
    assert reported.status.application == "shop"


def test_the_newest_report_of_each_instance_stays(source: SqlSource, engine: sa.Engine) -> None:
    source.report_status(a_status(1))
    for number in (3, 2, 3, 1):
        source.report_status(a_status(number, more=(number, 0)))
    source.report_status(a_status(1, "other:2:cd"))
    assert {gate.status.instance: gate.checks for gate in reporting_gates(engine)} == {
        "host:1:ab": 3,
        "other:2:cd": 0,
    }
    assert reporting_gates(engine)[1].status == a_status(3, more=(3, 0))


def test_reports_do_not_affect_fetches(source: SqlSource, engine: sa.Engine) -> None:
    first = source.fetch(None)
    source.report_status(a_status())
    again = source.fetch(first.at)
    assert (again.at, again.snapshot) == (first.at, False)
    with engine.connect() as db:
        db.execute(sa.text("drop table gates"))
        db.commit()
    with pytest.raises(SourceError, match="has `gatelock upkeep db upgrade` been run there"):
        source.report_status(a_status(2))
    assert not source.fetch(first.at).snapshot


@on_postgresql
class TestRoles:
    """The grants that docs/guards.md shows are sufficient, and necessary."""

    @pytest.fixture
    def login(self, migrated_url: str, engine: sa.Engine) -> Iterator[Any]:
        roles: list[str] = []

        def login(shown_role: str) -> str:
            """The URL of a new role with the rights that the page grants to `shown_role`."""
            grants = re.findall(rf"^(GRANT .*) TO {shown_role};$", PAGE, re.MULTILINE)
            assert len(grants) == 1
            role = f"gate_{secrets.token_hex(4)}"
            with engine.begin() as db:
                db.exec_driver_sql(f"create role {role} login password 'gate'")
                roles.append(role)
                db.exec_driver_sql(f"{grants[0]} TO {role}")
            url = sa.make_url(migrated_url).set(username=role, password="gate")
            return url.render_as_string(hide_password=False)

        yield login
        with engine.begin() as db:
            for role in roles:
                db.exec_driver_sql(f"drop owned by {role}")
                db.exec_driver_sql(f"drop role {role}")

    def test_one_role_reads_and_another_reports(self, login: Any, engine: sa.Engine) -> None:
        source = SqlSource(login("gate"), report_status=login("gate_reports"))
        try:
            assert source.fetch(None).snapshot
            source.report_status(a_status(1))
            source.report_status(a_status(2))
            assert source.fetch(None).snapshot
            assert [gate.status.number for gate in reporting_gates(engine)] == [2]
        finally:
            source.close()

    def test_a_role_that_only_reads_cannot_report_and_continues_to_read(self, login: Any) -> None:
        source = SqlSource(login("gate"), report_status=True)
        try:
            with pytest.raises(SourceError, match="permission denied for table gates"):
                source.report_status(a_status())
            assert source.fetch(None).snapshot
        finally:
            source.close()

    def test_a_role_that_only_reports_can_read_neither_locks_nor_reports(
        self, login: Any, engine: sa.Engine
    ) -> None:
        reporter = open_engine(login("gate_reports"))
        try:
            for statement in ("select * from locks", "select told from gates", "delete from gates"):
                with (
                    pytest.raises(sa.exc.ProgrammingError, match="permission denied"),
                    reporter.begin() as db,
                ):
                    db.exec_driver_sql(statement)
        finally:
            reporter.dispose()


@on_postgresql
def test_a_row_lock_of_another_transaction_delays_a_report_for_a_bounded_time(
    source: SqlSource, engine: sa.Engine
) -> None:
    source.report_status(a_status(1))
    with engine.begin() as db:
        db.execute(sa.text("select * from gates for update"))
        begun_s = time.monotonic()
        with pytest.raises(SourceError):
            source.report_status(a_status(2))
        assert time.monotonic() - begun_s < REPORT_S + 1
    assert source.fetch(None).snapshot
    source.report_status(a_status(3))
    assert [gate.status.number for gate in reporting_gates(engine)] == [3]


@on_sqlite
def test_a_file_that_is_being_written_to_delays_a_report_for_a_bounded_time(
    source: SqlSource, migrated_url: str
) -> None:
    path = sa.make_url(migrated_url).database
    assert path is not None
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("begin immediate")
        begun_s = time.monotonic()
        with pytest.raises(SourceError, match="locked"):
            source.report_status(a_status())
        assert time.monotonic() - begun_s < REPORT_S + 1
    finally:
        writer.close()
    source.report_status(a_status())
