"""Status reports of gates: stored, bounded, and compared with the feed and the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.flush.sql_store import SqlStore
from analyzer.gates import gate_reports as module
from analyzer.gates.gate_reports import (
    GATES_KEPT_MS,
    forget_gates,
    known_among,
    reporting_gates,
    store_statuses,
)
from analyzer.judging.locks import lock_feed as feed_store
from analyzer.judging.plan_sums import plan_sums
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, writing
from analyzer.kernel.tables.counter_tables import named_callers
from analyzer.kernel.tables.schema import feed_versions, gates, totals
from analyzer.plan.catalog import load
from analyzer.plan.windows import window_at
from gatekeeper.model import Cursor, GateStatus, Lock, LockHits, LockKey, Set
from tests.store.flushing import a_total
from tests.store.simulated_analyzers import PLAN
from tests.support.upkeep import Upkeep

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_status(instance: str = "host:1:ab", number: int = 1, **fields: Any) -> GateStatus:
    usual: dict[str, Any] = {"application": "shop", "library": "0.1.0", "at": None, "age": 0.4, "locks": (),
                             "more": (0, 0), "callers": ()}  # fmt: skip
    return GateStatus(instance=instance, number=number, **usual | fields)


def publish(engine: sa.Engine, times: int = 1) -> None:
    for number in range(times):
        lock = Lock("caller", f"user:{number}", "daily", NOON, NOON + timedelta(days=1))
        with writing(engine) as db:
            feed_store.publish(db, [Set(lock)], f"m{number + 1}")


def test_the_newest_status_of_each_gate_is_kept_in_any_order_of_arrival(engine: sa.Engine) -> None:
    ann = LockHits(LockKey("caller", "user:ann", "", "daily"), 7, 7)
    newest = a_status(number=3, locks=(ann,))
    store_statuses(engine, [a_status(number=1), a_status("other:2:cd", 9)])
    for status in (newest, a_status(number=2), newest, a_status(number=1)):
        store_statuses(engine, [status])
    by_instance = {gate.status.instance: gate for gate in reporting_gates(engine)}
    assert by_instance.keys() == {"host:1:ab", "other:2:cd"}
    assert by_instance["host:1:ab"].status == newest
    assert by_instance["host:1:ab"].denials == 7


def test_hundreds_of_statuses_are_stored_at_once(engine: sa.Engine) -> None:
    store_statuses(engine, [a_status(f"host:{number}:ab") for number in range(module.AT_ONCE + 7)])
    assert len(reporting_gates(engine)) == module.AT_ONCE + 7


def test_a_gate_has_the_times_of_its_first_and_its_last_status(engine: sa.Engine) -> None:
    store_statuses(engine, [a_status()])
    with writing(engine) as db:
        db.execute(sa.update(gates).values(first_ms=NowMs() - 600_000, at_ms=NowMs() - 60_000))
    (gate,) = reporting_gates(engine)
    assert 60 <= gate.report_age_s < 90
    assert 600 <= gate.first_report_age_s < 630
    store_statuses(engine, [a_status(number=2)])
    (gate,) = reporting_gates(engine)
    assert 0 <= gate.report_age_s < 30
    assert 600 <= gate.first_report_age_s < 630


def test_a_gate_without_a_status_for_a_day_is_deleted(engine: sa.Engine, upkeep: Upkeep) -> None:
    store_statuses(engine, [a_status("gone:1:a"), a_status("here:1:b")])
    with writing(engine) as db:
        gone = gates.c.instance == "gone:1:a"
        db.execute(sa.update(gates).where(gone).values(at_ms=NowMs() - GATES_KEPT_MS - 1_000))
    assert [gate.status.instance for gate in reporting_gates(engine)] == ["here:1:b"]
    assert upkeep.prune() == 1
    assert upkeep.prune() == 0
    assert len(reporting_gates(engine)) == 1


def test_the_number_of_gates_is_limited(
    engine: sa.Engine, upkeep: Upkeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATES_KEPT", 5)
    for number in range(9):
        store_statuses(engine, [a_status(f"host:{number}:a")])
        with writing(engine) as db:
            db.execute(sa.update(gates).values(at_ms=gates.c.at_ms - 1_000))
    assert upkeep.prune() == 4
    assert [gate.status.instance for gate in reporting_gates(engine)] == [
        f"host:{number}:a" for number in range(8, 3, -1)
    ]


def test_a_row_that_cannot_be_read_is_skipped(engine: sa.Engine) -> None:
    store_statuses(engine, [a_status()])
    with writing(engine) as db:
        row = {"number": 1, "at_ms": NowMs(), "first_ms": NowMs(), "told": "not JSON"}
        db.execute(sa.insert(gates).values(instance="x", **row))
    assert len(reporting_gates(engine)) == 1


def test_an_application_and_an_instance_can_be_forgotten(engine: sa.Engine) -> None:
    store_statuses(
        engine,
        [
            a_status("a:1:a"),
            a_status("b:1:b"),
            a_status("c:1:c", application="till"),
            a_status("d:1:d", application="x"),
        ],
    )
    assert forget_gates(engine, "shop", "ann", "") == 2
    assert forget_gates(engine, "c:1:c", "ann", "") == 1
    assert forget_gates(engine, "unknown", "ann", "") == 0
    assert [gate.status.instance for gate in reporting_gates(engine)] == ["d:1:d"]


class TestBehind:
    """Versions 0 to 3 of the feed; 2 is a minute old, 3 half a minute."""

    @pytest.fixture(autouse=True)
    def versions(self, engine: sa.Engine) -> None:
        publish(engine, 3)
        with writing(engine) as db:
            for version, ago_ms in ((1, 90_000), (2, 60_000), (3, 30_000)):
                of = feed_versions.c
                db.execute(
                    sa.update(feed_versions).where(of.version == version).values(at_ms=NowMs() - ago_ms)
                )

    @pytest.mark.parametrize(
        ("at", "missed_s"),
        [(Cursor(3, "m3"), 0), (Cursor(2, "m2"), 30), (Cursor(1, "m1"), 60), (None, 0)],
        ids=str,
    )
    def test_a_gate_is_behind_since_the_next_version_was_published(
        self, engine: sa.Engine, at: Cursor | None, missed_s: float
    ) -> None:
        store_statuses(engine, [a_status(at=at)])
        (gate,) = reporting_gates(engine)
        assert missed_s <= gate.missed_s <= missed_s * 1.5
        assert not gate.is_foreign

    @pytest.mark.parametrize("at", [Cursor(4, "m4"), Cursor(3, "other"), Cursor(1, "other")], ids=str)
    def test_a_version_that_never_existed_is_one_of_another_feed(self, engine: sa.Engine, at: Cursor) -> None:
        store_statuses(engine, [a_status(at=at)])
        (gate,) = reporting_gates(engine)
        assert gate.is_foreign

    def test_a_gate_at_a_pruned_version_is_behind(self, engine: sa.Engine) -> None:
        with writing(engine) as db:
            db.execute(sa.delete(feed_versions).where(feed_versions.c.version <= 2))
        store_statuses(engine, [a_status(at=Cursor(1, "m1"))])
        (gate,) = reporting_gates(engine)
        assert gate.missed_s >= 29
        assert not gate.is_foreign


class TestLogged:
    def test_callers_that_were_counted_in_the_last_hours_are_known(self, engine: sa.Engine) -> None:
        with writing(engine) as db:
            for number, callers in enumerate(("user:ann\nuser:bob", "user:cy")):
                place = {
                    "cluster": "c",
                    "topic_id": "t",
                    "partition": number,
                    "hour": 1,
                    "how": "new",
                    "next": 1,
                }
                db.execute(sa.insert(named_callers).values(place | {"callers": callers}))
        found = known_among(engine, ["user:ann", "user:cy", "user:eve", "user:an", "ann"])
        assert found == (frozenset({"user:ann", "user:cy"}), False)

    def test_callers_with_a_total_are_known(self, engine: sa.Engine, store: SqlStore) -> None:
        store.activate(PLAN)
        (sum_,) = plan_sums(PLAN).policies_by_sum
        with writing(engine) as db:
            current = window_at(sum_.window, clock_ms(db) // 1000)
            before = window_at(sum_.window, current.start_s - 1)
            row = a_total(sum=load(db).sum_number(sum_))
            known = [
                row | {"key": f"user:{number}", "window_s": (current, before)[number % 2].start_s}
                for number in range(1_200)
            ]
            db.execute(sa.insert(totals), known)
            of_another_plan = row | {"sum": 99, "key": "user:eve", "window_s": current.start_s}
            db.execute(sa.insert(totals).values(of_another_plan))
        asked = [f"user:{number}" for number in range(1_250)] + ["user:eve"]
        assert known_among(engine, asked).known == {f"user:{number}" for number in range(1_200)}

    def test_too_many_callers_to_know_each_are_reported(self, engine: sa.Engine) -> None:
        with writing(engine) as db:
            place = {"cluster": "c", "topic_id": "t", "partition": 0, "hour": 1, "how": "drawn", "next": 1}
            db.execute(sa.insert(named_callers).values(place | {"callers": "user:ann"}))
        assert known_among(engine, ["user:eve"]) == (frozenset(), True)

    def test_text_that_cannot_be_a_name_is_unknown(self, engine: sa.Engine, store: SqlStore) -> None:
        store.activate(PLAN)
        assert known_among(engine, ["", "user:\x00", "user:\ud800", "x" * 10_000]).known == frozenset()
