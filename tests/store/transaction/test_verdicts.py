"""Verdicts in the log: a request that a record calls denied counts, unless a lock was in force."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.counting.counter.counter import PythonCounter
from analyzer.faces.signals.status import database_status
from analyzer.flush.flush import SqlFlush
from analyzer.flush.sql_store import SqlStore
from analyzer.judging.locks import lock_feed
from analyzer.judging.locks.lock_history import HISTORY_KEPT_MS
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import writing
from analyzer.kernel.flush_steps import STEPS
from analyzer.kernel.model import Record, Records
from analyzer.kernel.tables.schema import disbelieved, lock_history
from analyzer.plan.mapping import Condition, NumberField, ResourceField, SourceMapping, TextField, TimeField
from analyzer.plan.meters import Meter
from analyzer.plan.plan import Plan, make_plan
from analyzer.plan.policies import Quota
from analyzer.plan.windows import Calendar
from gatekeeper.model import Lock, LockKey, Set
from tests.store.flushing import PART, locked, now_s
from tests.support.stored_counts import stored_counts
from tests.support.upkeep import Upkeep

MAPPING = SourceMapping(
    time=TimeField(("ts",), "s"),
    caller=("user",),
    fields={
        "user": TextField(("user",)),
        "resource": ResourceField(("path",), ("/a", "/b")),
        "took": NumberField(("took",), default=0),
        "gate": TextField(("gate",)),
        "policy": TextField(("policy",)),
    },
    deny_if=(Condition("gate", ("denied",)),),
)
PLAN = make_plan(
    [],
    [Meter("slowest", "took", "max")],
    [Quota("daily", 5, Calendar("month")), Quota("strict", 5, Calendar("month"), per="caller+resource")],
    {"log": MAPPING},
)
ANN = "user:ann"

Request = dict[str, Any]


class Log:
    """A log that one analyzer counts, and the locks of a database."""

    def __init__(self, engine: sa.Engine, store: SqlStore, mapping: SourceMapping = MAPPING) -> None:
        self.engine, self.store, self.mapping = engine, store, mapping
        self.version = store.activate(PLAN)
        self.next = store.begin(PART, 0).next
        self.now_s = now_s(engine)
        with writing(engine) as db:  # as if the history had begun long ago
            db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=0))

    def lock(
        self, policy: str = "daily", *, since_s: int = -300, until_s: int = 900, key: str = ANN, **rest: Any
    ) -> None:
        """Sets a lock from and until some seconds after now."""
        began, until = (instant((self.now_s + at_s) * 1000) for at_s in (since_s, until_s))
        with writing(self.engine) as db:
            lock_feed.publish(db, [Set(Lock("caller", key, policy, began, until, **rest))], policy)

    def count(self, *requests: Request, logged_s: int = 0, at_s: int = 0, plan: Plan = PLAN) -> SqlFlush:
        """Counts one record for each request, logged and made some seconds after now; returns the flush."""
        records = [
            Record(
                self.next + number,
                (self.now_s + logged_s) * 1000,
                json.dumps({"user": "ann", "ts": self.now_s + at_s} | request).encode(),
            )
            for number, request in enumerate(requests)
        ]
        counter = PythonCounter({"log": self.mapping}, plan.groupings, plan.meters)
        counter.feed(Records.of(PART, self.next, self.next + len(records), records))
        counted = counter.drain()
        self.next += len(records)
        with self.store.transaction() as flush:
            flush.move_offsets(counted.parts, {})
            now = flush.check_plan(plan, self.version)
            flush.apply(plan, self.version, counted, now)
        return flush

    def counts(self, meter: str = "requests", grouping: str = "caller", key: str = ANN) -> tuple[int, int]:
        """Returns the value of a caller, and what is denied."""
        with self.engine.connect() as db:
            rows = [
                row
                for row in stored_counts(db)
                if (row.grouping, row.meter, row.key) == (grouping, meter, key)
            ]
        return sum(row.value for row in rows), sum(row.denied for row in rows)

    def decisions(self) -> list[tuple[Any, ...]]:
        columns = disbelieved.c
        chosen = sa.select(columns.begin, columns.next, columns.policy, columns.caller, columns.requests)
        with self.engine.connect() as db:
            return [
                tuple(row)
                for row in db.execute(chosen.order_by(columns.begin, columns.caller, columns.policy))
            ]


def denied(policy: str = "daily", **fields: Any) -> Request:
    return {"gate": "denied", "path": "/a"} | ({"policy": policy} if policy else {}) | fields


@pytest.fixture
def log(engine: sa.Engine, store: SqlStore) -> Log:
    return Log(engine, store)


def test_a_lock_in_force_excuses_the_requests_that_it_denied(log: Log) -> None:
    log.lock()
    flush = log.count(denied(), denied(), {"path": "/a"})
    assert log.counts() == (1, 2)
    assert log.decisions() == []
    assert not flush.disbelieved
    assert flush.denied == {("log", "daily"): 2}
    assert tuple(flush.steps.seconds) == STEPS[2:-1], "the pipeline ends the others"


def test_denied_requests_are_counted_by_policies_that_exist(log: Log) -> None:
    """The names stand in the log: a counter by them would have any number of series."""
    for policy in ("daily", "dropped"):
        log.lock(policy)
    flush = log.count(denied("daily"), denied("dropped"), denied(""), denied("invented"))
    assert flush.denied == {("log", "daily"): 1, ("log", "?"): 1, ("log", ""): 1}
    assert flush.disbelieved == {"log": 1}


def test_a_request_without_a_lock_counts_although_its_record_calls_it_denied(log: Log) -> None:
    flush = log.count(denied(), denied(), denied("other"), denied(""), {"path": "/a"})
    assert log.counts() == (5, 0)
    assert log.decisions() == [(0, 5, "", ANN, 1), (0, 5, "?", ANN, 1), (0, 5, "daily", ANN, 2)]
    assert flush.disbelieved == {"log": 4}
    assert (ANN, "daily") in locked(log.engine)  # the limit is reached
    assert database_status(log.engine, 3_600_000).disbelieved == {"daily": 2, "": 1, "?": 1}


def test_flushes_of_a_minute_and_names_that_clients_invent_share_a_row(log: Log) -> None:
    for number in range(3):
        log.count(denied(), denied(f"invented-{number}"))
    assert log.decisions() == [(0, 6, "?", ANN, 3), (0, 6, "daily", ANN, 3)]
    log.lock()
    log.count(denied())
    assert log.counts() == (6, 1)
    assert log.decisions()[1] == (0, 6, "daily", ANN, 3), "the first three of its minute"


def test_the_lock_of_another_policy_or_caller_excuses_nothing(log: Log) -> None:
    log.lock("strict")
    log.lock("daily", key="user:bob")
    log.count(denied("daily"))
    assert log.counts() == (1, 0)


def test_a_verdict_without_a_policy_is_believed_while_any_lock_is_in_force(log: Log) -> None:
    log.lock()
    log.count(denied(""), denied("", user="bob"))
    assert log.counts() == (0, 1)
    assert log.counts(key="user:bob") == (1, 0)


def test_a_lock_on_a_resource_excuses_nothing_elsewhere(log: Log) -> None:
    log.lock("strict", resource="/a")
    log.count(denied("strict", path="/a"), denied("strict", path="/b"))
    assert log.counts() == (1, 1)
    with log.engine.connect() as db:
        rows = {row.resource: (row.value, row.denied) for row in stored_counts(db)
                if (row.grouping, row.meter) == ("caller+resource", "requests")}  # fmt: skip
    assert rows == {"/a": (0, 1), "/b": (1, 0)}


def test_a_tag_denies_no_request(log: Log) -> None:
    log.lock(action="tag")
    log.count(denied())
    assert log.counts() == (1, 0)


@pytest.mark.parametrize(
    ("since_s", "until_s", "is_believed"),
    [(-900, -110, True), (-900, -181, False), (110, 900, True), (181, 900, False)],
)
def test_the_time_of_the_lock_has_some_tolerance(
    log: Log, since_s: int, until_s: int, is_believed: bool
) -> None:
    log.now_s = log.now_s // 60 * 60
    log.lock(since_s=since_s, until_s=until_s)
    log.count(denied())
    assert log.counts() == ((0, 1) if is_believed else (1, 0))


def test_a_record_that_arrives_late_is_believed_by_the_time_of_its_request(log: Log) -> None:
    log.lock(since_s=-3600, until_s=-3000)
    log.count(denied(), at_s=-3300)
    log.count(denied(), at_s=-1500)
    assert log.counts() == (1, 1)


def test_a_wrong_clock_of_the_application_does_not_matter_while_the_record_is_logged_in_time(
    log: Log,
) -> None:
    log.lock()
    log.count(denied(), at_s=-7200)
    assert log.counts() == (0, 1)


def test_records_older_than_the_history_are_believed(log: Log) -> None:
    with writing(log.engine) as db:
        since_ms = (log.now_s - 1000) * 1000
        db.execute(sa.update(lock_history).where(lock_history.c.scope == "").values(began_ms=since_ms))
    log.count(denied(), logged_s=-950, at_s=-950)
    log.count(denied(), logged_s=-800, at_s=-800)
    assert log.counts() == (1, 1)


def test_a_caller_in_the_overflow_is_believed_by_its_own_name(engine: sa.Engine, store: SqlStore) -> None:
    narrow = SourceMapping(
        time=MAPPING.time,
        caller=MAPPING.caller,
        fields=MAPPING.fields,
        deny_if=MAPPING.deny_if,
        callers_max=1,
    )
    log = Log(engine, store, narrow)
    log.lock()
    log.count({"user": "first", "path": "/a"}, denied(), denied(user="eve"))
    assert log.counts(key="overflow:") == (1, 1)
    assert [row[3] for row in log.decisions()] == ["overflow:"]


def test_the_greatest_of_denied_and_the_greatest_of_admitted_requests_stay_apart(log: Log) -> None:
    log.lock("strict")
    requests = [denied(took=90), denied("strict", took=40), denied(took=70), {"path": "/a", "took": 5}]
    log.count(*requests)
    log.lock("strict", resource="/a", until_s=901)
    assert log.counts("slowest") == (90, 40)
    assert log.counts() == (3, 1)


def test_other_rows_of_the_flush_stay_as_they_were_counted(log: Log) -> None:
    log.lock(key="user:bob")
    log.count(*[denied(user=user, took=at) for at, user in enumerate(["ann", "bob", "cid", "bob", "dee"])])
    found = {user: (log.counts(key=f"user:{user}"), log.counts("slowest", key=f"user:{user}"))
             for user in ("ann", "bob", "cid", "dee")}  # fmt: skip
    assert found == {
        "ann": ((1, 0), (0, 0)), "bob": ((0, 2), (0, 3)), "cid": ((1, 0), (2, 0)), "dee": ((1, 0), (4, 0)),
    }  # fmt: skip


def test_decisions_of_a_retry_come_behind_those_of_the_flush_with_the_same_offset(log: Log) -> None:
    log.count(denied())
    counter = PythonCounter({"log": MAPPING}, PLAN.groupings, PLAN.meters)
    value = json.dumps({"user": "bob", "ts": log.now_s} | denied()).encode()
    counter.feed(Records.of(PART, 0, 1, [Record(0, log.now_s * 1000, value)]))
    with log.store.transaction() as flush:
        now = flush.check_plan(PLAN, log.version)
        flush.apply(PLAN, log.version, counter.drain(), now)
    assert log.decisions() == [(0, 1, "daily", ANN, 1), (0, 1, "daily", "user:bob", 1)]


def test_decisions_are_kept_as_long_as_the_history(log: Log, upkeep: Upkeep) -> None:
    kept_s = HISTORY_KEPT_MS // 1000
    row = {"cluster": "c", "topic_id": "t", "partition": 0, "begin": 0, "next": 9, "policy": "daily",
           "caller": ANN, "bucket_s": 0, "series": "[]", "series_digest": "", "requests": 1}  # fmt: skip
    with writing(log.engine) as db:
        for number, moved_s in enumerate((-3600, 3600)):
            db.execute(
                sa.insert(disbelieved), row | {"begin": number, "logged_s": log.now_s - kept_s + moved_s}
            )
    upkeep.prune()
    assert [begin for begin, *_ in log.decisions()] == [1]
    assert timedelta(seconds=kept_s) >= timedelta(days=40)


def test_a_decision_has_everything_that_tells_its_requests_from_others(log: Log) -> None:
    log.count({"path": "/b"}, denied("daily", path="/b"), at_s=-120)
    with log.engine.connect() as db:
        [row] = db.execute(sa.select(disbelieved)).mappings()
    assert json.loads(row["series"]) == [["caller", ANN, ""], ["caller+resource", ANN, "/b"]]
    assert (row["logged_s"], row["bucket_s"]) == tuple((log.now_s + at_s) // 60 * 60 for at_s in (0, -120))
    assert LockKey("caller", ANN, "/b", "daily") not in locked(log.engine)
