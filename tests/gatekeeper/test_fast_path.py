"""The modes of a gate: what requests look up in each, and what changes the mode."""

from __future__ import annotations

from itertools import product

import pytest

from gatekeeper import Gate
from gatekeeper.model import GateStatus
from gatekeeper.telemetry.gate_status import REPORT_EVERY_S, SAMPLED_PER_REPORT
from gatekeeper.testing import ManualClock
from gatekeeper.view.fast_path import (
    ALLOW_ALL,
    MODES,
    TO_SLOW_PATH,
    FastPath,
    FastPathSwitch,
    Mode,
    build_fast_path,
)
from gatekeeper.view.lock_tuples import pack_lock
from gatekeeper.view.lock_view import EMPTY, with_locks
from tests.support.feed import HandFeed, a_lock

ACME, BOB = "api_key:acme", "user:bob"
PATH = build_fast_path(with_locks(EMPTY, [pack_lock(a_lock(ACME))]))
EMPTY_PATH = build_fast_path(EMPTY)
MOVERS = ("poller", "request", "application")


class ReportedFeed(HandFeed):
    """A feed that takes status reports, so that its gates sample callers."""

    wants_status = True

    def report_status(self, status: GateStatus) -> None:
        """Accepts the report."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feed() -> ReportedFeed:
    return ReportedFeed(a_lock(ACME, ends_in=10**9))


def mode_of(gate: Gate) -> Mode:
    return gate._runtime._switch.mode


# -- the table ------------------------------------------------------------------------------------


def test_every_mode_has_a_rule_and_can_be_reached() -> None:
    reachable = {mode for rule in MODES.values() for by in MOVERS for mode in getattr(rule, by)}
    assert set(MODES) == set(Mode) == reachable


@pytest.mark.parametrize(("by", "before", "after"), [*product(MOVERS, Mode, Mode)])
def test_a_gate_moves_as_the_table_allows_and_not_otherwise(by: str, before: Mode, after: Mode) -> None:
    shown: list[FastPath] = []
    switch = FastPathSwitch(shown.append)
    switch.settle(Mode.READY, PATH, is_sampling=False)
    switch.mode = before
    shown.clear()
    if after in getattr(MODES[before], by):
        assert switch.move(by, after)
        assert switch.mode is after
        assert shown == [PATH if MODES[after].path is None else MODES[after].path]
    else:
        assert not switch.move(by, after)
        assert (switch.mode, shown) == (before, [])


def test_only_a_request_without_a_lock_in_ready_or_off_mode_is_decided_by_look_ups() -> None:
    assert {mode for mode, rule in MODES.items() if rule.path is not TO_SLOW_PATH} == {
        Mode.READY,
        Mode.OFF,
    }
    assert MODES[Mode.OFF].path is ALLOW_ALL
    assert MODES[Mode.READY].path is None


def test_a_closed_gate_is_opened_only_by_the_application() -> None:
    rule = MODES[Mode.CLOSED]
    assert (rule.poller, rule.request, rule.application) == (frozenset(), frozenset(), {Mode.COLD})


def test_a_request_ends_the_sampling_and_nothing_else() -> None:
    assert {mode for mode, rule in MODES.items() if rule.request} == {Mode.SAMPLING, Mode.READY}
    assert MODES[Mode.READY].request == {Mode.STALE}, "never to a faster one"


# -- the switch -----------------------------------------------------------------------------------


def test_while_callers_are_sampled_a_poll_settles_the_mode_for_afterwards() -> None:
    shown: list[FastPath] = []
    switch = FastPathSwitch(shown.append)
    switch.settle(Mode.READY, EMPTY_PATH, is_sampling=False)
    switch.start_sampling()
    switch.settle(Mode.READY, PATH, is_sampling=True)
    assert (switch.mode, shown[-1]) == (Mode.SAMPLING, TO_SLOW_PATH)
    switch.finish_sampling()
    assert (switch.mode, shown[-1]) == (Mode.READY, PATH)


def test_a_poll_ends_the_sampling_that_no_request_could_end() -> None:
    switch = FastPathSwitch(lambda path: None)
    switch.start_sampling()
    switch.settle(Mode.OFF, is_sampling=False)
    assert switch.mode is Mode.OFF


def test_a_gate_that_is_started_again_does_not_use_the_former_view() -> None:
    shown: list[FastPath] = []
    switch = FastPathSwitch(shown.append)
    switch.settle(Mode.READY, PATH, is_sampling=False)
    switch.close()
    switch.start()
    switch.start_sampling()
    switch.finish_sampling()
    assert (switch.mode, shown[-1]) == (Mode.COLD, TO_SLOW_PATH)


# -- gates ----------------------------------------------------------------------------------------


def test_a_gate_goes_through_its_modes(
    feed: ReportedFeed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(feed, clock=clock, on_stale="deny")
    assert mode_of(gate) is Mode.COLD
    gate.start()
    clock.advance(0.0)
    assert mode_of(gate) is Mode.READY
    clock.advance(1.0)
    assert mode_of(gate) is Mode.SAMPLING
    for number in range(SAMPLED_PER_REPORT):
        assert gate.allow(f"user:{number}")
    assert mode_of(gate) is Mode.READY
    feed.away = True
    clock.advance(31.0)
    assert mode_of(gate) is Mode.STALE
    monkeypatch.setenv("GATEKEEPER", "off")
    clock.advance(15.0)
    assert mode_of(gate) is Mode.OFF
    gate.close()
    assert mode_of(gate) is Mode.CLOSED
    gate.start()
    assert mode_of(gate) is Mode.COLD


def test_a_gate_that_was_closed_while_it_sampled_callers_becomes_stale(
    feed: ReportedFeed, clock: ManualClock
) -> None:
    """The last caller of the sample must not take it back to the fast path."""
    gate = Gate(feed, clock=clock, on_stale="deny")
    gate.ready(1.0)
    clock.advance(1.0)
    assert mode_of(gate) is Mode.SAMPLING
    gate.close()
    for number in range(2 * SAMPLED_PER_REPORT):
        assert gate.allow(f"user:{number}")
    clock.advance(60.0)
    assert gate.check(BOB).reason == "stale"


def test_a_poller_that_crashed_while_callers_were_sampled_is_restarted(
    feed: ReportedFeed, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it crashes, and although requests complete the sample meanwhile."""

    def crash(since: object) -> object:
        raise SystemExit

    gate = Gate(feed, clock=clock)
    gate.ready(1.0)
    fetch, feed.fetch = feed.fetch, crash
    clock.advance(REPORT_EVERY_S + 1)
    for _ in range(2):
        assert mode_of(gate) is Mode.CRASHED
        for number in range(SAMPLED_PER_REPORT // 2):
            gate.allow(f"user:{number}")
        clock.advance(1.0)
    feed.fetch = fetch
    feed.set(a_lock(BOB, ends_in=10**9))
    gate.allow(BOB)
    clock.advance(1.0)
    assert (gate.allow(BOB), gate.healthy) == (False, True)
    assert "the next request restarts it" in caplog.text


def test_a_poll_that_ends_after_close_changes_nothing(feed: ReportedFeed, clock: ManualClock) -> None:
    gate = Gate(feed, clock=clock)
    gate.ready(1.0)
    fetch = feed.fetch

    def closes(since: object) -> object:
        gate.close()
        return fetch(since)

    feed.fetch = closes
    feed.set(a_lock(BOB))
    clock.advance(1.0)
    assert mode_of(gate) is Mode.CLOSED
    assert gate.allow(BOB)
