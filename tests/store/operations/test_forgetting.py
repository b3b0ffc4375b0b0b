"""Forgetting a caller: no table has its name any more, and every sum is as before."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from analyzer.billing.days.closing import Billing, DayClosing
from analyzer.billing.days.day_rows import add_day, stored_days
from analyzer.billing.days.given_differences import compare_given
from analyzer.billing.reports.day_report import read_report, report_rows
from analyzer.build import CounterSecrets, counter_secrets, new_counter
from analyzer.callers.caller_changes import OverrideRequest, add_override, set_callers
from analyzer.callers.forgetting.forget_caller import ForgottenCaller, foresee_forgetting, forget_caller
from analyzer.callers.forgetting.other_meanings import other_meaning
from analyzer.callers.forgetting.renaming import Renaming
from analyzer.callers.forgetting.replaced_texts import FREE_TEXTS, NAMELESS, NAMES, named_texts, replace
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.counting.usage import UsageQuery, usage_rows
from analyzer.flush.pipeline import refusal
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.caller_limits import Profile, Subject
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.sql import plans
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import RECORDS_RETRIED, record
from analyzer.kernel.database.chain import Signer, salts, stored_entries
from analyzer.kernel.database.engine import reading, writing
from analyzer.kernel.errors import CannotForget
from analyzer.kernel.model import Record, Records, Rejected
from analyzer.kernel.tables.billing_tables import corrections
from analyzer.kernel.tables.replay_tables import replays
from analyzer.kernel.tables.schema import events, metadata, named_callers
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.maintenance.audit import audit
from analyzer.plan.mapping import EventIdRule, SourceMapping, TextField, TimeField
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan, plan_from
from analyzer.plan.policies import Quota, RollingQuota
from analyzer.plan.proposals import applied
from analyzer.plan.windows import Calendar, Rolling
from gatekeeper.sources import open_source
from tests.store.flushing import PART, now_s
from tests.store.simulated_analyzers import FaultAt, killed
from tests.support.depth import IS_DEEP
from tests.support.step_faults import Killed
from tests.support.tampered_tables import without_triggers
from tests.support.upkeep import Upkeep

DAY_S = 86_400
NAME, LONGER, BOB = "api_key:acme", "api_key:acme-2", "api_key:bob"
MAPPING = SourceMapping(
    caller=("api_key",),
    time=TimeField(("ts",), "ms"),
    fields={
        "api_key": TextField(("key",)),
        "resource": TextField(("path",)),
        "id": TextField(("id",)),
        "tenant": TextField(("org",)),
    },
    id=EventIdRule("id", 3_600_000, 1_000),
)
POLICIES = (
    Quota("monthly", 3, Calendar("month", "UTC")),
    RollingQuota("hourly", 4, Rolling(3_600)),
    Quota("per-path", 100, Calendar("day", "UTC"), per="caller+resource"),
    Quota("spread", 100, Calendar("day", "UTC"), meter="organisations"),
)
ORGANISATIONS = Meter("organisations", "tenant", join="distinct")  # whose values are in no bucket
PLAN = make_plan(["caller+resource", "tenant"], [ORGANISATIONS], POLICIES, {"log": MAPPING})


class Installation:
    """A database, and an analyzer that counts by the plan in force."""

    def __init__(self, engine: sa.Engine, store: SqlStore) -> None:
        self.engine, self.store, self.next = engine, store, 0
        store.activate(PLAN)
        store.begin(PART, 0)

    def fill(self) -> None:
        """Has the caller stand in as many tables as it can."""
        yesterday_s = now_s(self.engine) - DAY_S
        with writing(self.engine) as db:
            add_day(db, "UTC", yesterday_s)
        yesterday = [self.request(NAME, f"y{at}", DAY_S) for at in range(2)]
        self.flush(*yesterday, self.request(BOB, "y2", DAY_S))
        billing = Billing(grace_s=0.0)
        day_closing = DayClosing(
            self.engine, billing, lambda _: {}, lambda: "mark", lambda: now_s(self.engine) * 1000
        )
        while day_closing.step():
            pass
        late = self.request(NAME, "late", DAY_S)
        self.flush(late, b'{"key": "acme", "ts": "unreadable"}', b'{"key": "acme-2", "ts": "unreadable"}')
        today = [self.request(NAME, f"t{at}") for at in range(6)]
        self.flush(*today, self.request(BOB, "b"), self.request(LONGER, "l"))
        set_callers(self.engine, {NAME: Profile("pro", "acorp")}, "ann@here", f"{NAME} has paid", new_mark)
        asked = OverrideRequest("limit", Subject("caller", NAME), "monthly", 5)
        add_override(self.engine, asked, "ann@here", "a friend", new_mark)
        self.flush(self.request(NAME, "t6"), self.request(BOB, "b2"))

    def plan(self) -> tuple[int, Plan]:
        with reading(self.engine) as db:
            return plans.active(db)

    def flush(self, *values: bytes) -> Sequence[Rejected]:
        """Counts records; returns those that are rejected."""
        version, plan = self.plan()
        counter = new_counter(plan, secrets=counter_secrets(self.engine, plan))
        counter.resume(PART, self.store.counter_state(PART))
        now_ms = now_s(self.engine) * 1000
        items = [Record(self.next + at, now_ms, value) for at, value in enumerate(values)]
        counter.feed(Records.of(PART, self.next, self.next + len(items), items))
        found = counter.drain()
        with self.store.transaction() as tx:
            tx.move_offsets(found.parts, {})
            tx.apply(plan, version, found, tx.check_plan(plan, version))
        self.next += len(items)
        return found.rejected

    def request(self, name: str, id_: str, ago_s: int = 0, **more: str) -> bytes:
        ms = (now_s(self.engine) - ago_s) * 1000
        record = {"key": name.partition(":")[2], "ts": ms, "path": "/a", "id": id_, "org": "acorp"}
        return json.dumps(record | more).encode()

    def usage(self, grouping: str = "caller") -> dict[tuple[str, str], int]:
        at_s = now_s(self.engine)
        query = UsageQuery(grouping, 0, at_s - 3 * DAY_S, at_s + DAY_S)
        found = Counter[tuple[str, str]]()
        for row in usage_rows(self.engine, query):
            found[row.key, row.resource] += row.value
        return dict(found)

    def report(self) -> list[tuple[str, Any]]:
        with reading(self.engine) as db:
            [closed] = [day for day in stored_days(db) if day.state == "closed"]
        report = read_report(self.engine, "UTC", closed.date, closed.date, "caller")
        return [(row.name, row.amounts) for row in report_rows(self.engine, report)]

    def is_audited(self) -> bool:
        """Whether the audit finds no difference, once the warden has looked."""
        Upkeep(self.engine, new_mark).judge_waiting()
        return audit(self.engine).equal

    def forget(self, why: str = "asked by a letter") -> ForgottenCaller:
        return forget_caller(self.engine, NAME, "ann@here", why, new_mark)

    def places(self, text: str) -> list[str]:
        """Returns the columns of the database in which a text stands."""
        found = []
        with reading(self.engine) as db:
            for table in metadata.sorted_tables:
                for row in db.execute(sa.select(table)).mappings():
                    found += [f"{table.name}.{name}" for name, value in row.items() if _has(value, text)]
        return sorted(set(found))


def _has(value: object, text: str) -> bool:
    if isinstance(value, (bytes, memoryview)):
        return text.encode() in bytes(value)
    return isinstance(value, str) and text in value


@pytest.fixture
def installation(engine: sa.Engine, store: SqlStore) -> Installation:
    here = Installation(engine, store)
    here.fill()
    return here


def test_no_table_has_the_name_and_every_sum_is_as_before(installation: Installation) -> None:
    here = installation
    before, places = here.usage("caller+resource"), here.places("acme")
    assert {"buckets.key", "totals.key", "lock_history.key", "rejects.sample", "named_callers.callers"} <= {
        *places
    }
    assert {"events.about", "events.why", "overrides.subject", "callers.caller", "lock_changes.key"} <= {
        *places
    }
    assert "referenced_names.name" in places
    done = here.forget(f"{NAME} has left")
    assert done.is_new
    assert done.rows > 10
    assert done.pseudonym.startswith("forgotten:")
    assert NAME not in str(here.places("acme"))
    left = [place for place in here.places("acme") if place not in here.places("acme-2")]
    assert left == []
    with reading(here.engine) as db:
        for callers in db.scalars(sa.select(named_callers.c.callers)):
            assert NAME not in callers.split("\n")
    renamed = {(done.pseudonym if key == NAME else key, path): value for (key, path), value in before.items()}
    assert here.usage("caller+resource") == renamed
    assert here.is_audited()


def test_free_texts_that_name_the_caller_are_listed_and_changed(installation: Installation) -> None:
    here = installation
    set_callers(here.engine, {BOB: Profile("free")}, "ann@here", "sold by acme; not acme-2", new_mark)
    texts = foresee_forgetting(here.engine, NAME).texts
    assert ("events.why", "sold by acme; not acme-2") in texts
    assert ("overrides.reason", "a friend") not in texts
    done = here.forget()
    assert (done.kept, done.meaning) == ([], "")
    with reading(here.engine) as db:
        reasons = set(db.scalars(sa.select(events.c.why)))
    assert f"sold by {done.pseudonym}; not acme-2" in reasons


def test_acts_whose_texts_named_the_caller_are_signed_again(installation: Installation) -> None:
    here = installation
    swapped = {
        "id": 1, "state": "swapped", "source": "log", "plan": 1, "parts": "", "files": "[]", "about": "log",
        "who": "ann@here", "began_ms": 1, "counted_ms": 2, "swapped_ms": 3, "swapped_by": "ann@here",
        "reason": f"{NAME} has asked", "rows": 0, "days": "[]",
    }  # fmt: skip
    with writing(here.engine) as db:
        mark = db.execute(sa.select(plans_table.c.mark).where(plans_table.c.version == 1)).scalar_one()
        act = record(db, "ann@here", RECORDS_RETRIED, "log[0]@1", f"{NAME} has asked")
        signed_rows.sign(db, signed_rows.retry(act))
        added = sa.insert(replays).values(swapped | {"mark": mark}).returning(*replays.c)
        signed_rows.sign(db, signed_rows.replay(db.execute(added).mappings().one(), []))

    def differences() -> list[str]:
        with reading(here.engine) as db:
            return [difference.what for difference in compare_given(db, Signer()).differences]

    assert differences() == []
    here.forget()
    assert differences() == []
    with reading(here.engine) as db:
        kinds: dict[str, list[bool]] = {}
        for entry in stored_entries(db):
            kinds.setdefault(entry.kind, []).append(entry.number in salts(db))
    assert (kinds["retry"], kinds["replay"]) == ([False, True], [False, True]), "old salts are destroyed"


def test_a_text_that_may_mean_something_else_stays_and_is_listed(installation: Installation) -> None:
    here = installation
    profile = Profile("free", "acme")
    set_callers(here.engine, {BOB: profile}, "ann@here", f"{NAME} or acme", new_mark)
    assert foresee_forgetting(here.engine, NAME).meaning == "a tenant"
    done = here.forget()
    assert done.meaning == "a tenant"
    assert ("events.why", f"{done.pseudonym} or acme") in done.kept


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("user:al", "a short text"),
        ("user:4711", "a number"),
        ("user:log", "a name in the configuration"),
        ("user:monthly", "a name in the configuration"),
        ("user:acme", "the caller api_key:acme"),
        ("user:pro", "a plan"),
        ("user:absent", ""),
    ],
)
def test_other_meanings_of_a_name_without_its_kind(
    installation: Installation, name: str, meaning: str
) -> None:
    assert other_meaning(installation.engine, Renaming(name, "X", "ref")) == meaning


SEARCHED = """
    alert_contacts.reason alert_contacts.sent_to alert_messages.error analyzers.problems analyzers.refused
    brakes.why corrections.reason day_audits.differences
    day_audits.remarks day_positions.left_out events.about events.why gaps.reason hold_offs.reason
    job_runs.error lock_changes.detail lock_changes.reason lock_history.detail locks.detail locks.reason
    notices.detail outbox.about overrides.reason replays.about replays.reason signals.cure signals.what
"""


def test_each_text_column_is_searched_or_cannot_name_a_caller() -> None:
    """A new column is searched; add it here, or its name to those that cannot have names of callers."""
    assert sorted(f"{column.table.name}.{column.name}" for column in FREE_TEXTS) == SEARCHED.split()
    in_use = {column.name for table in metadata.sorted_tables for column in table.columns}
    assert (NAMES | NAMELESS) - in_use == set(), "words of no column"
    assert [column for column in FREE_TEXTS if column.primary_key] == []


def test_no_free_text_names_the_caller_afterwards(engine: sa.Engine) -> None:
    """A row of each table has the name in every text that is searched."""
    with without_triggers(engine) as db:
        for table in {column.table for column in FREE_TEXTS}:
            values: dict[str, object] = {
                column.name: (
                    f"sold to {NAME}, i.e. acme" if column in FREE_TEXTS
                    else 1 if isinstance(column.type, sa.Integer) else "x"
                )
                for column in table.columns
            }  # fmt: skip
            db.execute(sa.insert(table).values(values))
    caller = Renaming(NAME, "X", "ref")
    assert {text.column for text in named_texts(engine, caller)} == set(SEARCHED.split())
    assert replace(engine, caller, also_plain=True) == len(FREE_TEXTS)
    assert named_texts(engine, caller) == []
    with reading(engine) as db:
        assert db.execute(sa.select(corrections.c["reason", "salt", "reason_digest"])).one() == (
            *("sold to X, i.e. X", "", "x"),
        )


UNREADABLE = (
    b'{"key": "acme", "ts": "yesterday"}',
    b'{"key": "acme", "ts": ',
    b"GET /v1?key=acme&page=2",
    b"for api_key:acme/2",
    rb'{"key": "\u0061cme", "ts": 0.5.5}',
)


@pytest.mark.parametrize("value", UNREADABLE)
def test_a_rejected_record_of_a_forgotten_caller_is_stored_without_its_sample(
    installation: Installation, value: bytes
) -> None:
    here = installation
    here.forget()
    rejected = here.flush(value, b'{"key": "acme-2", "ts": "unreadable"}')
    assert [record.sample for record in rejected] == [
        b"(forgotten)",
        b'{"key": "acme-2", "ts": "unreadable"}',
    ]
    assert here.places("acme") == here.places("acme-2")


def test_the_sentence_about_a_gap_does_not_quote_a_forgotten_caller(installation: Installation) -> None:
    here = installation
    here.forget()
    mapping = msgspec.structs.replace(MAPPING, rejected_in_row_max=2)
    plan = here.plan()[1].with_sources({"log": mapping})
    counter = new_counter(plan, secrets=counter_secrets(here.engine, plan))
    items = [Record(at, 0, b'{"key": "acme"}') for at in range(2)]
    result = counter.feed(Records.of(PART, 0, 2, items))
    assert result.status == "too-many-rejected"
    assert "acme" not in refusal(PART, result)
    assert "(forgotten)" in refusal(PART, result)


def test_requests_to_come_are_counted_under_the_pseudonym_and_ids_are_remembered(
    installation: Installation,
) -> None:
    here = installation
    done = here.forget()
    before = here.usage()[done.pseudonym, ""]
    here.flush(here.request(NAME, "t1"), here.request(NAME, "new"), here.request(LONGER, "n"))
    usage = here.usage()
    assert usage[done.pseudonym, ""] == before + 1, "t1 was counted under the name"
    assert usage[LONGER, ""] == 2
    assert (NAME, "") not in usage
    assert here.is_audited()


def test_a_gate_that_holds_the_lock_gets_a_snapshot_without_the_name(installation: Installation) -> None:
    url = installation.engine.url.render_as_string(hide_password=False)
    with closing(open_source(url)) as source:
        held = source.fetch(None)
        assert NAME in str(held.changes)
        installation.forget()
        update = source.fetch(held.at)
        assert update.snapshot
        assert NAME not in str(update.changes)
        assert source.fetch(update.at).changes == (), "nothing has changed since"


def test_a_closed_day_has_the_pseudonym_in_place_of_the_name(installation: Installation) -> None:
    here = installation
    before = dict(here.report())
    done = here.forget()
    after = dict(here.report())
    assert after.pop(done.pseudonym) == before.pop(NAME)
    assert after == before
    here.flush(here.request(NAME, "later still", DAY_S))
    assert here.places("acme") == here.places("acme-2")
    assert dict(here.report()).keys() == {done.pseudonym, BOB}


def test_a_caller_that_is_forgotten_again_changes_nothing(installation: Installation) -> None:
    first = installation.forget()
    version = installation.plan()[0]
    again = installation.forget()
    assert (again.pseudonym, again.rows, again.is_new) == (first.pseudonym, 0, False)
    assert installation.plan()[0] == version


@pytest.mark.parametrize("database", ["sqlite"])
def test_another_call_does_what_a_kill_at_any_step_has_left(installation: Installation) -> None:
    """And no request that is counted between the two is lost. Each step has a copy of the database's file."""
    stored = Path(str(installation.engine.url.database))
    installation.engine.dispose()  # the last connection writes everything to the file
    contents, start = stored.read_bytes(), installation.next
    calm = FaultAt(-1, killed)
    with calm.over(installation.engine):
        pseudonym = installation.forget().pseudonym
    assert len(calm.steps) > 100
    for at in range(0, len(calm.steps), 1 if IS_DEEP else 25):
        installation.engine.dispose()
        stored.write_bytes(contents)
        installation.next = start
        with FaultAt(at, killed).over(installation.engine), suppress(Killed):
            installation.forget()
        gc.collect()  # the transaction ends with the process
        installation.flush(installation.request(NAME, "between"))
        assert installation.forget().pseudonym == pseudonym
        assert installation.places("acme") == installation.places("acme-2"), calm.steps[at]
        assert installation.usage()[pseudonym, ""] == 11
        assert installation.is_audited()


def test_a_caller_with_overrides_of_the_configuration_is_not_forgotten(
    engine: sa.Engine, store: SqlStore
) -> None:
    with pytest.raises(CannotForget, match="no plan is in force"):
        forget_caller(engine, NAME, "ann@here", "why", new_mark)
    here = Installation(engine, store)
    assert here.forget().rows == 0


def test_no_file_takes_a_forgotten_caller_back() -> None:
    plan = PLAN.with_forgotten(["b", "a"])
    assert plan.forgotten == ("a", "b")
    assert plan_from(plan.to_json()) == plan
    assert (plan.digest == PLAN.digest, plan.parts == PLAN.parts) == (False, True)
    for prune in (True, False):
        assert applied(plan, PLAN, prune=prune).forgotten == ("a", "b")


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("caller api_key:acme: plan pro", "caller X: plan pro"),
        ("ended for api_key:acme.", "ended for X."),
        ('{"caller":"api_key:acme"}', '{"caller":"X"}'),
        (
            "api_key:acme-2, api_key:acme.eu, my_api_key:acme",
            "api_key:acme-2, api_key:acme.eu, my_api_key:acme",
        ),
    ],
)
def test_a_name_is_not_replaced_within_a_longer_one(text: str, replaced: str) -> None:
    assert Renaming(NAME, "X", "ref").replaced(text) == replaced


def test_the_pseudonym_of_a_reference_is_a_typed_name() -> None:
    secrets = CounterSecrets(references=b"0123456789abcdef")
    plan = PLAN.with_forgotten(["00"])
    assert new_counter(plan, secrets=secrets)
    assert make_pseudonym("00") == "forgotten:00"
