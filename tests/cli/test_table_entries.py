"""Fake entries of tables run through commands: no code elsewhere compares the name of an entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.reports.row_formats import ROW_FORMATS
from analyzer.build import new_counter
from analyzer.config.kind_checks import KIND_CHECKS
from analyzer.config.tables.policies import POLICY_TABLES, KindName, QuotaTable
from analyzer.counting.records.formats import FORMATS, RecordFormat
from analyzer.faces.cli import app
from analyzer.faces.signals.doctor import examination
from analyzer.faces.signals.doctor.observations import Installation, Observation
from analyzer.flush.sql_store import SqlStore
from analyzer.forecast.look import log_detection
from analyzer.forecast.look.log_detection import DetectedLog
from analyzer.judging.kinds import KINDS
from analyzer.kernel.model import Partition, Record, Records, RejectReason
from analyzer.maintenance import job_table
from analyzer.maintenance.audit import audit
from analyzer.maintenance.job_table import JobEntry, Work
from analyzer.plan import plan as plans
from analyzer.plan.format_decoder import Columns
from analyzer.plan.mapping import FORMAT_NAMES, FieldPath
from analyzer.plan.meter_units import Unit
from analyzer.plan.policies import POLICY_CLASSES, Quota
from tests.store.flushing import now_s
from tests.support.billing_server import KEY, BillingServer, billing_server

Gatelock = Callable[..., Any]
Configure = Callable[[str], Path]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
LOG = """
[[sources]]
name = "log"
file = "access.log"
fields = { time = { path = "ts", unit = "s" }, api_key = "key" }
"""


def objects(result: Any) -> list[dict[str, Any]]:
    assert result.stdout, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


class Pace(Quota, frozen=True):
    """A quota under another name."""

    kind = "pace"


class PaceTable(QuotaTable):
    """The table of a pace in a file."""

    kind: KindName = "pace"

    def policy(self, unit: Unit | None = None) -> Pace:
        return Pace(**self.enforced(unit))


@on_sqlite
def test_a_kind_of_policy_is_one_entry(
    gatelock: Gatelock, engine: sa.Engine, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICY_CLASSES, "pace", Pace)
    monkeypatch.setitem(KINDS, "pace", KINDS["quota"]._replace(policy=Pace))
    monkeypatch.setitem(POLICY_TABLES, "pace", PaceTable)
    monkeypatch.setitem(KIND_CHECKS, "pace", KIND_CHECKS["quota"])
    policy = '[[policies]]\nname = "steady"\nkind = "pace"\nlimit = 50\nwindow = { per = "month" }\n'
    text = f'[database]\nurl = "{engine.url}"\n{LOG}'
    configure(f'{text}{policy}lock_for = "1h"\n')
    assert "lock_for: applies to surges, and this is a pace" in gatelock("check", "--offline").output
    configure(text + policy)
    assert gatelock("check", "--offline").exit_code == 0
    assert gatelock("policies", "apply").exit_code == 0
    store, part = SqlStore(engine, "one:7"), Partition("c", "id", 0, "log", "access.log")
    version, plan = store.active_plan()
    store.begin(part, 0)
    now = now_s(engine)
    counter = new_counter(plan)
    counter.resume(part, store.counter_state(part))
    values = [json.dumps({"key": "acme", "ts": now, "n": number}).encode() for number in range(60)]
    counter.feed(
        Records.of(part, 0, 60, [Record(offset, now * 1000, value) for offset, value in enumerate(values)])
    )
    drained = counter.drain()
    with store.transaction() as tx:
        tx.move_offsets(drained.parts, {})
        tx.apply(plan, version, drained, tx.check_plan(plan, version))
    assert audit(engine).equal
    [lock] = objects(gatelock("locks", "list", "--json"))
    assert (lock["key"], lock["policy"]) == ("api_key:acme", "steady")
    assert "steady: at most 50 requests for each caller" in gatelock("policies", "list").output
    [listed] = objects(gatelock("policies", "list", "--json"))
    assert (listed["name"], listed["kind"]) == ("steady", "pace")
    assert "steady" in gatelock("explain", "api_key:acme").output


class PairsFormat:
    """Reads lines such as `key=acme ts=1760000000`."""

    def __init__(self, paths: Sequence[FieldPath]) -> None:
        self._paths = paths

    def read(self, values: Sequence[bytes]) -> tuple[Columns, dict[int, RejectReason]]:
        rows = [dict(word.partition("=")[::2] for word in value.decode().split()) for value in values]
        reasons: dict[int, RejectReason] = {index: "bad-line" for index, row in enumerate(rows) if "" in row}
        return [[row.get(path[0]) for row in rows] for path in self._paths], reasons


def pairs_log(lines: Sequence[bytes]) -> DetectedLog | None:
    """Recognises these lines."""
    fields = {"api_key": "key", "time": {"path": "ts", "unit": "s"}}
    source = {"format": "pairs", "caller": ["api_key"], "fields": fields}
    is_read = lines and all(line.startswith(b"key=") for line in lines)
    return DetectedLog("pairs", source, frozenset({"api_key", "time"})) if is_read else None


@on_sqlite
def test_a_format_of_log_lines_is_one_entry_and_its_second_count_names_it(
    gatelock: Gatelock,
    engine: sa.Engine,
    configure: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FORMATS, "pairs", RecordFormat(PairsFormat, parts=("key", "ts")))
    monkeypatch.setattr(plans, "FORMAT_NAMES", (*FORMAT_NAMES, "pairs"))
    monkeypatch.setattr(log_detection, "DETECTORS", [*log_detection.DETECTORS, pairs_log])
    day = datetime.now(UTC) - timedelta(days=2)
    noon_s = int(day.replace(hour=12, minute=0, second=0, microsecond=0).timestamp())
    lines = [f"key={name} ts={noon_s + number}" for number, name in enumerate(["acme"] * 5 + ["bob"] * 2)]
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    looked = gatelock("look", "access.log")
    assert (looked.exit_code, "7 requests" in looked.output) == (0, True), looked.output
    (tmp_path / "access.log").write_text("\n".join([*lines, "=wrong"]) + "\n")
    configure(f'[database]\nurl = "{engine.url}"\n[billing]\ngrace = 0\n{LOG}format = "pairs"\n')
    imported = gatelock("upkeep", "import", "access.log")
    assert "expected a line of the format pairs" in imported.output
    date = f"{day:%Y-%m-%d}"
    assert gatelock("billing", "days", "close", date, "--reason", "counted", "--yes").exit_code == 0
    [acme, bob] = objects(gatelock("billing", "report", "day", date, "--format", "jsonl"))
    assert (acme["value"], bob["value"]) == (5, 2)
    [counted_again] = objects(gatelock("billing", "audit", "--day", date, "--against-kafka", "--json"))
    assert (counted_again["equal"], counted_again["records"]) == (True, 7)
    assert any("format pairs" in sentence for sentence in counted_again["given"])


@on_sqlite
def test_a_job_is_one_entry(gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3]

    def sweep(_context: job_table.JobContext) -> Work:
        return Work(lambda: left.pop() if left else 0)

    monkeypatch.setattr(job_table, "JOBS", (*job_table.JOBS, JobEntry("sweep", 3_600, sweep)))
    assert gatelock("upkeep", "jobs", "run", "sweep").stdout == "sweep: done, 3 rows\n"
    listed = {job["job"]: job for job in objects(gatelock("upkeep", "jobs", "list", "--json"))}
    assert listed["sweep"]["schedule"] == "every hour"
    assert listed["sweep"]["last"]["rows"] == 3


@on_sqlite
def test_a_check_of_the_doctor_is_one_entry(
    gatelock: Gatelock, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_installation: Installation) -> Iterator[Observation]:
        yield Observation("wrong", "the moon is full", "wait")

    monkeypatch.setattr(examination, "CHECKS", (examination.ExaminationPart("moon", check),))
    shown = gatelock("doctor", "--json")
    assert shown.exit_code != 0
    assert ("moon", "the moon is full") in {(row["check"], row["what"]) for row in objects(shown)}


@on_sqlite
def test_a_billing_service_and_a_format_of_reports_are_one_entry_each(
    gatelock: Gatelock, engine: sa.Engine, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVICES, "abacus", SERVICES["lago"])
    monkeypatch.setitem(ROW_FORMATS, "lines", ROW_FORMATS["jsonl"])
    monkeypatch.setattr(app, "commands", {})  # each is made at its first use, with the words of today
    monkeypatch.setattr(BillingServer, "accept", BillingServer._lago)
    monkeypatch.setenv("GATELOCK_SEND_TOKEN", KEY)
    day = datetime.now(UTC) - timedelta(days=1)
    date, noon = f"{day:%Y-%m-%d}", day.replace(hour=12)
    configure(f'[database]\nurl = "{engine.url}"\n[billing]\ngrace = 0\n{LOG}')
    line = json.dumps({"key": "acme", "ts": int(noon.timestamp())})
    Path("access.log").write_text(f"{line}\n" * 3)
    assert gatelock("upkeep", "import", "access.log").exit_code == 0
    assert gatelock("billing", "days", "close", date, "--reason", "counted", "--yes").exit_code == 0
    [row] = objects(gatelock("billing", "report", "day", date, "--format", "lines"))
    assert row["value"] == 3
    [event] = objects(gatelock("billing", "report", "day", date, "--format", "abacus"))
    assert event["properties"]["value"] == 3
    with billing_server("abacus") as server:
        sent = gatelock("billing", "report", "send", "day", date, "--to", server.url, "--format", "abacus")
        assert sent.exit_code == 0, sent.output
        assert server.totals() == {"requests": 3}
