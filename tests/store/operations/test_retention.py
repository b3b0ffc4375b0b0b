"""Old buckets: folding, deletion, proofs, and the audit that relies on these."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from analyzer.counting.counter.caller_budget import FOLDED, OVERFLOW
from analyzer.flush.sql_store import SqlStore
from analyzer.kernel.database.engine import writing
from analyzer.kernel.errors import CountsDiffer
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.model import CountRow
from analyzer.kernel.tables.schema import buckets, offsets, proofs
from analyzer.maintenance import roll_up
from analyzer.maintenance.audit import audit
from analyzer.plan.meters import DAY_S, MINUTE_S, QUARTER_S
from analyzer.plan.plan import make_plan
from tests.store.flushing import now_s
from tests.support.small_steps import small_steps
from tests.support.stored_counts import put_counts, stored_counts
from tests.support.upkeep import Upkeep

KEPT_S = 2 * DAY_S
FEW = 5


@pytest.fixture
def today_s(engine: sa.Engine) -> int:
    return now_s(engine) // DAY_S * DAY_S


def add(store: SqlStore, *rows: CountRow) -> None:
    with store.transaction() as tx:
        put_counts(tx._db, rows, {"slowest": "max"})


def stored(engine: sa.Engine) -> list[CountRow]:
    with engine.connect() as db:
        return stored_counts(db)


def a_row(
    at_s: int, value: int, key: str, *, grouping: str = "caller", resource: str = "", meter: str = "requests"
) -> CountRow:
    return CountRow(grouping, key, resource, meter, MINUTE_S, at_s, value, 0)


def until_done(step: object, *arguments: int) -> int:
    """Repeats a step until it returns 0; returns the number of rows."""
    assert callable(step)
    rows = 0
    while done := step(*arguments):
        rows += done
    return rows


def sums(rows: list[CountRow]) -> Counter[tuple[str, str]]:
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counted[row.grouping, row.meter] += row.value + row.denied
    return counted


# Folding


@pytest.mark.parametrize("at_once", [1, 50_000])
def test_callers_with_few_requests_on_a_day_become_one_row(
    store: SqlStore,
    upkeep: Upkeep,
    engine: sa.Engine,
    today_s: int,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    monkeypatch.setattr(roll_up, "KEYS_AT_ONCE", at_once)
    small_steps(monkeypatch, 2)
    day_s = today_s - 5 * DAY_S
    add(
        store,
        *(a_row(day_s + 60 * n, 1, f"user:{n}") for n in range(20)),  # each seen once
        *(a_row(day_s + QUARTER_S * n, 1, "user:steady") for n in range(FEW + 1)),  # a few in each quarter
        *(a_row(day_s + QUARTER_S * n, 1, "user:rare") for n in range(FEW)),
        a_row(day_s, 1, OVERFLOW),
        a_row(today_s, 1, "user:today"),
    )
    before = sums(stored(engine))
    until_done(upkeep.roll_up, KEPT_S, KEPT_S * 10)
    until_done(upkeep.fold, FEW, KEPT_S)
    after = stored(engine)
    assert sums(after) == before
    names = {row.key for row in after}
    assert names == {FOLDED, OVERFLOW, "user:steady", "user:today"}
    assert [row.value for row in after if row.key == FOLDED] == [15 + 1, 5 + 1, 1, 1, 1]
    assert upkeep.fold(FEW, KEPT_S) == 0, "a day is folded once"


def test_a_day_is_folded_only_when_all_its_minutes_are_rolled_up(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    """Half a day would make a caller with many requests in its other half look rare."""
    old_s = (now_s(engine) - KEPT_S) // QUARTER_S * QUARTER_S  # the day that holds it is not over by then
    add(store, a_row(old_s - QUARTER_S, 1, "user:ann"))
    if (old_s - QUARTER_S) // DAY_S == old_s // DAY_S:
        until_done(upkeep.roll_up, KEPT_S, KEPT_S * 10)
        until_done(upkeep.fold, FEW, KEPT_S)
        assert [(row.key, row.width_s) for row in stored(engine)] == [("user:ann", QUARTER_S)]


def test_keys_that_a_client_cannot_invent_are_not_folded(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    """A resource is a route pattern, a tenant is a customer. A caller's resources stay apart."""
    at_s = today_s - 5 * DAY_S
    add(
        store,
        a_row(at_s, 1, "user:ann"),
        a_row(at_s, 1, "/v1/items", grouping="resource"),
        a_row(at_s, 1, "acme", grouping="tenant"),
        *(
            a_row(at_s, value, f"user:{n}", grouping="caller+resource", resource=f"/{n % 2}", meter=meter)
            for n in range(4)
            for meter, value in (("requests", 1), ("slowest", 7 * n))
        ),
    )
    until_done(upkeep.roll_up, KEPT_S, KEPT_S * 10)
    until_done(upkeep.fold, FEW, KEPT_S)
    assert {(row.grouping, row.key, row.resource, row.meter): row.value for row in stored(engine)} == {
        ("caller", FOLDED, "", "requests"): 1,
        ("resource", "/v1/items", "", "requests"): 1,
        ("tenant", "acme", "", "requests"): 1,
        ("caller+resource", FOLDED, "/0", "requests"): 2,
        ("caller+resource", FOLDED, "/1", "requests"): 2,
        ("caller+resource", FOLDED, "/0", "slowest"): 14,
        ("caller+resource", FOLDED, "/1", "slowest"): 21,
    }


# Deletion, proofs and the audit


def ledger(engine: sa.Engine, counted: int) -> None:
    with writing(engine) as db:
        db.execute(sa.delete(offsets))
        key = {"cluster": "c", "topic_id": "t", "partition": 0}
        db.execute(sa.insert(offsets).values(**key, next=counted, seen=counted, counted=counted))


def test_days_are_deleted_in_steps_and_the_audit_still_agrees(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch, 2)
    add(store, *(a_row(today_s - days * DAY_S, days, f"user:{n}") for days in (9, 5) for n in range(5)))
    ledger(engine, 5 * 9 + 5 * 5)
    until_done(upkeep.roll_up, KEPT_S, KEPT_S)
    assert until_done(upkeep.prune, Retention(days_s=7 * DAY_S)) == 5
    assert {row.bucket_s for row in stored(engine)} == {today_s - 5 * DAY_S}
    found = audit(engine)
    assert (found.equal, found.counted, found.buckets) == (True, 70, 70)
    assert (found.days_read, found.days_deleted) == (1, 1)


def test_a_past_day_is_proved_once_and_again_after_a_late_record(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    days = [today_s - days * DAY_S for days in (4, 3, 1, 0)]
    add(store, *(a_row(day_s, 2, "user:ann") for day_s in days))
    ledger(engine, 8)
    assert until_done(upkeep.prove_day) == 2, "yesterday and today are open"
    found = audit(engine)
    assert (found.equal, found.days_proved, found.days_read) == (True, 2, 2)
    add(store, a_row(days[0] + 60, 1, "user:bob"))
    ledger(engine, 9)
    found = audit(engine)
    assert (found.equal, found.days_proved, found.days_read) == (True, 1, 3)
    assert until_done(upkeep.prove_day) == 1
    with engine.connect() as db:
        assert db.execute(sa.select(proofs.c.day_s, proofs.c.requests).order_by(proofs.c.day_s)).all() == [
            (days[0], 3),
            (days[1], 2),
        ]


def test_a_day_whose_buckets_lost_a_row_is_reported(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    day_s = today_s - 4 * DAY_S
    add(
        store,
        a_row(day_s, 2, "user:ann"),
        a_row(day_s, 3, "user:bob"),
        a_row(today_s - 3 * DAY_S, 1, "user:bob"),
    )
    ledger(engine, 6)
    with writing(engine) as db:
        db.execute(sa.delete(buckets).where(buckets.c.key == "user:ann"))
    with pytest.raises(CountsDiffer, match="5 counted, 3 in buckets"):
        upkeep.prove_day()
    assert upkeep.prove_day() == 1, "the other day is proved"
    with pytest.raises(CountsDiffer, match="differ"):
        upkeep.prove_day()
    found = audit(engine)
    assert not found.equal
    assert found.differing == [(day_s, 5, 3)]


def test_a_proved_day_that_is_damaged_later_is_found_when_every_day_is_read(
    store: SqlStore, upkeep: Upkeep, engine: sa.Engine, today_s: int
) -> None:
    add(store, a_row(today_s - 4 * DAY_S, 2, "user:ann"))
    ledger(engine, 2)
    until_done(upkeep.prove_day)
    with writing(engine) as db:
        db.execute(sa.delete(buckets))
    assert audit(engine).equal
    assert not audit(engine, every_day=True).equal


def test_upkeep_of_an_empty_database_does_nothing(store: SqlStore, upkeep: Upkeep) -> None:
    store.activate(make_plan([], [], []))
    assert (
        upkeep.roll_up(KEPT_S, KEPT_S)
        == upkeep.fold(FEW, KEPT_S)
        == upkeep.prune(Retention(days_s=KEPT_S))
        == 0
    )
    assert upkeep.prove_day() == upkeep.continue_activation().rows == 0
