"""`run` and `import` as processes: they count files into a database and stop cleanly."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import NowMs, open_engine, reading
from analyzer.kernel.tables import schema
from analyzer.maintenance import job_table
from tests.support import plain_http, waiting
from tests.support.command_line import run_command
from tests.support.gatelock_processes import GatelockProcess
from tests.support.servers.postgres import NativePostgres

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]

DEADLINE_S = 60.0  # a process takes long to start on a busy machine
CONFIGURATION = """
    [database]
    url = "{database}"
    [analyzer]
    http = "127.0.0.1:0"
    name = "here"
    [[sources]]
    name    = "web"
    file    = "access.log"
    format  = "combined"
    caller  = "address"
    deny_if = {{ status = 429 }}
    [[policies]]
    name   = "ever"
    limit  = 3
    window = {{ per = "month" }}
"""


def line(address: str, day: int, status: int = 200) -> str:
    return f'{address} - - [{day:02}/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" {status} 5\n'


@pytest.fixture
def configured(configure: Configure, database_url: str) -> Path:
    return configure(CONFIGURATION.format(database=database_url))


class Analyzer:
    """A process of `gatelock run`, and its log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.child = GatelockProcess(["run"], stderr=stream)

    def logged(self) -> list[dict[str, Any]]:
        complete = [text for text in self.log.read_text().splitlines(keepends=True) if text.endswith("\n")]
        return [json.loads(text) for text in complete]

    def url(self) -> str:
        return wait_for(
            lambda: next(e["message"].split()[-1] for e in self.logged() if "listening" in e["message"])
        )

    def ready(self) -> dict[str, Any]:
        url = f"{self.url()}/readyz"
        return wait_for(lambda: plain_http.get(url).raise_for_status().json())

    def metric(self, name: str) -> float:
        text = plain_http.get(f"{self.url()}/metrics").text
        return sum(float(row.split()[-1]) for row in text.splitlines() if row.startswith(name))

    def stop(self, by: int = signal.SIGTERM) -> int:
        self.child.send_signal(by)
        return self.child.wait(10)


def wait_for(get: Callable[[], Any]) -> Any:
    """Returns the first true value of `get`; an error of HTTP, or StopIteration, counts as none."""

    def attempt() -> Any:
        with contextlib.suppress(StopIteration, httpx2.HTTPError):
            return get()

    return waiting.wait_for(attempt, DEADLINE_S)


@pytest.fixture
def analyzer(configured: Path, tmp_path: Path) -> Iterator[Analyzer]:
    analyzer = Analyzer(tmp_path / "analyzer.log")
    yield analyzer
    analyzer.child.kill()
    analyzer.child.wait()


def usage_by_day(gatelock: Gatelock) -> dict[str, tuple[int, int]]:
    rows = map(
        json.loads, gatelock("usage", "--json", "--width", "day", "--meter", "requests").output.splitlines()
    )
    return {f"{row['caller']} {row['bucket'][:10]}": (row["value"], row["denied"]) for row in rows}


def test_the_first_start_says_which_tables_it_made_and_where(tmp_path: Path, analyzer: Analyzer) -> None:
    analyzer.url()
    (created,) = [entry["message"] for entry in analyzer.logged() if "empty database" in entry["message"]]
    assert re.match(r"empty database (sqlite:///|postgresql\+psycopg://)\S+: created ", created)
    assert {"buckets", "locks", "offsets", "totals"} <= set(re.findall(r"(\w+)(?:, |$)", created))
    analyzer.stop()
    again = Analyzer(tmp_path / "again.log")
    try:
        again.url()
        assert not [entry for entry in again.logged() if "empty database" in entry["message"]]
    finally:
        again.stop()


def test_a_growing_file_is_counted_until_the_analyzer_stops(
    tmp_path: Path, analyzer: Analyzer, gatelock: Gatelock
) -> None:
    access = tmp_path / "access.log"
    access.write_text(line("192.0.2.1", 20) + line("192.0.2.2", 21))
    analyzer.ready()
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    with access.open("a") as file:
        file.writelines([line("192.0.2.1", 21)] * 2 + [line("192.0.2.1", 21, status=429), "no line\n"])
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 6)
    assert analyzer.metric('gatelock_rejected_records_total{reason="bad-line"') == 1
    assert analyzer.stop() == 0
    assert usage_by_day(gatelock) == {
        "address:192.0.2.1 2026-11-20": (1, 0),
        "address:192.0.2.1 2026-11-21": (2, 1),
        "address:192.0.2.2 2026-11-21": (1, 0),
    }
    assert gatelock("billing", "audit").exit_code == 0
    messages = [event["message"] for event in analyzer.logged()]
    assert "configured by gatelock.toml" in messages
    assert messages[-1] == "stopped"
    assert not [event for event in analyzer.logged() if event["level"] in ("error", "critical")]


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_analyzer_whose_database_file_is_replaced_ends_with_a_sentence(
    tmp_path: Path, analyzer: Analyzer, database_url: str, gatelock: Gatelock
) -> None:
    access = tmp_path / "access.log"
    access.write_text(line("192.0.2.1", 20) * 2)
    analyzer.ready()
    wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
    file = Path(sa.make_url(database_url).database or "")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(file)) as one, closing(sqlite3.connect(backup)) as other:
        one.backup(other)
    backup.rename(file)
    assert analyzer.child.wait(10) == 3
    text = analyzer.log.read_text()
    assert "was replaced or deleted while it was open, so nothing more is stored" in text
    assert "Traceback" not in text
    with access.open("a") as log:
        log.write(line("192.0.2.1", 20))
    again = Analyzer(tmp_path / "again.log")
    wait_for(lambda: usage_by_day(gatelock) == {"address:192.0.2.1 2026-11-20": (3, 0)})
    assert again.stop() == 0


@pytest.mark.parametrize(
    "by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.deep("another signal"))]
)
@pytest.mark.parametrize("database", ["sqlite"])
def test_a_signal_stops_the_analyzer_cleanly(analyzer: Analyzer, tmp_path: Path, by: int) -> None:
    (tmp_path / "access.log").write_text(line("192.0.2.1", 20))
    analyzer.ready()
    assert analyzer.stop(by) == 0
    assert analyzer.logged()[-1]["message"] == "stopped"


@pytest.mark.parametrize("database", ["sqlite"])
def test_two_analyzers_cannot_listen_on_one_address(
    analyzer: Analyzer, configure: Configure, process: Gatelock, tmp_path: Path
) -> None:
    (tmp_path / "access.log").touch()
    address = analyzer.url().removeprefix("http://")
    result = process("run", env={**os.environ, "GATELOCK_ANALYZER__HTTP": address})
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"cannot listen on {address}: Address already in use; set"
    )


def test_a_configuration_without_sources_exits_with_2(gatelock: Gatelock, configure: Configure) -> None:
    configure("[kafka]\n")
    result = gatelock("run")
    assert result.exit_code == 2
    assert result.stderr == (
        "gatelock.toml: sources: nothing is read\n"
        '    add [[sources]] with topic = "..." or file = "..." to gatelock.toml\n'
    )


@pytest.mark.parametrize("database", ["sqlite"])
def test_tables_of_another_version_are_not_changed(
    configured: Path, gatelock: Gatelock, database_url: str
) -> None:
    import sqlalchemy as sa

    assert gatelock("upkeep", "db", "upgrade").exit_code == 0
    engine = sa.create_engine(database_url)
    with engine.begin() as db:
        db.exec_driver_sql("update alembic_version set version_num = 'x'")
    engine.dispose()
    result = gatelock("run")
    assert result.exit_code == 2
    assert "tables are at version x, this program needs" in result.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"])
def test_an_unreachable_broker_is_named_and_does_not_stop_the_analyzer(
    configure: Configure, database_url: str, tmp_path: Path
) -> None:
    configure(f"""
        [database]
        url = "{database_url}"
        [kafka]
        bootstrap_servers = "127.0.0.1:1"
        [analyzer]
        http = "127.0.0.1:0"
        [[sources]]
        topic = "access-log"
        [sources.fields]
        user = "user"
        """)
    analyzer = Analyzer(tmp_path / "analyzer.log")
    try:
        problems = wait_for(
            lambda: plain_http.get(f"{analyzer.url()}/readyz").json()["problems"].get("kafka")
        )
        assert "127.0.0.1:1" in problems
        assert plain_http.get(f"{analyzer.url()}/livez").status_code == 200
        assert analyzer.stop() == 0
    finally:
        analyzer.child.kill()
        analyzer.child.wait()


# import


def test_files_that_are_imported_again_are_counted_once(
    configured: Path, gatelock: Gatelock, tmp_path: Path
) -> None:
    (tmp_path / "old.log").write_text(line("192.0.2.1", 20) * 3 + "no line\n")
    (tmp_path / "new.log").write_text(line("192.0.2.2", 21))
    result = gatelock(
        "upkeep", "import", "old.log", "new.log", "--source", "web", "--json", "--max-rejected", "20%"
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "seen": 5,
        "counted": 4,
        "dead": 1,
        "late": 0,
        "renamed": 0,
        "problems": {},
        "rejected": {"bad-line": 1},
        "advice": {},
        "question": "",
    }
    result = gatelock("upkeep", "import", "new.log", "old.log", "--source", "web")
    assert (result.exit_code, result.stdout) == (0, "nothing new: every record was counted before\n")
    assert usage_by_day(gatelock) == {
        "address:192.0.2.1 2026-11-20": (3, 0),
        "address:192.0.2.2 2026-11-21": (1, 0),
    }
    assert gatelock("billing", "audit").exit_code == 0
    assert json.loads(gatelock("locks", "list", "--json").output)["key"] == "address:192.0.2.1"


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_new_policy_is_in_force_after_an_import_also_without_a_running_analyzer(
    configured: Path,
    gatelock: Gatelock,
    tmp_path: Path,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The totals of its window are filled from the counts, which takes several steps."""
    (tmp_path / "old.log").write_text("".join(line(f"192.0.2.{n}", 20) for n in range(9)))
    (tmp_path / "new.log").write_text(line("192.0.2.1", 20))
    assert gatelock("upkeep", "import", "old.log", "--source", "web").exit_code == 0
    monkeypatch.setattr(plans, "ACTIVATION_ROWS", 0)
    monkeypatch.setattr(job_table, "ACTIVATION_ROWS", 2)
    configured.write_text(configured.read_text().replace("month", "day"))
    assert gatelock("policies", "apply").exit_code == 0
    assert gatelock("upkeep", "import", "new.log", "--source", "web").exit_code == 0
    engine = open_engine(database_url)
    with reading(engine) as db:
        assert db.scalars(sa.select(schema.plans.c.pending).where(schema.plans.c.active == 1)).all() == [""]
        held = sa.select(schema.leases.c.name).where(schema.leases.c.until_ms >= NowMs())
        assert db.scalars(held).all() == [], "another analyzer need not wait"
    engine.dispose()


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_import_says_when_all_of_its_records_have_one_caller(configured: Path, gatelock: Gatelock) -> None:
    """Host names in place of addresses, for example, all count under one name."""

    def sentences(lines: str) -> list[str]:
        result = run_command(["upkeep", "import", "-", "--source", "web"], lines)
        assert result.exit_code == 0
        doubts = ("one caller has 100 %", "had no usable name")
        return [text for text in result.stderr.splitlines() if any(doubt in text for doubt in doubts)]

    lines = "".join(line(f"host-{n}.example", 20) for n in range(99))
    (only,) = sentences(lines)
    assert only.startswith("99 of them had no usable name"), "they may be one caller's"
    first, second = sentences(line("other.example", 20) * 3 + lines)
    assert first.startswith("one caller has 100 % of 102 requests, which has no usable name: does `caller`")
    assert second.startswith("102 of them had no usable name")
    assert 'caller = ["host"]' in second
    command = ["upkeep", "import", "-", "--source", "web", "--json"]
    as_json = run_command(command, "\n" + lines + line("a.example", 20) * 9)
    assert json.loads(as_json.stdout)["question"].startswith("one caller has 100 % of 108 requests")
    lines = "".join(line(f"192.0.2.{n % 200}", 20) for n in range(2_000))
    assert sentences(lines) == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_standard_input_can_be_imported(configured: Path, process: Gatelock, gatelock: Gatelock) -> None:
    result = process("upkeep", "import", "-", "--source", "web", text=line("192.0.2.1", 20) * 2)
    assert (result.returncode, result.stdout) == (0, "2 seen, 2 counted, 0 dead, 0 late\n")
    assert usage_by_day(gatelock) == {"address:192.0.2.1 2026-11-20": (2, 0)}


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["access.log", "--source", "webb"], 'no source is named "webb"; did you mean "web"?'),
        (["access.log", "--source", "x"], 'no source is named "x"; use one of: web'),
        (["nowhere.log", "--source", "web"], "nowhere.log: No such file or directory"),
        ([".", "--source", "web"], ".: Is a directory"),
    ],
)
def test_an_invalid_file_or_source_exits_with_2(
    configured: Path, tmp_path: Path, gatelock: Gatelock, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "access.log").touch()
    result = gatelock("upkeep", "import", *arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == sentence


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_truncated_file_exits_with_1_and_the_others_are_counted(
    configured: Path, tmp_path: Path, gatelock: Gatelock
) -> None:
    whole = gzip.compress(line("192.0.2.1", 20).encode() * 3)
    (tmp_path / "cut.log.gz").write_bytes(whole[:-9])
    (tmp_path / "access.log").write_text(line("192.0.2.2", 20))
    result = gatelock("upkeep", "import", "cut.log.gz", "access.log", "--source", "web")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("cut.log.gz: the rest cannot be read: EOFError")
    assert usage_by_day(gatelock)["address:192.0.2.2 2026-11-20"] == (1, 0)
    result = gatelock("upkeep", "import", "cut.log.gz", "--source", "web", "--json")
    assert (result.exit_code, list(json.loads(result.stdout)["problems"])) == (1, ["cut.log.gz"])


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_file_without_readable_records_exits_with_1(
    configured: Path, tmp_path: Path, gatelock: Gatelock
) -> None:
    (tmp_path / "other.log").write_text("not in the combined format\n" * 3)
    result = gatelock("upkeep", "import", "other.log", "--source", "web")
    assert (result.exit_code, result.stdout) == (1, "3 seen, 0 counted, 3 dead, 0 late\n")
    assert result.stderr.splitlines()[-1].endswith("gatelock upkeep rejects list")


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_revoked_privilege_is_reported_and_nothing_is_lost(
    configure: Configure, migrated_url: str, tmp_path: Path, gatelock: Gatelock
) -> None:
    owner, role = open_engine(migrated_url), f"analyzer_{os.urandom(4).hex()}"

    def execute(text: str) -> None:
        with owner.begin() as db:
            db.exec_driver_sql(text)

    execute(f"create role {role} login password 'pw'")
    execute(f"grant all on all tables in schema public to {role}")
    url = owner.url.set(username=role, password="pw").render_as_string(hide_password=False)
    configure(CONFIGURATION.format(database=url))
    (tmp_path / "access.log").write_text(line("192.0.2.1", 20))
    analyzer = Analyzer(tmp_path / "analyzer.log")
    try:
        wait_for(lambda: analyzer.metric("gatelock_records_total") == 1)
        execute(f"revoke insert on buckets from {role}")
        with (tmp_path / "access.log").open("a") as access:
            access.write(line("192.0.2.1", 20))
        problems = f"{analyzer.url()}/readyz"
        wait_for(lambda: "permission denied for table buckets" in plain_http.get(problems).text)
        execute(f"grant insert on buckets to {role}")
        wait_for(lambda: analyzer.metric("gatelock_records_total") == 2)
        assert analyzer.stop() == 0
        assert usage_by_day(gatelock) == {"address:192.0.2.1 2026-11-20": (2, 0)}
    finally:
        analyzer.child.kill()
        analyzer.child.wait()
        execute(f"drop owned by {role}")
        execute(f"drop role {role}")
        owner.dispose()


# A database that hangs


@pytest.mark.slow
def test_a_database_that_hangs_is_reported_and_the_analyzer_can_be_stopped(
    configure: Configure, own_postgres: NativePostgres, tmp_path: Path
) -> None:
    configure(CONFIGURATION.format(database=own_postgres.new_database()))
    access = tmp_path / "access.log"
    access.write_text(line("192.0.2.1", 20))
    analyzer = Analyzer(tmp_path / "analyzer.log")
    try:
        analyzer.ready()
        own_postgres.pause()
        with access.open("a") as file:
            file.write(line("192.0.2.1", 20))
        problems = wait_for(lambda: plain_http.get(f"{analyzer.url()}/readyz").json()["problems"])
        assert "database" in problems
        assert plain_http.get(f"{analyzer.url()}/livez").status_code == 200
        assert analyzer.stop() == 3
        assert "reads again" in analyzer.logged()[-1]["message"]
    finally:
        analyzer.child.kill()
        analyzer.child.wait()
        own_postgres.resume()
