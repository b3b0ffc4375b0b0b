"""Audits of closed days: what a user who can write every table has changed is found, and by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from analyzer.billing.audit.audit_outcomes import AGAIN_MS, DayAudits, differing_in_words, outcomes
from analyzer.billing.audit.day_differences import AuditedDay
from analyzer.billing.audit.examined_days import examine_digests
from analyzer.billing.reports.atomic_files import write_whole
from analyzer.billing.reports.day_report import read_report, report_rows
from analyzer.billing.reports.file_audit import AuditedFile, FileUnreadable, audit_file
from analyzer.billing.reports.manifest import MANIFEST, encode_manifest, report_contents
from analyzer.billing.reports.report_lines import ReportSums, line_cells, report_columns, usage_lines
from analyzer.billing.reports.row_formats import ROW_FORMATS
from analyzer.faces.signals.status import installation_status
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.model import PartitionProgress
from tests.store.days.closed_days import DAY_S, KEY, ClosedDays
from tests.store.flushing import ACME, ANN, PART
from tests.support.tampered_tables import tamper, without_triggers

OTHER_KEY = DigestKey(b"another key of digests")


@pytest.fixture
def closed(engine: sa.Engine) -> ClosedDays:
    return ClosedDays(engine)


def names(audited: AuditedDay, kind: str) -> set[str]:
    return {one.name for one in audited.differences if one.kind == kind}


def reference_of(name: str) -> str:
    return f"(select reference from referenced_names where name = '{name}')"


def test_days_as_they_were_closed_are_equal(closed: ClosedDays) -> None:
    for number in (0, 1):
        audited = closed.audit(number)
        assert audited.equal
        assert list(audited.remarks) == []
    found = examine_digests(closed.engine, [KEY])
    assert (found.equal, found.closed, found.read) == (True, 2, 2)


CHANGES = {
    "a row": (0, "update frozen_counts set value_0 = value_0 - 1 where day = 1 and reference = "),
    "a lost row": (0, "delete from frozen_counts where day = 1 and grouping = 1 and reference = "),
    "an adjustment": (1, "update adjustments set value_0 = 0 where day = 1 and reference = "),
    "a lost adjustment": (1, "delete from adjustments where day = 1 and reference = "),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_was_changed_is_found_by_name(closed: ClosedDays, change: str) -> None:
    """By the digest of the day that it is booked on, and by the buckets of the day that it is about."""
    number, statement = CHANGES[change]
    assert tamper(closed.engine, statement + reference_of(ACME)) >= 1
    assert "digest" in closed.kinds(number)
    assert names(closed.audit(0), "counts") == {ACME}
    assert not examine_digests(closed.engine, [KEY]).equal


def test_a_row_moved_between_callers_is_found_by_name(closed: ClosedDays) -> None:
    """Sums, rows and groupings stay as they were."""
    moves = [
        f"update frozen_counts set reference = 'x' where day = 1 and reference = {reference_of(ACME)}",
        f"update frozen_counts set reference = {reference_of(ACME)} where day = 1 and reference = "
        f"{reference_of(ANN)}",
        f"update frozen_counts set reference = {reference_of(ANN)} where day = 1 and reference = 'x'",
    ]
    assert tamper(closed.engine, *moves) >= 1
    audited = closed.audit(0)
    assert {one.kind for one in audited.differences} == {"digest", "counts"}
    assert names(audited, "counts") == {ACME, ANN}


def test_a_correction_that_was_changed_is_found(closed: ClosedDays) -> None:
    assert tamper(closed.engine, "update corrections set amount = -7 where id = 1") == 1
    assert closed.kinds(0) == set(), "it is booked on the day after"
    assert closed.kinds(1) == {"digest", "given"}


REASON = "update corrections set reason = 'none of your business'"


def test_a_reason_that_was_changed_is_found(closed: ClosedDays) -> None:
    """The digest of the day signs it by a salted digest."""
    with pytest.raises(sa.exc.DBAPIError, match="never changed"), closed.engine.begin() as db:
        db.exec_driver_sql(REASON)
    assert tamper(closed.engine, REASON) == 1
    assert [one.what for one in closed.audit(1).differences] == [
        "the reason of correction 1 was changed since it was written"
    ]
    assert not examine_digests(closed.engine, [KEY]).equal


def test_a_reason_without_its_salt_is_not_compared_and_the_audit_says_so(closed: ClosedDays) -> None:
    """Forgetting a caller leaves it like this. The database refuses any other change of a correction."""
    with closed.engine.begin() as db:
        db.exec_driver_sql(f"{REASON}, salt = ''")
    audited = closed.audit(1)
    assert audited.equal
    assert "a forgotten caller was taken out of 1 reason: not compared" in audited.remarks
    for more in ("amount = 9", "who = 'eve'", "reason_digest = ''"):
        with pytest.raises(sa.exc.DBAPIError, match="never changed"), closed.engine.begin() as db:
            db.exec_driver_sql(f"{REASON}, salt = '', {more}")


@pytest.mark.parametrize("text", ["", "a reason"])
def test_a_reason_whose_digest_is_gone_is_found(closed: ClosedDays, text: str) -> None:
    tamper(closed.engine, f"update corrections set reason = '{text}', salt = '', reason_digest = ''")
    assert "digest" in closed.kinds(1)


def test_a_name_given_to_another_reference_is_found(closed: ClosedDays) -> None:
    """The rows and their digests do not contain names."""
    swap = [
        f"update referenced_names set name = 'x' where name = '{ACME}'",
        f"update referenced_names set name = '{ACME}' where name = '{ANN}'",
        f"update referenced_names set name = '{ANN}' where name = 'x'",
    ]
    assert tamper(closed.engine, *swap) == 1
    assert names(closed.audit(0), "name") == {ACME, ANN}
    tamper(closed.engine, f"delete from referenced_names where name = '{ACME}'")
    assert [one.what for one in closed.audit(0).differences if "no name" in one.what]


def test_a_ledger_that_does_not_add_up_is_found(closed: ClosedDays) -> None:
    closed.store.begin(PART, 0)
    with closed.store.transaction() as tx:
        tx.move_offsets([PartitionProgress(PART, 0, 7, seen=7, counted=5, dead=2)], {})
    closed.close()
    assert closed.kinds(2) == set()
    tamper(closed.engine, "update offsets set dead = 1")
    [one] = closed.audit(2).differences
    assert one.what == "access-log[0]: 7 seen, 6 counted, duplicate, dead or late"


def test_a_row_of_one_grouping_alone_is_found_without_buckets(closed: ClosedDays) -> None:
    tamper(
        closed.engine,
        "delete from buckets",
        "insert into proofs (day_s, requests, at_ms, deleted) "
        f"values ({closed.first.begin_s}, 0, 0, 1) on conflict (day_s) do update set deleted = 1",
        "update frozen_counts set value_0 = value_0 + 1 where day = 1 and grouping = 1 and reference = "
        + reference_of(ACME),
    )
    audited = closed.audit(0)
    assert {one.kind for one in audited.differences} == {"digest", "totals", "grouping"}
    assert names(audited, "grouping") == {ACME}
    assert audited.remarks == [
        "not compared with the buckets: its buckets were deleted after their retention"
    ]


def test_with_the_key_elsewhere_a_user_who_writes_every_table_is_found(closed: ClosedDays) -> None:
    """The forged digest is as good as one without the key can be."""
    shave = "set value_0 = value_0 - 1 where reference = "
    tamper(closed.engine, f"update frozen_counts {shave}{reference_of(ACME)}")
    tamper(closed.engine, f"update buckets set value_0 = value_0 - 1 where key = '{ACME}'")
    for forger, kind in ((DigestKey(), "key"), (OTHER_KEY, "key")):
        closed.forge(1, forger)
        assert kind in closed.kinds(1)
        assert not examine_digests(closed.engine, [KEY]).equal
    assert "digest" in closed.kinds(0), "its digest was left as it was"


def test_a_forged_day_breaks_the_chain_for_the_next_one(closed: ClosedDays) -> None:
    closed.forge(0, OTHER_KEY)
    assert closed.kinds(0) == {"key", "given"}
    [one] = closed.audit(1).differences
    assert (one.kind, one.what) == (
        "chain",
        "it continues a digest that no day has: the day before it was changed, or deleted",
    )


def test_a_day_that_was_deleted_is_found(closed: ClosedDays) -> None:
    audits = DayAudits(closed.engine, [KEY], "analyzer:1")
    assert [audits.step() for _ in range(3)] == [1, 1, 0]
    tamper(closed.engine, *(f"delete from {table} where {column} = 2" for table, column in (
        ("frozen_counts", "day"), ("adjustments", "booked"), ("corrections", "booked"), ("days", "id")
    )))  # fmt: skip
    found = examine_digests(closed.engine, [KEY])
    assert found.days == []
    date = outcomes(closed.engine)[1].date
    assert found.lost == [f"{date} (UTC) was closed and audited, and is not closed any more"]


def test_days_that_were_closed_before_the_key_are_proved_by_those_after(engine: sa.Engine) -> None:
    closed = ClosedDays(engine, DigestKey())
    assert closed.audit(1).equal
    assert closed.audit(1).remarks == [
        "its digest was made without a key: damage is found, a forged digest is not"
    ]
    assert closed.kinds(1, KEY) == {"key"}, (
        "any program could have written it until a day with the key follows"
    )
    closed.close(KEY)
    assert closed.kinds(1, KEY) == set()
    assert closed.kinds(2, DigestKey()) == {"key"}
    assert closed.kinds(2, OTHER_KEY, KEY) == set()


def test_each_closed_day_is_audited_once_and_what_differs_is_an_alarm(closed: ClosedDays) -> None:
    tamper(
        closed.engine,
        f"update frozen_counts set value_0 = 9 where day = 2 and reference = {reference_of(ANN)}",
    )
    audits = DayAudits(closed.engine, [KEY], "analyzer:1")
    assert [audits.step() for _ in range(3)] == [1, 1, 0]
    first, second = outcomes(closed.engine)
    assert (first.result, first.who, list(first.differences)) == ("equal", "analyzer:1", [])
    assert second.result == "differs"
    [sentence] = differing_in_words(closed.engine).values()
    assert sentence.startswith(f"the audit of {second.date} (UTC) found: its digest does not fit: ")
    assert installation_status(closed.engine, _head(closed.engine)).differing_days == 1
    closed.close()
    assert [audits.step(), audits.step()] == [1, 0]
    tamper(closed.engine, f"update day_audits set at_ms = at_ms - {AGAIN_MS} where day < 3")
    assert [audits.step() for _ in range(3)] == [1, 1, 0], "once more, a week later"


def _head(engine: sa.Engine) -> str:
    with engine.connect() as db:
        return str(db.exec_driver_sql("select version_num from alembic_version").scalar_one())


def test_a_day_with_late_counts_is_equal(closed: ClosedDays) -> None:
    """Also of a meter of largest values, whose adjustment is the largest late one."""
    closed.count(ACME, 1, closed.first.begin_s + 7_200)
    closed.count("user:new", 100, closed.first.begin_s + DAY_S)
    for number in (0, 1):
        assert closed.audit(number).equal
    with without_triggers(closed.engine) as db:
        changed = db.exec_driver_sql("update adjustments set value_1 = 9999 where booked = 3 and day = 1")
        assert changed.rowcount >= 1
    meters = {one.meter for one in closed.audit(0).differences}
    assert meters == {"slowest"}, "the open day has no digest yet"


@pytest.fixture
def written(closed: ClosedDays, tmp_path: Path) -> Callable[..., AuditedFile]:
    """Writes a report of the first day, and returns how it is audited."""
    for name in ROW_FORMATS:
        report = read_report(closed.engine, "UTC", closed.first.date, closed.first.date, "caller")
        sums, file = ReportSums(), tmp_path / f"day.{name}"
        lines = usage_lines(report, report_rows(closed.engine, report), {}, sums)
        columns = report_columns(report)
        made = write_whole(
            file, ROW_FORMATS[name].encode(columns, (line_cells(line, columns) for line in lines))
        )
        write_whole(
            tmp_path / f"{file.name}{MANIFEST}", [encode_manifest(report_contents(report), sums, [made])]
        )

    def audited(name: str) -> AuditedFile:
        return audit_file(closed.engine, tmp_path / name, {})

    return audited


def test_a_report_file_is_compared_with_its_manifest_and_the_tables(
    closed: ClosedDays, written: Callable[..., AuditedFile], tmp_path: Path
) -> None:
    for name in ROW_FORMATS:
        assert (written(f"day.{name}").differences, written(f"day.{name}").lines) == ([], 4)
        assert written(f"day.{name}{MANIFEST}").equal
    file = tmp_path / "day.csv"
    before = file.read_bytes()
    file.write_bytes(before.replace(b",requests,,5,0", b",requests,,4,0"))
    found = written("day.csv").differences
    assert found[0].startswith("day.csv: its sha256 is ")
    assert found[1].startswith("day.csv, line 2: it has ")
    assert ",requests,,4,0,false', and the tables have " in found[1]
    file.write_bytes(before)
    tamper(closed.engine, "update frozen_counts set value_0 = 1 where day = 1")
    assert [one.split(":")[0] for one in written("day.csv").differences] == [
        "day.csv, line 2",
        f"day.csv{MANIFEST}",
        f"day.csv{MANIFEST}",
    ]


def test_a_manifest_that_was_changed_is_found(written: Callable[..., AuditedFile], tmp_path: Path) -> None:
    manifest = tmp_path / f"day.csv{MANIFEST}"
    before = manifest.read_text()
    for old, new, where in (
        ('"lines": 4', '"lines": 3', "lines"),
        ('"requests": 12', '"requests": 11', "days["),
        ('"cut_ms": 1', '"cut_ms": 2', "days["),
        ('"name": "day.csv"', '"name": "other.csv"', "the manifest does not name the file day.csv"),
    ):
        assert old in before
        manifest.write_text(before.replace(old, new, 1))
        assert any(where in one for one in written("day.csv").differences)
    manifest.write_text(before.replace('"state": "final"', '"state": "provisional"'))
    assert written("day.csv").remarks
    for text, why in (
        ("{", "is not JSON"),
        ("{}", "is not a manifest"),
        (before.replace('"UTC"', '"Mars"'), "describes"),
    ):
        manifest.write_text(text)
        with pytest.raises(FileUnreadable, match=why):
            written("day.csv")
    manifest.unlink()
    with pytest.raises(FileUnreadable, match="cannot be read"):
        written("day.csv")
