"""The gate: its answers with a fresh view, with a stale view and with none."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper import ALLOWED, Decision, Gate, Refused, SlidingLog
from gatekeeper.feed.saved_view import write
from gatekeeper.model import Lock
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from gatekeeper.view.fast_path import EVERY_NAME
from tests.support.feed import NOON, HandFeed, a_lock, a_saved_view

ACME = "api_key:acme"
BOB = "user:bob"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feed() -> HandFeed:
    return HandFeed(a_lock(ACME, detail="100 requests per day (UTC), 101 counted"))


@pytest.fixture
def gate(feed: HandFeed, clock: ManualClock) -> Gate:
    gate = Gate(feed, clock=clock)
    assert gate.ready(1.0)
    return gate


def a_gate(clock: ManualClock, *locks: Lock, **settings: object) -> Gate:
    gate = Gate(FixedSource(*locks), clock=clock, **settings)
    assert gate.ready(1.0)
    return gate


class TestAnswers:
    def test_a_caller_with_a_lock_is_denied_with_the_reason_and_the_end(self, gate: Gate) -> None:
        assert gate.check(ACME) == Decision(
            False,
            policy="daily",
            reason="quota-exceeded",
            detail="100 requests per day (UTC), 101 counted",
            retry_after=3600.0,
            until=NOON + timedelta(hours=1),
            status=429,
        )
        assert not gate.allow(ACME)

    def test_other_callers_pass(self, gate: Gate) -> None:
        assert gate.allow(BOB)
        assert gate.check(BOB) is ALLOWED
        assert gate.check() is ALLOWED

    def test_a_lock_and_its_clearing_reach_the_gate_within_a_poll(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.set(a_lock(BOB))
        clock.advance(0.4)
        assert not gate.allow(BOB)
        feed.clear(a_lock(BOB))
        clock.advance(0.4)
        assert gate.allow(BOB)

    def test_a_lock_ends_by_the_gates_clock_at_the_exact_moment(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.away = True
        clock.advance(3599.999)
        assert not gate.allow(ACME)
        assert gate.check(ACME).retry_after == pytest.approx(0.001)
        clock.advance(0.001)
        assert gate.allow(ACME)
        assert gate.check(ACME) is ALLOWED

    def test_a_lock_ends_by_the_wall_clock_without_a_poll(self, gate: Gate, clock: ManualClock) -> None:
        clock.jump(3600)
        assert gate.allow(ACME)
        clock.jump(-1)
        assert not gate.allow(ACME)

    def test_of_several_locks_the_one_that_ends_last_decides_and_the_others_are_named(
        self, clock: ManualClock
    ) -> None:
        gate = a_gate(
            clock,
            a_lock(ACME, "daily", ends_in=100),
            a_lock(ACME, "monthly", ends_in=1000),
            a_lock("acme-inc", "contract", scope="tenant", ends_in=50),
        )
        decision = gate.check(ACME, tenant="acme-inc")
        assert (decision.policy, decision.also) == ("monthly", ("daily", "contract"))
        clock.advance(60)
        assert gate.check(ACME, tenant="acme-inc").also == ("daily",)

    def test_enforce_raises_what_check_returns(self, gate: Gate) -> None:
        with pytest.raises(Refused, match="101 counted") as refused:
            gate.enforce(ACME)
        assert refused.value.decision == gate.check(ACME)
        assert gate.enforce(BOB) is ALLOWED

    @pytest.mark.parametrize(
        ("lock", "scopes", "other"),
        [
            (a_lock("acme-inc", scope="tenant"), {"tenant": "acme-inc"}, {"tenant": "bob"}),
            (a_lock("192.0.2.1", scope="address"), {"address": "192.0.2.1"}, {"address": "192.0.2.2"}),
            (a_lock("/v1/export", scope="resource"), {"resource": "/v1/export"}, {"resource": "/"}),
            (
                a_lock(ACME, resource="/v1/export"),
                {"caller": ACME, "resource": "/v1/export"},
                {"caller": ACME, "resource": "/"},
            ),
            (
                a_lock("", scope="everyone", resource="/v1/export"),
                {"caller": BOB, "resource": "/v1/export"},
                {"caller": BOB},
            ),
        ],
        ids=["tenant", "address", "resource", "caller+resource", "everyone+resource"],
    )
    def test_each_scope_is_looked_up_under_its_own_name(
        self, clock: ManualClock, lock: Lock, scopes: dict[str, str], other: dict[str, str]
    ) -> None:
        gate = a_gate(clock, lock)
        assert not gate.check(**scopes)
        assert gate.check(**other) is ALLOWED

    def test_a_lock_on_everyone_applies_to_requests_without_a_name(self, clock: ManualClock) -> None:
        gate = a_gate(clock, a_lock("", scope="everyone"))
        assert [gate.allow(BOB), bool(gate.check()), bool(gate.check(address="192.0.2.1"))] == [False] * 3

    def test_a_lock_on_an_empty_name_applies_to_no_request(self, clock: ManualClock) -> None:
        gate = a_gate(clock, a_lock(""), a_lock("", scope="tenant"), a_lock("", scope="address"))
        assert gate.check() is ALLOWED

    @given(
        st.lists(st.sampled_from([ACME, BOB, "user:eve"])),
        st.sampled_from([ACME, BOB, "user:eve"]),
        st.booleans(),
    )
    def test_allow_and_check_agree(self, locked: list[str], caller: str, everyone: bool) -> None:
        locks = [a_lock(name) for name in locked] + [a_lock("", scope="everyone")] * everyone
        gate = a_gate(ManualClock(), *locks)
        assert gate.allow(caller) == gate.check(caller).allowed == (not everyone and caller not in locked)

    def test_in_shadow_mode_no_request_is_denied_and_the_decision_says_which_would_have_been(
        self, clock: ManualClock
    ) -> None:
        gate = a_gate(clock, a_lock(ACME), shadow=True)
        assert gate.allow(ACME)
        decision = gate.enforce(ACME)
        assert (decision.allowed, decision.shadow, decision.policy) == (True, True, "daily")
        assert decision.retry_after == 0.0
        assert gate.check(BOB) is ALLOWED


class TestStale:
    """The source becomes unavailable at 0:00 and the view stale at 0:30."""

    def test_a_lock_is_enforced_until_its_end_or_ignored_as_its_policy_says(self, clock: ManualClock) -> None:
        feed = HandFeed(a_lock(ACME, on_stale="keep", ends_in=60), a_lock(BOB, on_stale="allow", ends_in=60))
        gate = Gate(feed, clock=clock)
        gate.ready(1.0)
        feed.away = True
        clock.advance(30.0)
        assert not gate.allow(ACME)
        assert not gate.allow(BOB)
        clock.advance(0.1)
        assert not gate.allow(ACME)
        assert gate.allow(BOB)
        clock.advance(30.0)
        assert gate.allow(ACME)

    def test_callers_without_a_lock_pass_by_default(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.away = True
        clock.advance(1000.0)
        assert not gate.healthy
        assert gate.check(BOB) is ALLOWED

    def test_callers_without_a_lock_are_denied_with_on_stale_deny(
        self, feed: HandFeed, clock: ManualClock
    ) -> None:
        gate = Gate(feed, clock=clock, on_stale="deny")
        gate.ready(1.0)
        feed.away = True
        clock.advance(29.9)
        assert gate.allow(BOB)
        clock.advance(0.2)
        assert not gate.allow(BOB)
        assert gate.check(BOB)[:3] == (False, "", "stale")
        assert (gate.check(BOB).status, gate.check(BOB).retry_after) == (503, None)
        assert gate.check(ACME).reason == "quota-exceeded"
        feed.away = False
        clock.advance(10.0)
        assert gate.allow(BOB)

    def test_callers_without_a_lock_follow_the_limiter_given_as_on_stale(
        self, feed: HandFeed, clock: ManualClock
    ) -> None:
        gate = Gate(feed, clock=clock, on_stale=SlidingLog(limit=2, period=60, clock=clock))
        gate.ready(1.0)
        assert [gate.allow(BOB) for _ in range(5)] == [True] * 5
        feed.away = True
        clock.advance(31.0)
        assert [gate.allow(BOB) for _ in range(3)] == [True, True, False]
        assert [bool(gate.check(address="192.0.2.1")) for _ in range(3)] == [True, True, False]

    def test_a_caller_whose_stale_lock_is_ignored_follows_on_stale_of_the_gate(
        self, clock: ManualClock
    ) -> None:
        feed = HandFeed(a_lock(ACME, on_stale="allow"))
        gate = Gate(feed, clock=clock, on_stale="deny")
        gate.ready(1.0)
        feed.away = True
        clock.advance(31.0)
        assert gate.check(ACME).reason == "stale"

    def test_stale_after_holds_during_a_fetch_of_any_length(self, feed: HandFeed, clock: ManualClock) -> None:
        """The poller, which waits for the source, cannot change the mode at that moment."""
        gate = Gate(feed, clock=clock, on_stale="deny")
        gate.ready(1.0)
        fetch, seen = feed.fetch, []

        def hangs(since: object) -> object:
            seen.append(gate.allow(BOB))
            clock._move(clock._up_ns + 31 * 10**9)
            seen.append(gate.allow(BOB))
            return fetch(since)

        feed.fetch = hangs
        clock.advance(0.4)
        assert seen == [True, False]


class TestCold:
    def test_a_gate_without_any_answer_allows_all_requests(self, feed: HandFeed, clock: ManualClock) -> None:
        feed.away = True
        gate = Gate(feed, clock=clock)
        assert gate.allow(ACME)
        clock.advance(1000.0)
        assert gate.allow(ACME)
        assert (gate.age, gate.version, gate.healthy) == (inf, 0, False)

    def test_a_new_gate_has_stale_after_seconds_to_get_its_first_answer(
        self, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.away = True
        clock.advance(5000.0)
        gate = Gate(feed, clock=clock, on_stale="deny")
        clock.advance(5000.0)
        assert gate.allow(BOB)
        clock.advance(30.0)
        assert gate.allow(BOB)
        clock.advance(0.1)
        assert not gate.allow(BOB)

    def test_a_saved_view_denies_the_callers_that_it_knows_and_no_others(
        self, feed: HandFeed, clock: ManualClock, tmp_path: Path
    ) -> None:
        """The view was confirmed an hour ago, so it is stale: locks with on_stale "allow" are ignored."""
        locks = (a_lock(ACME), a_lock(BOB, on_stale="allow"))
        write(tmp_path / "view", a_saved_view(NOON - timedelta(hours=1), *locks))
        feed.away = True
        gate = Gate(feed, clock=clock, on_stale="deny", saved=tmp_path / "view")
        gate.start()
        clock.advance(0.0)
        assert not gate.allow(ACME)
        assert gate.allow(BOB)
        assert gate.allow("user:eve")
        assert gate.age == 3600.0
        assert not gate.ready(1.0)

    def test_a_gate_saves_its_view_for_the_next_start(
        self, feed: HandFeed, clock: ManualClock, tmp_path: Path
    ) -> None:
        with Gate(feed, clock=clock, saved=tmp_path / "view") as gate:
            gate.ready(1.0)
        feed.away = True
        with Gate(feed, clock=clock, saved=tmp_path / "view") as gate:
            clock.advance(0.0)
            assert not gate.allow(ACME)


class TestHealth:
    def test_the_health_properties_describe_the_last_answer(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.behind = 12.5
        feed.set(a_lock(BOB))
        clock.advance(0.5)
        assert (gate.version, gate.healthy, gate.behind) == (2, True, 12.5)
        assert gate.age == pytest.approx(0.1)
        assert gate.clock_skew == pytest.approx(0.4)
        feed.away = True
        clock.advance(60.0)
        assert gate.age == pytest.approx(60.1)
        assert not gate.healthy

    def test_unknown_words_of_the_feed_are_shown(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        feed.set(a_lock(BOB, action="delay"))
        clock.advance(0.5)
        assert gate.ignored == {"action delay": 1}
        assert gate.allow(BOB)


class TestLifecycle:
    def test_nothing_starts_before_the_first_check(self, feed: HandFeed, clock: ManualClock) -> None:
        gate = Gate(feed, clock=clock)
        clock.advance(10.0)
        assert feed.fetches == []
        gate.allow(BOB)
        clock.advance(0.0)
        assert feed.fetches == [None]

    def test_starting_twice_starts_one_poller(self, gate: Gate, feed: HandFeed, clock: ManualClock) -> None:
        before = len(feed.fetches)
        gate.start().start()
        gate.check(BOB)
        clock.advance(4.1)
        assert len(feed.fetches) - before == 10

    def test_a_closed_gate_does_not_poll_and_its_view_becomes_stale(
        self, feed: HandFeed, clock: ManualClock
    ) -> None:
        with Gate(feed, clock=clock, on_stale="deny") as gate:
            gate.ready(1.0)
        before = len(feed.fetches)
        assert (gate.allow(ACME), gate.allow(BOB)) == (False, True)
        clock.advance(31.0)
        assert (gate.allow(ACME), gate.allow(BOB)) == (False, False)
        assert len(feed.fetches) == before
        gate.close()
        gate.start()
        clock.advance(0.0)
        assert gate.allow(BOB)

    def test_a_poller_that_crashed_is_restarted_by_the_next_request(
        self, gate: Gate, feed: HandFeed, clock: ManualClock
    ) -> None:
        fetch, feed.fetch = feed.fetch, crash
        clock.advance(0.4)
        assert not gate.healthy
        feed.fetch = fetch
        feed.set(a_lock(BOB))
        clock.advance(10.0)
        assert gate.allow(BOB)
        clock.advance(0.0)
        assert not gate.allow(BOB)
        assert gate.healthy

    def test_a_poller_that_always_crashes_is_restarted_once_a_second(
        self, feed: HandFeed, clock: ManualClock
    ) -> None:
        starts = []
        gate, run = Gate(feed, clock=clock), clock.run
        clock.run = lambda turn, name: starts.append(name) or run(turn, name)
        feed.fetch = crash
        for _ in range(1000):
            gate.allow(ACME)
            clock.advance(0.01)
        assert 1 < len(starts) <= 11

    def test_a_gate_whose_thread_cannot_be_started_allows_requests(
        self, feed: HandFeed, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        def cannot(turn: object, name: str) -> object:
            raise RuntimeError("can't start new thread")

        clock.run = cannot
        assert Gate(feed, clock=clock).allow(ACME)
        assert "the poller cannot be started" in caplog.text

    def test_a_clear_request_reads_no_clock(self, gate: Gate, clock: ManualClock) -> None:
        def never() -> float:
            raise AssertionError("the clock was read")

        assert gate._locked_callers is not EVERY_NAME
        clock.uptime_s = clock.wall_ns = never
        assert all(gate.allow(f"user:{n}") for n in range(100))


def crash(since: object) -> object:
    raise SystemExit


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"stale_after": 0}, "stale_after: expected seconds above 0, got 0"),
        ({"stale_after": inf}, "stale_after"),
        ({"on_stale": "keep"}, "on_stale: expected 'allow', 'deny' or a limiter, got 'keep'"),
        ({"token": "secret"}, "token: not used for a source that is already made"),
    ],
)
def test_an_invalid_argument_is_reported_by_the_constructor(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Gate(FixedSource(), **settings)
