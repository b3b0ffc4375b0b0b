"""`gatelock restore` and `gatelock backup`: what a restore loses, and days that are closed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.billing.days.closing import DayClosing
from analyzer.kernel.tables.schema import lock_history
from tests.support.billing_server import KEY, BillingServer, billing_server
from tests.support.restoring import backed_up
from tests.support.tampered_tables import tamper

Gatelock = Callable[..., Any]
NOW = datetime.now(UTC)
FIRST, SECOND = (f"{NOW - timedelta(days=number):%Y-%m-%d}" for number in (2, 1))
RESTORE = ("restore", "days", "--from", "reports", "--reason", "the disk broke", "--yes")
POLICY = '[[policies]]\nname = "daily"\nlimit = 1000\nwindow = { per = "day" }\n'


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    (tmp_path / "key").write_text("0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    return (
        f'[billing]\ngrace = 0\ndigest_key_file = "key"\nwitness = "{tmp_path}/witness.json"\n'
        '[[sources]]\nname = "web"\nfile = "requests.jsonl"\n[sources.fields]\n'
        'time = { path = "t", unit = "s" }\napi_key = "key"\nstatus = "status"\n'
        "[sources.deny_if]\nstatus = 429\n"
    )


class Bill:
    """Two days, closed one after the other; the second has what came late of the first."""

    def __init__(self, gatelock: Gatelock, engine: sa.Engine) -> None:
        self.gatelock, self.engine = gatelock, engine
        self.files = 0
        Path("reports").mkdir()

    def run(self, *arguments: str) -> Any:
        result = self.gatelock(*arguments)
        assert result.exit_code == 0, result.stderr + result.stdout
        return result

    def count(self, date: str, requests: int, caller: str = "acme", status: int = 200) -> str:
        """Imports a file; returns its name."""
        self.files += 1
        name = f"{self.files}.jsonl"
        at_s = int(datetime.fromisoformat(f"{date}T12:00:00Z").timestamp())
        row = {"t": at_s, "key": caller, "file": name, "status": status}
        Path(name).write_text("".join(f"{json.dumps(row)}\n" * requests))
        self.import_again(name)
        return name

    def grow(self, name: str, requests: int) -> None:
        """Writes more lines like the first one of a file, and imports it again."""
        with Path(name).open("r+") as log:
            line = log.readline()
            log.seek(0, 2)
            log.write(line * requests)
        self.import_again(name)

    def import_again(self, name: str) -> None:
        self.run("upkeep", "import", name, "--source", "web", "--max-rejected", "100%")

    def close(self, date: str) -> None:
        self.run("billing", "days", "close", date, "--reason", "r", "--yes")
        self.run("billing", "report", "day", date, "--out", f"reports/{date}.csv")

    def close_both(self) -> Callable[[], None]:
        """Closes both days, with a backup before the first; returns what restores it."""
        self.count(FIRST, 30)
        restore = backed_up(self.engine)
        self.close(FIRST)
        self.count(SECOND, 100)
        self.count(FIRST, 5)
        self.close(SECOND)
        return restore

    def digests(self) -> list[str]:
        with self.engine.connect() as db:
            return list(db.scalars(sa.text("select digest from days where state = 'closed' order by id")))

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        return [*map(json.loads, self.gatelock(*arguments, "--json").stdout.splitlines())]


@pytest.fixture
def bill(gatelock: Gatelock, engine: sa.Engine) -> Bill:
    return Bill(gatelock, engine)


def test_restored_days_are_closed_again_to_the_same_bytes(bill: Bill) -> None:
    restore = bill.close_both()
    last = bill.count(SECOND, 10)
    digests, booked = bill.digests(), bill.run("billing", "report", "corrections", "today").stdout
    bill.run("restore", "check", "--from", "reports")
    restore()
    missing = bill.gatelock("restore", "check", "--from", "reports")
    assert missing.exit_code == 1
    assert "2 days in manifests: 0 closed" in missing.stdout
    assert f"{SECOND} (UTC): not closed; its log can be counted up to the cut that it had" in missing.stdout
    assert "the database was restored, or its last entries were cut off" in missing.stdout
    restored = bill.run(*RESTORE)
    assert restored.stdout.count("closed again, to the same bytes") == 2
    assert bill.digests() == digests
    bill.run("restore", "check", "--from", "reports")
    bill.run("billing", "audit", "--report", "reports")
    assert "restored after the entry 1, as an operator has said" in bill.run("billing", "audit").stdout
    bill.import_again(last)
    assert bill.run("billing", "report", "corrections", "today").stdout == booked
    assert bill.gatelock(*RESTORE).stdout.startswith("2 days in manifests: 2 closed, with the same digest")


def test_a_day_whose_closing_was_interrupted_is_closed_by_another_run(
    bill: Bill, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = bill.close_both()
    digests = bill.digests()
    restore()

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(DayClosing, "_is_signed", fails)
        with pytest.raises(ZeroDivisionError):
            bill.gatelock(*RESTORE)
    tamper(bill.engine, "delete from leases")  # of the process that is gone: it ends by itself
    bill.run(*RESTORE)
    assert bill.digests() == digests


def test_a_plan_since_the_backup_comes_in_force_at_the_offsets_of_then(bill: Bill, tmp_path: Path) -> None:
    bill.count(FIRST, 30)
    restore = backed_up(bill.engine)
    bill.close(FIRST)
    file = tmp_path / "gatelock.toml"
    before = file.read_text()
    file.write_text(before + POLICY)
    bill.run("policies", "apply", "--yes")
    bill.count(SECOND, 100)
    bill.close(SECOND)
    digests = bill.digests()
    restore()
    file.write_text(before)
    refused = bill.gatelock(*RESTORE)
    assert refused.exit_code == 2
    assert "it was counted by plan 2, which came in force after the backup" in refused.stderr
    file.write_text(before + POLICY)
    bill.run(*RESTORE)
    assert bill.digests() == digests
    bill.run("billing", "audit")


def test_a_file_that_has_grown_since_is_counted_up_to_the_cut_alone(bill: Bill) -> None:
    name = bill.count(FIRST, 10)
    restore = backed_up(bill.engine)
    bill.grow(name, 20)
    bill.close(FIRST)
    bill.grow(name, 15)
    digests, booked = bill.digests(), bill.run("billing", "report", "corrections", "today").stdout
    assert ",requests,15," in booked
    restore()
    bill.run(*RESTORE)
    assert bill.digests() == digests
    bill.import_again(name)
    assert bill.run("billing", "report", "corrections", "today").stdout == booked


@pytest.mark.parametrize("refuted", [0, 7])
def test_denied_requests_of_the_lost_hours_stay_denied(bill: Bill, refuted: int) -> None:
    bill.count(SECOND, 30)
    tamper(bill.engine, "update lock_history set began_ms = 0 where key = ''")
    if refuted:
        bill.count(SECOND, refuted, status=429)
    restore = backed_up(bill.engine)
    known = {"scope": "caller", "key": "api_key:acme", "resource": "", "policy": "", "until_ms": 2**53}
    row = known | {
        "began_ms": 0,
        "ended_ms": 2**53,
        "cause": "lapsed",
        "action": "deny",
        "detail": "",
        "plan": 1,
    }
    with bill.engine.begin() as db:
        db.execute(sa.insert(lock_history).values(row))
    bill.count(SECOND, 40, status=429)
    bill.close(SECOND)
    report = Path(f"reports/{SECOND}.csv").read_text()
    assert report.endswith(f",{30 + refuted},40,false\n")
    restore()
    bill.run(*RESTORE)
    assert bill.run("billing", "report", "day", SECOND).stdout == report


def test_a_partition_that_is_counted_beyond_its_cut_needs_the_backup_once_more(bill: Bill) -> None:
    restore = bill.close_both()
    restore()
    bill.grow("1.jsonl", 1)
    refused = bill.gatelock(*RESTORE)
    assert refused.exit_code == 1
    assert "1.jsonl[0] is counted up to" in refused.stdout
    assert "restore the backup once more, and keep them stopped" in refused.stdout
    assert bill.digests() == []


def test_a_log_that_is_gone_is_named_before_anything_is_counted(bill: Bill) -> None:
    restore = bill.close_both()
    restore()
    Path("2.jsonl").unlink()
    refused = bill.gatelock(*RESTORE)
    assert refused.exit_code == 1
    assert f"{SECOND} (UTC): 2.jsonl[0]: the bytes from 0 to" in refused.stdout
    assert len(bill.digests()) == 1  # the day before can be closed


def test_a_day_that_is_another_one_is_closed_and_named(bill: Bill) -> None:
    restore = bill.close_both()
    restore()
    bill.count(FIRST, 3, caller="bob")
    result = bill.gatelock(*RESTORE)
    assert result.exit_code == 1
    assert (
        f"{FIRST} (UTC): closed up to the same offsets, and NOT EQUAL: partitions: there is" in result.stdout
    )
    assert "topic 4.jsonl" in result.stdout
    bill.run("billing", "audit", "--day", FIRST)  # it is what the log gives


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("delete from secrets where name = 'references'", "another key of references"),
        ("update offsets set beat_ms = 99999999999999", "analyzers count: stop them all first"),
    ],
)
def test_an_obstacle_is_named_and_nothing_is_counted(bill: Bill, statement: str, why: str) -> None:
    restore = bill.close_both()
    restore()
    tamper(bill.engine, statement)
    refused = bill.gatelock(*RESTORE)
    assert refused.exit_code == 1
    assert why in refused.stdout
    assert bill.digests() == []


def test_a_folder_without_manifests_or_with_two_of_a_day_is_refused(bill: Bill) -> None:
    Path("empty").mkdir()
    refused = bill.gatelock("restore", "check", "--from", "empty")
    assert refused.exit_code == 2
    assert "--from empty: no manifest of a closed day is there" in refused.stderr
    bill.close_both()
    manifest = Path(f"reports/{FIRST}.csv.manifest.json")
    other = json.loads(manifest.read_text())
    other["days"][0]["digest"] = "0" * 64
    Path("reports/other.csv.manifest.json").write_text(json.dumps(other))
    refused = bill.gatelock("restore", "check", "--from", "reports")
    assert refused.exit_code == 2
    assert f"have other digests of {FIRST} (UTC): keep the one that was billed" in refused.stderr
    manifest.write_text("{}")
    assert "is not a manifest of schema 1" in bill.gatelock("restore", "check", "--from", "reports").stderr


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[BillingServer]:
    monkeypatch.setenv("GATELOCK_SEND_TOKEN", KEY)
    with billing_server(request.param) as server:
        yield server


def send(service: BillingServer, date: str) -> tuple[str, ...]:
    return ("billing", "report", "send", "day", date, "--to", service.url, "--format", service.kind)


@pytest.mark.parametrize("service", ["lago"], indirect=True)
def test_a_service_that_knows_identifiers_forever_is_sent_a_restored_day_again(
    bill: Bill, service: BillingServer
) -> None:
    restore = bill.close_both()
    for date in (FIRST, SECOND):
        bill.run(*send(service, date))
    totals = service.totals()
    restore()
    bill.run(*RESTORE)
    for date in (FIRST, SECOND):
        assert "1 it had already" in bill.run(*send(service, date)).stdout
    assert service.totals() == totals


@pytest.mark.parametrize("service", ["stripe", "lago"], indirect=True)
def test_a_part_that_may_have_been_sent_before_a_restore_waits_for_an_operator(
    bill: Bill, service: BillingServer
) -> None:
    restore = bill.close_both()
    bill.run(*send(service, FIRST))
    restore()
    if service.kind == "stripe":
        bill.run(*RESTORE)
        why = "the service remembers identifiers for 23 hours alone"
    else:
        bill.run("restore", "days", "--reason", "the disk broke")
        bill.count(FIRST, 10)
        Path("reports").rename("kept")
        Path("reports").mkdir()
        bill.close(FIRST)
        why = "it was closed again since, perhaps with other amounts"
    refused = bill.gatelock(*send(service, FIRST))
    assert refused.exit_code == 1
    assert f"it may have been sent before the database was restored, and {why}" in refused.stderr
    [compared] = bill.lines(
        "billing", "report", "reconcile", "day", FIRST, "--from", service.url, "--format", service.kind
    )
    assert (compared["acknowledged"], compared["at_service"]) == (0, 30)
    bill.run(*send(service, FIRST), "--repeat")


@pytest.mark.parametrize("service", ["lago"], indirect=True)
def test_the_report_of_a_day_with_other_amounts_says_so_through_another_restore(
    bill: Bill, service: BillingServer
) -> None:
    """docs/spec/Bill.tla has found it: the first report was never kept, and the service has its amounts."""
    restore = bill.close_both()
    bill.run(*send(service, FIRST))
    Path("reports").rename("lost")
    Path("reports").mkdir()
    for again in range(2):
        restore()
        bill.run("restore", "days", *(("--from", "reports") if again else ()), "--reason", "r", "--yes")
        if not again:
            bill.count(FIRST, 10)
            bill.close(FIRST)
        refused = bill.gatelock(*send(service, FIRST))
        assert refused.exit_code == 1
        assert "it was closed again since, perhaps with other amounts" in refused.stderr


def test_a_kept_report_has_a_witness(bill: Bill) -> None:
    witness = Path("witness.json")
    bill.count(FIRST, 3)
    before = witness.read_text()
    bill.run("billing", "days", "close", FIRST, "--reason", "r", "--yes")
    witness.write_text(before)  # its process died before it has told the witness
    bill.run("billing", "report", "day", FIRST)
    assert witness.read_text() == before
    bill.run("billing", "report", "day", FIRST, "--out", "day.csv")
    assert json.loads(witness.read_text())["entries"] == 2
    witness.write_text('{"entries": 3, "mac": "", "restored": 0}')
    result = bill.run("billing", "report", "day", FIRST, "--out", "day.csv")
    assert "day.csv: the chain ends with the entry 2, and its witness has seen 3" in result.stderr


def test_a_backup_is_restored_by_copying_it(bill: Bill, tmp_path: Path) -> None:
    bill.close_both()
    written = bill.lines("backup", "--to", "backups")[0]
    folder = Path(written["folder"])
    assert written["closed"] == {"UTC": SECOND}
    assert {file["name"] for file in written["files"]} >= {"gatelock.toml"}
    assert (folder.stat().st_mode & 0o777, (folder / "backup.json").stat().st_mode & 0o777) == (0o700, 0o600)
    assert not list(folder.glob("key*"))
    kept = json.loads((folder / "backup.json").read_text())
    assert kept["chain_entries"] == written["chain_entries"]
    assert kept["files"] == written["files"]


def test_a_backup_says_what_it_cannot_write(bill: Bill, tmp_path: Path) -> None:
    Path("taken").write_text("")
    refused = bill.gatelock("backup", "--to", "taken")
    assert refused.exit_code == 2
    assert "--to taken: " in refused.stderr
