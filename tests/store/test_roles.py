"""The roles of `deploy/postgresql/roles.sql`: each can do its work, and nothing besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from analyzer.billing.reports.day_report import read_report, report_rows
from analyzer.billing.reports.day_status import day_statuses
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.database.migrate import upgrade
from gatekeeper.sources.sql import SqlSource
from tests.house.reading import ROOT
from tests.store import test_no_scans as product
from tests.support.servers.postgres import dsn_of
from tests.support.upkeep import Upkeep

if TYPE_CHECKING:
    from tests.support.servers.postgres import Postgres

ROLES = ROOT / "deploy/postgresql/roles.sql"
DENIED = psycopg.errors.InsufficientPrivilege
LOGINS = ("owner", "analyzer", "reader", "gate")
UrlOf = Callable[[str], str]


@pytest.fixture(scope="module")
def administered(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    """The URL, of an administrator, of a database with the roles and a login for each."""
    url = postgres.new_database(template=postgres_template)
    run_script(url)
    with psycopg.connect(dsn_of(url), autocommit=True) as db:
        for role in LOGINS:
            db.execute(f"create role login_{role} login in role gatelock_{role}".encode())
        db.execute("alter role login_owner set role = gatelock_owner")
    yield url
    postgres.drop(url)
    with psycopg.connect(dsn_of(postgres_template), autocommit=True) as db:
        for role in LOGINS:
            db.execute(f"drop role login_{role}".encode())


@pytest.fixture(scope="module")
def url_of(administered: str) -> UrlOf:
    """Returns the URL of the database for a login that has one of the roles: "analyzer"."""
    url = sa.make_url(administered)
    return lambda role: url.set(username=f"login_{role}").render_as_string(hide_password=False)


def run_script(url: str) -> None:
    with psycopg.connect(dsn_of(url), autocommit=True) as db:
        db.execute(ROLES.read_bytes())


def refused(url: str, statement: str) -> None:
    with psycopg.connect(dsn_of(url), autocommit=True) as db, pytest.raises(DENIED):
        db.execute(statement.encode())


@pytest.fixture(scope="module")
def day_is_closed(administered: str, url_of: UrlOf, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The analyzer's role has done everything that an analyzer does, a day closed and audited among it."""
    admin, analyzer = open_engine(administered), open_engine(url_of("analyzer"))
    product.fill(admin)
    product.do_everything(analyzer, tmp_path_factory.mktemp("roles"))
    SqlStore(analyzer, "here").activate(product.JUDGING_PLAN)
    upkeep = Upkeep(analyzer, str)
    while upkeep.continue_activation():
        pass
    product.judge_everything(analyzer)
    admin.dispose()
    analyzer.dispose()


@pytest.mark.usefixtures("day_is_closed")
def test_the_analyzer_cannot_change_closed_days_nor_what_guards_them(url_of: UrlOf) -> None:
    url = url_of("analyzer")
    for statement in (
        "update corrections set who = 'ann'",
        "truncate frozen_counts cascade",
        "alter table frozen_counts disable trigger all",
        "drop trigger closed_days on frozen_counts",
        "drop table frozen_counts",
        "create or replace function refuse_closed_days() returns trigger language plpgsql as 'begin end'",
        "set session_replication_role = replica",
        "update alembic_version set version_num = '0001'",
    ):
        refused(url, statement)
    for statement in ("delete from frozen_counts", "update frozen_counts set value_0 = 0"):
        with psycopg.connect(dsn_of(url)) as db, pytest.raises(psycopg.errors.RaiseException):
            db.execute(statement.encode())  # by the guard that it cannot disable


@pytest.mark.usefixtures("day_is_closed")
def test_a_reader_reads_reports_and_no_secret(url_of: UrlOf) -> None:
    engine = open_engine(url_of("reader"))
    [status, _] = day_statuses(engine)
    report = read_report(engine, "UTC", status.day.date, status.day.date, "caller")
    assert len(list(report_rows(engine, report))) == product.CALLERS
    engine.dispose()
    for statement in (
        "select * from secrets",
        "select * from tokens",
        "select * from alert_contacts",
        "delete from events",
    ):
        refused(url_of("reader"), statement)


@pytest.mark.usefixtures("day_is_closed")
def test_a_gate_reads_locks_and_no_count(url_of: UrlOf) -> None:
    source = SqlSource(url_of("gate"))
    assert source.fetch(None).at.version > 0
    source.close()
    for statement in ("select * from buckets", "select told from gates", "delete from locks"):
        refused(url_of("gate"), statement)


@pytest.mark.usefixtures("day_is_closed")
def test_the_owner_upgrades_and_the_script_gives_rights_to_new_tables(
    administered: str, url_of: UrlOf
) -> None:
    upgrade(url_of("owner"))
    with psycopg.connect(dsn_of(url_of("owner"))) as db:
        db.execute("create table later (id bigint)")  # as a migration of a later version may
    run_script(administered)
    with psycopg.connect(dsn_of(url_of("analyzer"))) as db:
        assert db.execute("select count(*) from later").fetchone() == (0,)
        owners = db.execute(
            "select distinct tableowner from pg_tables where schemaname = 'public'"
        ).fetchall()
    assert owners == [("gatelock_owner",)]
