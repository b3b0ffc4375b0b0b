"""A gate with every kind of source, under faults of answers, histories, clocks and of the source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
import sqlalchemy as sa

from gatekeeper import ALLOWED, Gate, SlidingLog
from gatekeeper.feed.poller import CEILING_S, GateKnowledge, Poller
from gatekeeper.model import Clear, Cursor, LockSource, Rate, Set, Update
from gatekeeper.sources import sql
from gatekeeper.testing import ManualClock
from gatekeeper.view.lock_tuples import pack_change, packed
from gatekeeper.view.lock_view import EMPTY, LockView
from tests.contracts.lock_publishers import (
    ACME,
    BOB,
    EVE,
    FixedPublisher,
    LockPublisher,
    a_lock,
    except_fixed,
    locks_of,
    updated,
)
from tests.support.feed import UnreliableSource

POLL_S = 11.0  # longer than any pause between polls
KEPT, IGNORED, FREE = a_lock("user:kept"), a_lock("user:ignored", on_stale="allow"), "user:free"


def faulty_source(publisher: LockPublisher) -> UnreliableSource:
    def fetch(since: Cursor | None) -> Update:
        return publisher.source.fetch(since)  # a FixedPublisher has another one after each change

    return UnreliableSource(fetch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


def a_gate(source: LockSource, clock: ManualClock, **settings: object) -> Gate:
    gate = Gate(source, clock=clock, **settings)
    assert gate.ready(10.0)
    return gate


# -- answers and histories ------------------------------------------------------------------------


def polled(poller: Poller, clock: ManualClock, times: int = 1) -> LockView:
    for _ in range(times):
        clock.advance(POLL_S)
        poller.step()
    return poller.known.view


@pytest.mark.parametrize("seed", range(4))
def test_after_faults_of_answers_and_history_the_view_equals_the_locks(
    publisher: LockPublisher, clock: ManualClock, seed: int
) -> None:
    """Lost, incomplete and repeated answers; pruning, and restored backups with a lower version."""
    random, source = Random(seed), faulty_source(publisher)
    poller = Poller(source, clock, GateKnowledge(), pace_max_s=15.0, view_file=None)
    backup = publisher.backup()
    for _ in range(40):
        match random.choice(["publish", "publish", "prune", "backup", "restore", "poll", "poll", "poll"]):
            case "publish":
                callers = random.sample(range(12), 3)
                locks = [a_lock(f"user:{n}", random.choice(["daily", "flood"])) for n in callers]
                publisher.publish(*(Set(lock) if random.random() < 0.6 else Clear(lock.at) for lock in locks))
            case "prune" if hasattr(publisher, "prune"):
                publisher.prune()
            case "backup":
                backup = publisher.backup()
            case "restore":
                publisher.restore(backup)
            case "poll":
                source.fault = random.choice(["well", "lost", "half", "again"])
                polled(poller, clock)
    source.fault = "well"
    assert locks_of(polled(poller, clock, times=2)) == publisher.truth()


def test_a_feed_with_a_new_history_replaces_the_view(publisher: LockPublisher, clock: ManualClock) -> None:
    """A new database starts at version 0 and reaches the gate's version later."""
    empty = publisher.backup()
    gate = a_gate(faulty_source(publisher), clock)
    for lock in (ACME, BOB, KEPT):
        publisher.publish(Set(lock))
    clock.advance(POLL_S)
    assert not gate.allow(ACME.key)
    publisher.restore(empty)
    clock.advance(POLL_S)
    assert gate.allow(ACME.key)
    for lock in (EVE, IGNORED, KEPT):  # as many versions as before
        publisher.publish(Set(lock))
        clock.advance(POLL_S)
    assert locks_of(gate._runtime.knowledge.view) == {EVE, IGNORED, KEPT} == publisher.truth()


def test_a_feed_restored_to_a_lower_version_replaces_the_view(
    publisher: LockPublisher, clock: ManualClock
) -> None:
    publisher.publish(Set(ACME))
    backup = publisher.backup()
    publisher.publish(Set(BOB))
    publisher.publish(Clear(ACME.at))
    gate = a_gate(faulty_source(publisher), clock)
    before = gate.version
    publisher.restore(backup)
    clock.advance(POLL_S)
    assert gate.version < before or isinstance(
        publisher, FixedPublisher
    )  # a fixed list has no second version
    assert locks_of(gate._runtime.knowledge.view) == {ACME}


def test_unknown_words_are_ignored_and_counted_until_a_known_one_replaces_them(
    publisher: LockPublisher,
) -> None:
    """Scopes, actions and values of a later version, among known ones."""
    later = [
        a_lock("earth", scope="planet"),
        a_lock("203.0.113.0/240", scope="range"),
        a_lock("user:one", action="delay"),
        a_lock("user:two", on_stale="ask"),
    ]
    publisher.publish(Set(ACME), *map(Set, later))
    view = updated(EMPTY, publisher)
    assert locks_of(view) == {ACME, later[3]}
    assert view.ignored == {
        "scope planet": 1, "malformed range": 1, "action delay": 1, "on_stale ask": 1,
    }  # fmt: skip
    publisher.publish(Set(replace(later[2], action="deny")), Clear(later[0].at))
    assert locks_of(updated(view, publisher)) == {ACME, later[3], replace(later[2], action="deny")}


EVERY_KIND = [
    a_lock("acme", scope="tenant", detail="of the tenant"),
    a_lock("192.0.2.7", scope="address"),
    a_lock("2001:db8::/32", "flood", scope="range", kind="surge"),
    a_lock("/v1/items/{id}", scope="resource"),
    a_lock("", scope="everyone", resource="/v1/export"),
    replace(a_lock("user:503", reason="temporary-reduced-capacity"), status=503),
    replace(a_lock("user:slow", action="slow"), slow=Rate(3, 0.5)),
    a_lock("user:tag", action="tag", on_stale="allow"),
    replace(a_lock("", ":suspended", scope="everyone", action="suspend")),
    a_lock('user:"\\ü\u4e2d', detail="a caller's own words: \"; drop table locks"),
]


def test_every_kind_of_lock_arrives_unchanged_in_snapshots_and_in_changes(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME))
    early = updated(EMPTY, publisher)
    publisher.publish(*map(Set, EVERY_KIND))
    expected = {ACME, *EVERY_KIND}
    assert (
        locks_of(updated(early, publisher))
        == locks_of(updated(EMPTY, publisher))
        == expected
        == publisher.truth()
    )
    publisher.publish(*(Clear(lock.at) for lock in EVERY_KIND))
    assert locks_of(updated(updated(early, publisher), publisher)) == {ACME}


def test_the_tuples_of_an_update_equal_those_packed_from_its_changes(publisher: LockPublisher) -> None:
    """Sources build them directly; `end` in nanoseconds must agree with `until`, and rates with floats."""
    publisher.publish(Set(ACME))
    since = publisher.source.fetch(None).at
    publisher.publish(*map(Set, EVERY_KIND), Clear(ACME.at))
    for update in (publisher.source.fetch(None), publisher.source.fetch(since)):
        assert list(packed(update.changes)) == list(map(pack_change, update.changes))


# -- clocks ---------------------------------------------------------------------------------------


def set_source_clock(publisher: LockPublisher, by: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(publisher, "feed"):
        publisher.feed.now = datetime.now(UTC) + by
        return
    wrong = sa.literal(round((datetime.now(UTC) + by).timestamp() * 1000), sa.BigInteger)
    for dialect in sql.NOW_MS:
        monkeypatch.setitem(sql.NOW_MS, dialect, wrong)


@except_fixed
@pytest.mark.parametrize("days", [-400, 400])
def test_a_wrong_clock_of_the_source_changes_no_lock(
    publisher: LockPublisher, clock: ManualClock, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a gate with a view nor for one that starts at that moment; the gate shows the skew."""
    publisher.publish(Set(ACME))
    early = a_gate(faulty_source(publisher), clock)
    with monkeypatch.context() as patch:
        set_source_clock(publisher, timedelta(days=days), patch)
        publisher.publish(Set(EVE))
        late = a_gate(faulty_source(publisher), clock)
        clock.advance(1.0)
        assert [locks_of(gate._runtime.knowledge.view) for gate in (early, late)] == [{ACME, EVE}] * 2
        if not publisher.__class__.__name__.startswith("File"):  # its `now` is when the file was written
            assert abs(late.clock_skew) > 300 * 86_400
    if hasattr(publisher, "feed"):
        publisher.feed.now = datetime.now(UTC)
    clock.advance(1.0)
    assert [gate.allow(EVE.key) for gate in (early, late)] == [False] * 2


def test_after_the_gates_clock_was_ahead_for_a_while_locks_are_in_force_again(
    publisher: LockPublisher, clock: ManualClock
) -> None:
    """Although the feed does not set them again."""
    publisher.publish(Set(ACME), Set(BOB))
    gate = a_gate(faulty_source(publisher), clock)
    clock.jump(3 * 86_400)
    clock.advance(POLL_S)
    assert gate.allow(ACME.key)
    assert locks_of(gate._runtime.knowledge.view) == set()
    clock.jump(-3 * 86_400)
    clock.advance(POLL_S)
    assert not gate.allow(ACME.key)
    assert locks_of(gate._runtime.knowledge.view) == publisher.truth()


@pytest.mark.parametrize("skew", [-300.0, 300.0])
def test_a_lock_ends_by_the_gates_clock_and_nothing_else_depends_on_the_skew(
    publisher: LockPublisher, skew: float
) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=skew))
    publisher.publish(Set(ACME))
    gate = a_gate(faulty_source(publisher), clock)
    assert not gate.allow(ACME.key)
    assert gate.healthy
    left_s = (ACME.until - clock.now()).total_seconds()
    clock.jump(left_s - 1)
    assert gate.check(ACME.key).retry_after == pytest.approx(1.0)
    clock.jump(1)
    assert gate.check(ACME.key) is ALLOWED
    assert gate.healthy


# -- an unavailable source ------------------------------------------------------------------------


@except_fixed
@pytest.mark.parametrize("on_stale", ["allow", "deny", "limiter"])
def test_beyond_stale_after_locks_follow_their_policy_and_other_callers_the_application(
    publisher: LockPublisher, clock: ManualClock, on_stale: str
) -> None:
    """Until then nothing changes, and when the source is back all is as before."""
    limiter = SlidingLog(2, 60.0, clock=clock)
    on_stale_of_gate = limiter if on_stale == "limiter" else on_stale
    publisher.publish(Set(KEPT), Set(IGNORED))
    gate = a_gate(publisher.source, clock, stale_after=20.0, on_stale=on_stale_of_gate)
    publisher.fail()
    clock.advance(19.0)
    assert [gate.allow(name) for name in (KEPT.key, IGNORED.key, FREE, FREE, FREE)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    clock.advance(2.0)
    assert not gate.healthy
    decisions = [gate.check(name) for name in (KEPT.key, FREE, IGNORED.key, FREE)]
    assert [bool(decision) for decision in decisions] == [
        False, *{"allow": [True] * 3, "deny": [False] * 3, "limiter": [True] * 3}[on_stale],
    ]  # fmt: skip
    assert decisions[0].policy == "daily"
    if on_stale == "deny":
        assert {(decision.reason, decision.status) for decision in decisions[1:]} == {("stale", 503)}
    if on_stale == "limiter":
        assert [gate.check(FREE).reason, gate.check(KEPT.key).policy] == ["limited", "daily"]
    left_s = (KEPT.until - clock.now()).total_seconds()
    clock.jump(left_s)  # a lock is kept until its end, and no longer
    assert gate.allow(KEPT.key) is (on_stale != "deny")
    clock.jump(-left_s)
    publisher.recover()
    clock.advance(CEILING_S + 1)
    assert gate.healthy
    assert [gate.allow(name) for name in (KEPT.key, IGNORED.key, FREE)] == [False, False, True]
    gate.close()


@except_fixed
def test_a_lock_that_is_cleared_while_the_source_is_unavailable_is_gone_when_it_is_back(
    publisher: LockPublisher, clock: ManualClock
) -> None:
    publisher.publish(Set(KEPT), Set(ACME))
    gate = a_gate(publisher.source, clock)
    publisher.publish(Clear(KEPT.at), Set(BOB))
    publisher.fail()
    clock.advance(300.0)
    assert not gate.allow(KEPT.key)
    publisher.recover()
    clock.advance(CEILING_S + 1)
    assert locks_of(gate._runtime.knowledge.view) == publisher.truth() == {ACME, BOB}
    gate.close()
