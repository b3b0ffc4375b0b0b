"""A gate on every kind of source, while answers, histories, clocks and the source itself go wrong."""

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
from gatekeeper.view.lock_view import EMPTY, LockView
from tests.contracts.desks import ACME, BOB, EVE, Desk, FixedDesk, a_lock, but_fixed, caught_up, seen
from tests.support.feed import BadLine

A_POLL_S = 11.0  # longer than any pause between two
KEPT, LET_GO, FREE = a_lock("user:kept"), a_lock("user:let-go", on_stale="allow"), "user:free"


def a_line(desk: Desk) -> BadLine:
    def fetch(since: Cursor | None) -> Update:
        return desk.source.fetch(since)  # the one that it has just then

    return BadLine(fetch)


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
        clock.advance(A_POLL_S)
        poller.turn()
    return poller.known.view


@pytest.mark.parametrize("seed", range(4))
def test_whatever_becomes_of_the_answers_and_the_history_the_view_ends_equal_to_the_locks(
    desk: Desk, clock: ManualClock, seed: int
) -> None:
    """Lost, half, the same twice; pruned, restored from a backup, the version going back."""
    some, line = Random(seed), a_line(desk)
    poller = Poller(line, clock, GateKnowledge(), pace_max_s=15.0, shelf=None)
    kept = desk.backup()
    for _ in range(40):
        match some.choice(["publish", "publish", "prune", "backup", "restore", "poll", "poll", "poll"]):
            case "publish":
                callers = some.sample(range(12), 3)
                locks = [a_lock(f"user:{n}", some.choice(["daily", "flood"])) for n in callers]
                desk.publish(*(Set(lock) if some.random() < 0.6 else Clear(lock.at) for lock in locks))
            case "prune" if hasattr(desk, "prune"):
                desk.prune()
            case "backup":
                kept = desk.backup()
            case "restore":
                desk.restore(kept)
            case "poll":
                line.does = some.choice(["well", "lost", "half", "again"])
                polled(poller, clock)
    line.does = "well"
    assert seen(polled(poller, clock, times=2)) == desk.truth()


def test_a_server_that_forgot_its_history_is_believed_about_what_it_knows_now(
    desk: Desk, clock: ManualClock
) -> None:
    """Another database in the old one's place begins at version 0, and comes to ours by and by."""
    nothing = desk.backup()
    gate = a_gate(a_line(desk), clock)
    for lock in (ACME, BOB, KEPT):
        desk.publish(Set(lock))
    clock.advance(A_POLL_S)
    assert not gate.allow(ACME.key)
    desk.restore(nothing)
    clock.advance(A_POLL_S)
    assert gate.allow(ACME.key)
    for lock in (EVE, LET_GO, KEPT):  # as many versions as before
        desk.publish(Set(lock))
        clock.advance(A_POLL_S)
    assert seen(gate._known.view) == {EVE, LET_GO, KEPT} == desk.truth()


def test_a_version_that_goes_back_takes_the_view_with_it(desk: Desk, clock: ManualClock) -> None:
    desk.publish(Set(ACME))
    kept = desk.backup()
    desk.publish(Set(BOB))
    desk.publish(Clear(ACME.at))
    gate = a_gate(a_line(desk), clock)
    before = gate.version
    desk.restore(kept)
    clock.advance(A_POLL_S)
    assert gate.version < before or isinstance(desk, FixedDesk)  # a fixed list has no second version
    assert seen(gate._known.view) == {ACME}


def test_what_is_not_known_is_passed_over_counted_and_enforced_when_it_becomes_known(desk: Desk) -> None:
    """Scopes, actions and choices of a later version, beside what this one knows."""
    later = [
        a_lock("earth", scope="planet"),
        a_lock("203.0.113.0/240", scope="range"),
        a_lock("user:one", action="delay"),
        a_lock("user:two", on_stale="ask"),
    ]
    desk.publish(Set(ACME), *map(Set, later))
    view = caught_up(EMPTY, desk)
    assert seen(view) == {ACME, later[3]}
    assert view.ignored == {
        "scope planet": 1, "range that is none": 1, "action delay": 1, "on_stale ask": 1,
    }  # fmt: skip
    desk.publish(Set(replace(later[2], action="deny")), Clear(later[0].at))
    assert seen(caught_up(view, desk)) == {ACME, later[3], replace(later[2], action="deny")}


EVERY_KIND = [
    a_lock("acme", scope="tenant", detail="of the whole tenant"),
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


def test_every_kind_of_lock_arrives_as_it_was_set_in_a_snapshot_and_in_changes(desk: Desk) -> None:
    desk.publish(Set(ACME))
    early = caught_up(EMPTY, desk)
    desk.publish(*map(Set, EVERY_KIND))
    wanted = {ACME, *EVERY_KIND}
    assert seen(caught_up(early, desk)) == seen(caught_up(EMPTY, desk)) == wanted == desk.truth()
    desk.publish(*(Clear(lock.at) for lock in EVERY_KIND))
    assert seen(caught_up(caught_up(early, desk), desk)) == {ACME}


# -- clocks ---------------------------------------------------------------------------------------


def jump_over_there(desk: Desk, by: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(desk, "feed"):
        desk.feed.now = datetime.now(UTC) + by
        return
    wrong = sa.literal(round((datetime.now(UTC) + by).timestamp() * 1000), sa.BigInteger)
    for kind in sql.NOW_MS:
        monkeypatch.setitem(sql.NOW_MS, kind, wrong)


@but_fixed
@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_jumps_over_there_changes_no_lock(
    desk: Desk, clock: ManualClock, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for who has a view, nor for who begins with a snapshot just then; the gate shows it."""
    desk.publish(Set(ACME))
    early = a_gate(a_line(desk), clock)
    with monkeypatch.context() as patch:
        jump_over_there(desk, timedelta(days=days), patch)
        desk.publish(Set(EVE))
        late = a_gate(a_line(desk), clock)
        clock.advance(1.0)
        assert [seen(gate._known.view) for gate in (early, late)] == [{ACME, EVE}] * 2
        if not desk.__class__.__name__.startswith("File"):  # which tells when it was written, not the time
            assert abs(late.clock_skew) > 300 * 86_400
    if hasattr(desk, "feed"):
        desk.feed.now = datetime.now(UTC)
    clock.advance(1.0)
    assert [gate.allow(EVE.key) for gate in (early, late)] == [False] * 2


def test_our_own_clock_may_jump_ahead_and_come_back(desk: Desk, clock: ManualClock) -> None:
    """Locks that had ended by it are in force again, though nobody tells of them again."""
    desk.publish(Set(ACME), Set(BOB))
    gate = a_gate(a_line(desk), clock)
    clock.jump(3 * 86_400)
    clock.advance(A_POLL_S)
    assert gate.allow(ACME.key)
    assert seen(gate._known.view) == set()
    clock.jump(-3 * 86_400)
    clock.advance(A_POLL_S)
    assert not gate.allow(ACME.key)
    assert seen(gate._known.view) == desk.truth()


@pytest.mark.parametrize("skew", [-300.0, 300.0])
def test_a_lock_ends_by_our_clock_however_it_differs_and_nothing_else_depends_on_that(
    desk: Desk, skew: float
) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=skew))
    desk.publish(Set(ACME))
    gate = a_gate(a_line(desk), clock)
    assert not gate.allow(ACME.key)
    assert gate.healthy
    left_s = (ACME.until - clock.now()).total_seconds()
    clock.jump(left_s - 1)
    assert gate.check(ACME.key).retry_after == pytest.approx(1.0)
    clock.jump(1)
    assert gate.check(ACME.key) is ALLOWED
    assert gate.healthy


# -- the source is cut ----------------------------------------------------------------------------


@but_fixed
@pytest.mark.parametrize("on_stale", ["allow", "deny", "limiter"])
def test_when_the_source_is_cut_for_longer_than_its_bound_each_does_what_was_chosen(
    desk: Desk, clock: ManualClock, on_stale: str
) -> None:
    """Locks by their policy, callers without one by the application; until then nothing changes, and
    afterwards all is as before."""
    limiter = SlidingLog(2, 60.0, clock=clock)
    chosen = {"on_stale": limiter if on_stale == "limiter" else on_stale}
    desk.publish(Set(KEPT), Set(LET_GO))
    gate = a_gate(desk.source, clock, stale_after=20.0, **chosen)
    desk.break_down()
    clock.advance(19.0)
    assert [gate.allow(name) for name in (KEPT.key, LET_GO.key, FREE, FREE, FREE)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    clock.advance(2.0)
    assert not gate.healthy
    said = [gate.check(name) for name in (KEPT.key, FREE, LET_GO.key, FREE)]
    assert [bool(each) for each in said] == [
        False, *{"allow": [True] * 3, "deny": [False] * 3, "limiter": [True] * 3}[on_stale],
    ]  # fmt: skip
    assert said[0].policy == "daily"
    if on_stale == "deny":
        assert {(each.reason, each.status) for each in said[1:]} == {("stale", 503)}
    if on_stale == "limiter":
        assert [gate.check(FREE).reason, gate.check(KEPT.key).policy] == ["limited", "daily"]
    left_s = (KEPT.until - clock.now()).total_seconds()
    clock.jump(left_s)  # a lock is kept to its end, and no longer
    assert gate.allow(KEPT.key) is (on_stale != "deny")
    clock.jump(-left_s)
    desk.mend()
    clock.advance(CEILING_S + 1)
    assert gate.healthy
    assert [gate.allow(name) for name in (KEPT.key, LET_GO.key, FREE)] == [False, False, True]
    gate.close()


@but_fixed
def test_a_lock_that_is_lifted_while_the_source_is_away_is_so_when_it_is_back(
    desk: Desk, clock: ManualClock
) -> None:
    desk.publish(Set(KEPT), Set(ACME))
    gate = a_gate(desk.source, clock)
    desk.publish(Clear(KEPT.at), Set(BOB))
    desk.break_down()
    clock.advance(300.0)
    assert not gate.allow(KEPT.key)
    desk.mend()
    clock.advance(CEILING_S + 1)
    assert seen(gate._known.view) == desk.truth() == {ACME, BOB}
    gate.close()
