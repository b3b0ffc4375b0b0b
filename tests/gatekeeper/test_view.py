"""The view: locks by key, and how updates change it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.feed import feed_json
from gatekeeper.feed.poller import GateKnowledge, Poller
from gatekeeper.model import Change, Clear, Cursor, Lock, Rate, Set, Update
from gatekeeper.testing import ManualClock
from gatekeeper.view.lock_tuples import epoch_ns, pack_lock
from gatekeeper.view.lock_view import (
    EMPTY,
    IGNORED_MAX,
    NEVER_NS,
    LockView,
    RequestScopes,
    ViewOutOfStep,
    apply,
    with_locks,
    without_ended,
)
from tests.support.feed import NOON, HandFeed, UnreliableSource, a_lock

ACME = a_lock("api_key:acme")
BOB = a_lock("user:bob")


def an_update(
    *changes: Change,
    since: int | None = 1,
    to: int = 2,
    mark: str | None = None,
    unknown: tuple[str, ...] = (),
) -> Update:
    at = Cursor(to, mark or f"m{to}")
    return Update(at, since, since is None, NOON, 0.0, 0.4, changes, unknown)


def a_view(*locks: Lock) -> LockView:
    return apply(EMPTY, an_update(*map(Set, locks), since=None, to=1))


def test_a_snapshot_replaces_everything() -> None:
    assert list(apply(a_view(ACME), an_update(Set(BOB), since=None, to=2))) == [BOB]


def test_changes_apply_in_their_order() -> None:
    view = apply(a_view(), an_update(Set(ACME), Clear(ACME.at), Set(BOB), Clear(ACME.at), Set(ACME)))
    assert set(view) == {ACME, BOB}
    assert view.at == Cursor(2, "m2")


def test_a_lock_set_again_replaces_the_first() -> None:
    longer = a_lock("api_key:acme", ends_in=7200)
    assert list(apply(a_view(ACME), an_update(Set(longer)))) == [longer]


def test_clearing_one_lock_leaves_the_others_of_the_caller() -> None:
    other_policy = a_lock("api_key:acme", "flood")
    other_resource = a_lock("api_key:acme", resource="/v1/export")
    view = apply(a_view(ACME, other_policy, other_resource), an_update(Clear(ACME.at)))
    assert set(view) == {other_policy, other_resource}


def test_clearing_an_unknown_lock_changes_nothing() -> None:
    assert list(apply(a_view(ACME), an_update(Clear(BOB.at)))) == [ACME]


@pytest.mark.parametrize(
    "update",
    [
        an_update(since=3, to=4),
        an_update(since=0, to=1),
        an_update(since=1, to=0),
        an_update(since=1, to=1, mark="another"),
        an_update(Set(BOB), since=1, to=1),
    ],
    ids=["a gap", "repeated", "backwards", "another history", "changes without a version"],
)
def test_an_update_that_does_not_follow_from_the_view_is_rejected(update: Update) -> None:
    with pytest.raises(ViewOutOfStep):
        apply(a_view(ACME), update)


def test_changes_before_any_snapshot_are_rejected() -> None:
    with pytest.raises(ViewOutOfStep):
        apply(EMPTY, an_update(Set(ACME)))


def test_an_answer_without_changes_returns_the_same_view() -> None:
    view = a_view(ACME)
    assert apply(view, an_update(since=1, to=1)) is view


def test_the_old_view_does_not_change() -> None:
    """Requests may be reading it."""
    before = a_view(ACME)
    after = apply(before, an_update(Set(BOB), Clear(ACME.at)))
    assert (list(before), list(after)) == ([ACME], [BOB])


def test_locks_that_have_ended_are_pruned_at_their_end_and_not_before() -> None:
    view = a_view(ACME, a_lock("user:bob", ends_in=10))
    end = epoch_ns(a_lock(ends_in=10).until)
    assert without_ended(view, end - 1) is view
    assert list(without_ended(view, end)) == [ACME]
    assert without_ended(view, end).next_end_ns == epoch_ns(ACME.until)
    assert without_ended(view, epoch_ns(ACME.until)).next_end_ns == NEVER_NS


def test_the_end_of_a_lock_is_exact() -> None:
    ends = [epoch_ns(a_lock(ends_in=seconds).until) for seconds in (0, 0.000001)]
    assert ends[1] - ends[0] == 1_000
    assert epoch_ns(a_lock().until) == int((NOON + timedelta(hours=1)).timestamp()) * 10**9


def test_a_lock_narrowed_to_a_resource_applies_to_that_resource_alone() -> None:
    view = a_view(a_lock(resource="/v1/export"))
    scopes = RequestScopes("api_key:acme")
    found = [view.matching(scopes._replace(resource=name)) for name in ("/v1/export", "/v1/items", "")]
    assert [len(locks) for locks in found] == [1, 0, 0]


def test_unknown_words_are_ignored_and_counted() -> None:
    changes = [
        Set(a_lock("earth", scope="planet")),
        Set(a_lock("range4", scope="range4")),
        Set(a_lock("203.0.113.0/240", scope="range")),
        Set(a_lock("api_key:acme", action="delay")),
        Set(a_lock("api_key:acme", action="slow")),
        Set(a_lock("api_key:acme", "flood", on_stale="ask")),
        Set(a_lock("api_key:acme", "other", action="delay")),
    ]
    view = apply(a_view(), an_update(*changes, unknown=("op warn",)))
    assert [lock.policy for lock in view] == ["flood"]
    assert view.ignored == {
        "op warn": 1,
        "scope planet": 1,
        "scope range4": 1,
        "malformed range": 1,
        "action delay": 2,
        "action slow without a rate": 1,
        "on_stale ask": 1,
    }


def test_a_lock_whose_action_becomes_unknown_is_no_longer_enforced() -> None:
    view = apply(a_view(ACME), an_update(Set(a_lock("api_key:acme", action="warn"))))
    assert list(view) == []


def test_the_number_of_unknown_words_counted_apart_is_bounded() -> None:
    view = apply(a_view(), an_update(unknown=tuple(f"op {n}" for n in range(1000))))
    assert len(view.ignored) == IGNORED_MAX + 1
    assert sum(view.ignored.values()) == 1000


def test_a_view_can_be_made_from_locks_without_a_version() -> None:
    view = with_locks(EMPTY, map(pack_lock, [ACME, BOB]))
    assert (set(view), view.at, list(EMPTY)) == ({ACME, BOB}, None, [])


# -- lost, repeated and incomplete answers --------------------------------------------------------


LOCKS = [
    a_lock(caller, policy, **narrowed)
    for caller in ("api_key:acme", "user:bob")
    for policy in ("daily", "flood")
    for narrowed in ({}, {"resource": "/v1/export"})
] + [
    a_lock("", scope="everyone"),
    a_lock("/v1/search", scope="resource"),
    a_lock("/v1/{id}", scope="resource"),
    a_lock("acme", scope="tenant"),
    a_lock("192.0.2.0/24", scope="range"),
    a_lock("::ffff:192.0.2.7/120", scope="range"),  # the range above, in another spelling
    a_lock("2001:db8::/32", scope="range"),
    a_lock("2001:db8::1", scope="address", action="slow", slow=Rate(1)),
]

CHANGES = st.sampled_from(LOCKS).flatmap(lambda lock: st.sampled_from([Set(lock), Clear(lock.at)]))
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(CHANGES, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["prune", "backup", "restore"]), st.none()),
    st.tuples(st.just("poll"), st.sampled_from(["well", "well", "lost", "half", "again", "raises"])),
)


@given(st.lists(STEPS, max_size=30))
def test_after_lost_repeated_and_incomplete_answers_the_view_equals_the_locks(
    steps: list[tuple[str, object]],
) -> None:
    clock, feed = ManualClock(), HandFeed()
    line = UnreliableSource(lambda since: feed_json.load(feed_json.dump(feed.fetch(since))))
    poller = Poller(line, clock, GateKnowledge(), pace_max_s=15.0, view_file=None)
    backup = feed.backup()
    for step, argument in [*steps, ("poll", "well"), ("poll", "well")]:
        match step:
            case "publish":
                feed.publish(*argument)
            case "prune":
                feed.prune()
            case "backup":
                backup = feed.backup()
            case "restore":
                feed.restore(backup)
            case "poll":
                line.fault = str(argument)
                clock.advance(11.0)  # beyond the longest delay
                poller.step()
    assert {lock.at: lock for lock in poller.known.view} == feed.locks
    assert poller.known.view.at == feed.at
