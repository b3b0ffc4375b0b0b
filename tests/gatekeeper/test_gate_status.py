"""What a gate tells of itself: counted without a mutex, bounded, and never in anybody's way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.feed.poller import GateKnowledge
from gatekeeper.model import Cursor, Decision, GateStatus, Lock, LockHits, LockKey, SourceError
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.telemetry.atomic_counts import AtomicCounts
from gatekeeper.telemetry.gate_status import (
    CALLERS_REPORTED_MAX,
    LOCKS_COUNTED_MAX,
    LOCKS_REPORTED_MAX,
    REPORT_EVERY_S,
    RETRY_AFTER_S,
    SAMPLE_PERIOD_S,
    SAMPLED_PER_REPORT,
    CallerSample,
    StatusRecorder,
    instance_name,
)
from gatekeeper.telemetry.status_json import INSTANCE, STATUS_BYTES_MAX, dump
from gatekeeper.testing import ManualClock
from gatekeeper.view.fast_path import EVERY_NAME
from gatekeeper.view.lock_tuples import pack_lock
from gatekeeper.view.lock_view import EMPTY
from tests.support.feed import NOON, HandFeed, a_lock

ACME, BOB = "api_key:acme", "user:bob"
DAILY = LockKey("caller", ACME, "", "daily")


class Desk(HandFeed):
    """A feed that also hears."""

    wants_status = True

    def __init__(self, *locks: Lock) -> None:
        super().__init__(*locks)
        self.heard: list[GateStatus] = []
        self.deaf: Exception | None = None

    def report_status(self, status: GateStatus) -> None:
        self.heard.append(status)
        if self.deaf is not None:
            raise self.deaf


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def desk() -> Desk:
    return Desk(a_lock(ACME))


@pytest.fixture
def gate(desk: Desk, clock: ManualClock) -> Iterator[Gate]:
    with Gate(desk, clock=clock, name="shop") as gate:
        clock.advance(1)
        yield gate


class TestWhatIsTold:
    def test_a_gate_says_who_it_is_and_how_old_its_view_is(self, desk: Desk, gate: Gate) -> None:
        (told,) = desk.heard
        assert INSTANCE.fullmatch(told.instance)
        assert (told.application, told.number, told.at) == ("shop", 1, desk.at)
        assert told.age == pytest.approx(0.4)
        assert (told.stale_after, told.clock_skew, told.mode, told.ignored) == (30.0, 0.0, "", ())

    def test_checks_and_denials_are_told_for_each_lock(
        self, desk: Desk, gate: Gate, clock: ManualClock
    ) -> None:
        desk.set(a_lock(BOB, "watched", action="tag"))
        clock.advance(1)
        for caller in (ACME, ACME, BOB, "user:clear"):
            gate.check(caller)
        clock.advance(REPORT_EVERY_S)
        assert desk.heard[-1].locks == (
            LockHits(DAILY, 2, 2),
            LockHits(LockKey("caller", BOB, "", "watched"), 1, 0),
        )
        assert desk.heard[-1].more == (0, 0)

    def test_a_gate_that_is_in_shadow_or_off_says_so(
        self, desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Gate(desk, clock=clock, shadow=True):
            clock.advance(1)
            assert desk.heard[-1].mode == "shadow"
            monkeypatch.setenv("GATEKEEPER", "off")
            clock.advance(REPORT_EVERY_S)
            assert desk.heard[-1].mode == "process"

    def test_what_the_feed_says_and_the_gate_does_not_know_is_told_back(
        self, desk: Desk, gate: Gate, clock: ManualClock
    ) -> None:
        desk.set(a_lock(BOB, action="sing"))
        clock.advance(REPORT_EVERY_S)
        assert desk.heard[-1].ignored == ("action sing",)

    def test_a_wrong_clock_is_told(self, desk: Desk, gate: Gate, clock: ManualClock) -> None:
        desk.now = NOON + timedelta(seconds=-90)
        clock.advance(REPORT_EVERY_S + 1)
        assert desk.heard[-1].clock_skew == pytest.approx(90 + clock.uptime_s(), abs=2)

    def test_nothing_is_told_before_the_first_answer(self, desk: Desk, clock: ManualClock) -> None:
        desk.away = True
        with Gate(desk, clock=clock):
            clock.advance(100)
            assert desk.heard == []

    def test_people_find_the_process_by_the_name_of_an_instance(self) -> None:
        assert instance_name("shop-7", 812, "1f3c") == "shop-7:812:1f3c"
        assert INSTANCE.fullmatch(instance_name("böse/../" + "x" * 300, 2**22, "1f3c99d0"))

    def test_gates_that_share_a_poller_tell_each_for_itself(self, desk: Desk, tmp_path: Path) -> None:
        clock = ManualClock()
        with (
            Gate(desk, clock=clock, name="a", saved=tmp_path / "view", shared=True),
            Gate(desk, clock=clock, name="b", saved=tmp_path / "view", shared=True),
        ):
            clock.advance(2)
        assert sorted(told.application for told in desk.heard) == ["a", "b"]
        assert len({told.instance for told in desk.heard}) == 2


class TestNothingIsCountedTwice:
    def test_what_is_told_again_after_a_lost_answer_is_the_whole_and_not_added(
        self, desk: Desk, gate: Gate, clock: ManualClock
    ) -> None:
        gate.check(ACME)
        desk.deaf = SourceError("the answer was lost")
        clock.advance(REPORT_EVERY_S)
        desk.deaf = None
        gate.check(ACME)
        clock.advance(RETRY_AFTER_S)
        assert [told.locks for told in desk.heard] == [(), (LockHits(DAILY, 1, 1),), (LockHits(DAILY, 2, 2),)]
        assert [told.number for told in desk.heard] == [1, 2, 3]

    def test_threads_that_add_at_the_same_time_lose_nothing(self) -> None:
        tally, rounds, threads = AtomicCounts(), 20_000, 4

        def add() -> None:
            for _ in range(rounds):
                tally.add()

        each = [threading.Thread(target=add) for _ in range(threads)]
        for thread in each:
            thread.start()
        seen = [tally.read() for _ in range(100)]
        for thread in each:
            thread.join()
        assert seen == sorted(seen)
        assert tally.read() == tally.read() == rounds * threads


class TestNobodyWaits:
    def test_a_source_that_does_not_hear_is_left_alone_for_a_minute(
        self, desk: Desk, gate: Gate, clock: ManualClock
    ) -> None:
        desk.deaf = SourceError("404 Not Found")
        clock.advance(REPORT_EVERY_S)
        polls = len(desk.asked)
        clock.advance(RETRY_AFTER_S - REPORT_EVERY_S)
        assert len(desk.heard) == 2
        assert len(desk.asked) - polls > 100, "polling goes on"
        assert not gate.allow(ACME)
        assert gate.allow(BOB)

    def test_a_fault_of_the_sources_does_not_end_the_polling(
        self, desk: Desk, gate: Gate, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk.deaf = ZeroDivisionError()
        clock.advance(REPORT_EVERY_S)
        assert "failed to hear" in caplog.text
        assert gate.healthy

    def test_requests_pass_while_the_source_takes_its_time_to_hear(self) -> None:
        listening, passed = threading.Event(), threading.Event()

        class Slow(Desk):
            def report_status(self, status: GateStatus) -> None:
                super().report_status(status)
                listening.set()
                assert passed.wait(20), "who asks waits for who hears"

        with Gate(Slow(a_lock(ACME, ends_in=1e9))) as gate:
            assert listening.wait(20)
            for _ in range(1_000):
                assert gate.allow(BOB)
                assert not gate.allow(ACME)
            passed.set()

    def test_a_source_that_is_away_is_not_told(self, desk: Desk, gate: Gate, clock: ManualClock) -> None:
        desk.away = True
        clock.advance(100)
        assert len(desk.heard) == 1

    def test_clear_callers_pass_by_a_look_up_once_enough_of_them_are_noted(
        self, desk: Desk, gate: Gate, clock: ManualClock
    ) -> None:
        clock.advance(REPORT_EVERY_S)
        assert gate._look.callers is EVERY_NAME
        for number in range(SAMPLED_PER_REPORT):
            assert gate.allow(f"user:{number}")
        assert gate._look.callers is not EVERY_NAME

    def test_a_view_that_may_become_stale_while_the_source_hears_is_looked_at(
        self, clock: ManualClock
    ) -> None:
        """However many callers are noted meanwhile: each request looks at the clock until the next poll."""

        class Slow(Desk):
            longest = 3.0

            def report_status(self, status: GateStatus) -> None:
                super().report_status(status)
                for _ in range(2 * SAMPLED_PER_REPORT):
                    guard.allow(BOB)
                self.looked_at = guard._look.callers is EVERY_NAME

        desk = Slow(a_lock(ACME))
        with Gate(desk, clock=clock, stale_after=2.0, on_stale="deny") as guard:
            for _ in range(3):
                clock.advance(REPORT_EVERY_S)
                assert desk.looked_at

    def test_a_source_that_takes_nothing_along_is_told_nothing(self) -> None:
        with pytest.raises(ValueError, match="takes no reports"):
            Gate(FixedSource(), report_status=True)

    def test_the_application_may_forbid_it(self, desk: Desk, clock: ManualClock) -> None:
        with Gate(desk, clock=clock, report_status=False):
            clock.advance(100)
        assert desk.heard == []


class TestBounds:
    def test_a_million_callers_leave_a_small_sample(self, desk: Desk, gate: Gate, clock: ManualClock) -> None:
        each = iter(range(1_000_000))
        for _ in range(40):
            clock.advance(REPORT_EVERY_S)
            for number in range(SAMPLED_PER_REPORT * 2):
                gate.allow(f"user:{next(each)}-{number}")
        for number in each:
            gate.allow(f"user:{number}")
        clock.advance(REPORT_EVERY_S)
        told = desk.heard[-1]
        assert len(told.callers) == len(set(told.callers)) == CALLERS_REPORTED_MAX
        assert gate._telling is not None
        assert len(gate._telling._sample._young) <= CALLERS_REPORTED_MAX + SAMPLED_PER_REPORT
        assert len(dump(told)) < STATUS_BYTES_MAX

    def test_in_a_sample_each_caller_is_as_likely_as_any_however_often_it_came(self) -> None:
        sample = CallerSample()
        for number in range(1_000):
            for _ in range(50 if number % 2 else 1):
                sample.add(f"user:{number}")
        often = sum(int(caller.removeprefix("user:")) % 2 for caller in sample.callers(0.0))
        assert 8 < often < CALLERS_REPORTED_MAX - 8, "half of them, give or take six standard deviations"

    def test_a_sample_forgets_who_has_not_come_for_a_while(self) -> None:
        sample = CallerSample()
        assert sample.callers(0.0) == ()
        sample.add("user:old")
        assert sample.callers(1.0) == ("user:old",)
        sample.add("user:new")
        assert set(sample.callers(SAMPLE_PERIOD_S)) == {"user:old", "user:new"}
        sample.add("user:new")
        assert set(sample.callers(2 * SAMPLE_PERIOD_S)) == {"user:new"}
        assert sample.callers(3 * SAMPLE_PERIOD_S) == ()

    def test_a_caller_of_any_length_is_kept_in_few_characters(self) -> None:
        sample = CallerSample()
        sample.add("api_key:" + "x" * 10_000_000)
        ((kept),) = sample.callers(0.0)
        assert len(kept) == 257

    def test_more_locks_than_are_counted_apart_are_counted_together(self) -> None:
        telling, desk = StatusRecorder("shop", 30.0, 0.0), Desk()
        refused = Decision(False, policy="daily")
        locks = [pack_lock(a_lock(f"user:{number}")) for number in range(LOCKS_COUNTED_MAX + 500)]
        for lock in locks:
            telling.count_hits([lock], refused)
        for _ in range(3):
            telling.count_hits([locks[7]], refused)
            telling.report(desk, 0.0, GateKnowledge(replace(EMPTY, at=Cursor(1, "m")), 0.0), "")
        for number, told in enumerate(desk.heard, 1):
            assert len(told.locks) <= LOCKS_REPORTED_MAX
            assert told.locks[0] == LockHits(LockKey("caller", "user:7", "", "daily"), 1 + number, 1 + number)
            total = told.more[1] + sum(met.denials for met in told.locks)
            assert total == LOCKS_COUNTED_MAX + 500 + number, "none is lost, none told twice"
        assert len(telling._counts) < LOCKS_COUNTED_MAX
