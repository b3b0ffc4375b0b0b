"""The status that a gate reports: counted without a mutex, bounded, and no delay for requests or polls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.feed.poller import GateKnowledge
from gatekeeper.identity import NAME_BYTES_MAX, is_name
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


class ReportedFeed(HandFeed):
    """A feed that also takes status reports."""

    wants_status = True

    def __init__(self, *locks: Lock) -> None:
        super().__init__(*locks)
        self.reports: list[GateStatus] = []
        self.error: Exception | None = None

    def report_status(self, status: GateStatus) -> None:
        self.reports.append(status)
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feed() -> ReportedFeed:
    return ReportedFeed(a_lock(ACME))


@pytest.fixture
def gate(feed: ReportedFeed, clock: ManualClock) -> Iterator[Gate]:
    with Gate(feed, clock=clock, name="shop") as gate:
        clock.advance(1)
        yield gate


class TestContent:
    def test_a_report_names_the_gate_and_the_age_of_its_view(self, feed: ReportedFeed, gate: Gate) -> None:
        (status,) = feed.reports
        assert INSTANCE.fullmatch(status.instance)
        assert (status.application, status.number, status.at) == ("shop", 1, feed.at)
        assert status.age == pytest.approx(0.4)
        assert (status.stale_after, status.clock_skew, status.mode, status.ignored) == (30.0, 0.0, "", ())

    def test_checks_and_denials_are_reported_for_each_lock(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        feed.set(a_lock(BOB, "watched", action="tag"))
        clock.advance(1)
        for caller in (ACME, ACME, BOB, "user:clear"):
            gate.check(caller)
        clock.advance(REPORT_EVERY_S)
        assert feed.reports[-1].locks == (
            LockHits(DAILY, 2, 2),
            LockHits(LockKey("caller", BOB, "", "watched"), 1, 0),
        )
        assert feed.reports[-1].more == (0, 0)

    def test_shadow_mode_and_the_off_switch_are_reported(
        self, feed: ReportedFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Gate(feed, clock=clock, shadow=True):
            clock.advance(1)
            assert feed.reports[-1].mode == "shadow"
            monkeypatch.setenv("GATEKEEPER", "off")
            clock.advance(REPORT_EVERY_S)
            assert feed.reports[-1].mode == "process"

    def test_unknown_words_of_the_feed_are_reported(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        feed.set(a_lock(BOB, action="sing"))
        clock.advance(REPORT_EVERY_S)
        assert feed.reports[-1].ignored == ("action sing",)

    def test_clock_skew_is_reported(self, feed: ReportedFeed, gate: Gate, clock: ManualClock) -> None:
        feed.now = NOON + timedelta(seconds=-90)
        clock.advance(REPORT_EVERY_S + 1)
        assert feed.reports[-1].clock_skew == pytest.approx(90 + clock.uptime_s(), abs=2)

    def test_nothing_is_reported_before_the_first_answer(
        self, feed: ReportedFeed, clock: ManualClock
    ) -> None:
        feed.away = True
        with Gate(feed, clock=clock):
            clock.advance(100)
            assert feed.reports == []

    def test_the_name_of_an_instance_contains_host_and_process(self) -> None:
        assert instance_name("shop-7", 812, "1f3c") == "shop-7:812:1f3c"
        assert INSTANCE.fullmatch(instance_name("böse/../" + "x" * 300, 2**22, "1f3c99d0"))

    def test_gates_that_share_a_poller_report_each_for_itself(
        self, feed: ReportedFeed, tmp_path: Path
    ) -> None:
        clock = ManualClock()
        with (
            Gate(feed, clock=clock, name="a", saved=tmp_path / "view", shared=True),
            Gate(feed, clock=clock, name="b", saved=tmp_path / "view", shared=True),
        ):
            clock.advance(2)
        assert sorted(status.application for status in feed.reports) == ["a", "b"]
        assert len({status.instance for status in feed.reports}) == 2


class TestCounts:
    def test_a_report_after_a_lost_one_has_the_totals(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        gate.check(ACME)
        feed.error = SourceError("the answer was lost")
        clock.advance(REPORT_EVERY_S)
        feed.error = None
        gate.check(ACME)
        clock.advance(RETRY_AFTER_S)
        locks = [status.locks for status in feed.reports]
        assert locks == [(), (LockHits(DAILY, 1, 1),), (LockHits(DAILY, 2, 2),)]
        assert [status.number for status in feed.reports] == [1, 2, 3]

    def test_concurrent_additions_are_all_counted(self) -> None:
        counts, rounds, number = AtomicCounts(), 20_000, 4

        def add() -> None:
            for _ in range(rounds):
                counts.add()

        threads = [threading.Thread(target=add) for _ in range(number)]
        for thread in threads:
            thread.start()
        seen = [counts.read() for _ in range(100)]
        for thread in threads:
            thread.join()
        assert seen == sorted(seen)
        assert counts.read() == counts.read() == rounds * number


class TestNoDelay:
    def test_after_a_failed_report_the_next_one_follows_in_a_minute(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        feed.error = SourceError("404 Not Found")
        clock.advance(REPORT_EVERY_S)
        polls = len(feed.fetches)
        clock.advance(RETRY_AFTER_S - REPORT_EVERY_S)
        assert len(feed.reports) == 2
        assert len(feed.fetches) - polls > 100, "polling continues"
        assert not gate.allow(ACME)
        assert gate.allow(BOB)

    def test_an_exception_while_reporting_does_not_end_the_polling(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        feed.error = ZeroDivisionError()
        clock.advance(REPORT_EVERY_S)
        assert "failed to report" in caplog.text
        assert gate.healthy

    def test_requests_pass_during_a_slow_report(self) -> None:
        reporting, passed = threading.Event(), threading.Event()

        class Slow(ReportedFeed):
            def report_status(self, status: GateStatus) -> None:
                super().report_status(status)
                reporting.set()
                assert passed.wait(20), "a request waited for the report"

        with Gate(Slow(a_lock(ACME, ends_in=1e9))) as gate:
            assert reporting.wait(20)
            for _ in range(1_000):
                assert gate.allow(BOB)
                assert not gate.allow(ACME)
            passed.set()

    def test_an_unavailable_source_gets_no_reports(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        feed.away = True
        clock.advance(100)
        assert len(feed.reports) == 1

    def test_clear_callers_take_the_fast_path_once_enough_are_sampled(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        clock.advance(REPORT_EVERY_S)
        assert gate._path.callers is EVERY_NAME
        for number in range(SAMPLED_PER_REPORT):
            assert gate.allow(f"user:{number}")
        assert gate._path.callers is not EVERY_NAME

    def test_requests_read_the_clock_if_the_view_may_become_stale_during_a_report(
        self, clock: ManualClock
    ) -> None:
        """However many callers are sampled meanwhile, until the next poll ends."""

        class Slow(ReportedFeed):
            longest = 3.0

            def report_status(self, status: GateStatus) -> None:
                super().report_status(status)
                for _ in range(2 * SAMPLED_PER_REPORT):
                    guard.allow(BOB)
                self.was_guarded = guard._path.callers is EVERY_NAME

        feed = Slow(a_lock(ACME))
        with Gate(feed, clock=clock, stale_after=2.0, on_stale="deny") as guard:
            for _ in range(3):
                clock.advance(REPORT_EVERY_S)
                assert feed.was_guarded

    def test_a_source_that_takes_no_reports_is_rejected_with_report_status(self) -> None:
        with pytest.raises(ValueError, match="takes no reports"):
            Gate(FixedSource(), report_status=True)

    def test_the_application_may_disable_reports(self, feed: ReportedFeed, clock: ManualClock) -> None:
        with Gate(feed, clock=clock, report_status=False):
            clock.advance(100)
        assert feed.reports == []


class TestBounds:
    def test_the_sample_of_a_million_callers_is_small(
        self, feed: ReportedFeed, gate: Gate, clock: ManualClock
    ) -> None:
        numbers = iter(range(1_000_000))
        for _ in range(40):
            clock.advance(REPORT_EVERY_S)
            for number in range(SAMPLED_PER_REPORT * 2):
                gate.allow(f"user:{next(numbers)}-{number}")
        for number in numbers:
            gate.allow(f"user:{number}")
        clock.advance(REPORT_EVERY_S)
        status = feed.reports[-1]
        assert len(status.callers) == len(set(status.callers)) == CALLERS_REPORTED_MAX
        assert gate._runtime.status is not None
        assert len(gate._runtime.status._sample._current) <= CALLERS_REPORTED_MAX + SAMPLED_PER_REPORT
        assert len(dump(status)) < STATUS_BYTES_MAX

    def test_the_sample_is_uniform_over_distinct_callers(self) -> None:
        sample = CallerSample()
        for number in range(1_000):
            for _ in range(50 if number % 2 else 1):
                sample.add(f"user:{number}")
        often = sum(int(caller.removeprefix("user:")) % 2 for caller in sample.callers(0.0))
        assert 8 < often < CALLERS_REPORTED_MAX - 8, "half of them, plus or minus six standard deviations"

    def test_a_sample_forgets_callers_after_two_periods(self) -> None:
        sample = CallerSample()
        assert sample.callers(0.0) == ()
        sample.add("user:old")
        assert sample.callers(1.0) == ("user:old",)
        sample.add("user:new")
        assert set(sample.callers(SAMPLE_PERIOD_S)) == {"user:old", "user:new"}
        sample.add("user:new")
        assert set(sample.callers(2 * SAMPLE_PERIOD_S)) == {"user:new"}
        assert sample.callers(3 * SAMPLE_PERIOD_S) == ()

    def test_the_name_of_a_sampled_caller_is_cut(self) -> None:
        sample = CallerSample()
        sample.add("api_key:" + "x" * 10_000_000)
        (caller,) = sample.callers(0.0)
        assert len(caller) < 1_000
        assert not is_name(caller.partition(":")[2])

    def test_the_longest_name_of_a_caller_is_not_cut(self) -> None:
        sample = CallerSample()
        longest = "k" * 64 + ":" + "x" * NAME_BYTES_MAX
        sample.add(longest)
        assert sample.callers(0.0) == (longest,)

    def test_locks_beyond_the_bound_are_counted_together(self) -> None:
        recorder, feed = StatusRecorder("shop", 30.0, 0.0), ReportedFeed()
        denied = Decision(False, policy="daily")
        locks = [pack_lock(a_lock(f"user:{number}")) for number in range(LOCKS_COUNTED_MAX + 500)]
        for lock in locks:
            recorder.count_hits([lock], denied)
        for _ in range(3):
            recorder.count_hits([locks[7]], denied)
            recorder.report(feed, 0.0, GateKnowledge(replace(EMPTY, at=Cursor(1, "m")), 0.0), "")
        for number, status in enumerate(feed.reports, 1):
            assert len(status.locks) <= LOCKS_REPORTED_MAX
            assert status.locks[0] == LockHits(
                LockKey("caller", "user:7", "", "daily"), 1 + number, 1 + number
            )
            total = status.more[1] + sum(hits.denials for hits in status.locks)
            assert total == LOCKS_COUNTED_MAX + 500 + number, "each denial is counted once"
        assert len(recorder._hits) < LOCKS_COUNTED_MAX
