"""Taking over many locks holds nobody up: between two pauses lies less than a millisecond of work."""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.store.database.engine import open_engine
from analyzer.store.transaction import lock_feed
from gatekeeper import Gate
from gatekeeper.feed import feed_json
from gatekeeper.feed.saved_view import ViewFile
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Set, Update
from gatekeeper.sources import open_source
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.sources.shared_poller import SharedSource
from gatekeeper.testing import ManualClock
from gatekeeper.view import cooperative
from gatekeeper.view.lock_tuples import PackedChanges, end_ns
from gatekeeper.view.lock_view import EMPTY, LockView, RequestScopes, apply, without_ended
from gatekeeper.view.sharded_table import SHARDED_ABOVE, ShardedTable, release
from tests.support.feed import NOON, HandFeed, a_lock

MANY = 100_000
HELD_UP_NS = 2_000_000  # 1 ms is promised on a machine that is not busy; beside other tests a cache is cold


def an_update(changes: PackedChanges | tuple[Change, ...], since: int | None, to: int) -> Update:
    return Update(Cursor(to, "m"), since, since is None, NOON, 0.0, 0.4, changes)


def many_locks(ends_in: float = 3600.0) -> Iterator[Lock]:
    return (a_lock(f"api_key:{number:08d}", ends_in=ends_in + number) for number in range(MANY))


@pytest.fixture(scope="module")
def snapshot() -> Update:
    return an_update(PackedChanges(map(Set, many_locks())), None, 1)


@pytest.fixture(scope="module")
def large(snapshot: Update) -> LockView:
    return apply(EMPTY, snapshot)


def note(moments: array[int]) -> None:
    moments.append(time.thread_time_ns())


def longest_ns(
    work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tries: int = 3, skip: int = 0
) -> int:
    """The longest stretch without a pause, but for the first `skip`, by this thread's own time; the best of
    a few tries, because the machine has other work too."""
    best = 1 << 62
    for _ in range(tries):
        moments = array("q", [time.thread_time_ns()])
        monkeypatch.setattr(cooperative, "pause", partial(note, moments))
        result = work()
        note(moments)
        best = min(best, max(after - before for before, after in pairwise(moments[skip:])))
        monkeypatch.undo()
        del result
    return best


def test_a_snapshot_of_many_locks(snapshot: Update, large: LockView, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(large) == MANY
    assert isinstance(large.tables["caller"], ShardedTable)
    assert longest_ns(lambda: apply(EMPTY, snapshot), monkeypatch) < HELD_UP_NS


def test_a_storm_of_changes(large: LockView, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    some = [a_lock(f"api_key:{chance.randrange(2 * MANY):08d}", ends_in=9999) for _ in range(10_000)]
    changes = PackedChanges(Set(lock) if number % 3 else Clear(lock.at) for number, lock in enumerate(some))
    assert longest_ns(lambda: apply(large, an_update(changes, 1, 2)), monkeypatch) < HELD_UP_NS


def test_ended_locks_are_pruned_in_pieces(large: LockView, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = end_ns(a_lock(ends_in=3600 + MANY / 2))
    assert len(without_ended(large, now_ns)) == MANY / 2 - 1
    assert longest_ns(lambda: without_ended(large, now_ns), monkeypatch, tries=2) < HELD_UP_NS


def test_changes_are_packed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = list(map(Set, many_locks()))
    assert longest_ns(lambda: PackedChanges(changes), monkeypatch, tries=2) < HELD_UP_NS


def test_an_answer_of_many_locks_is_read_in_pieces(snapshot: Update, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes out of a file, or from a server."""
    fewer = snapshot._replace(changes=list(snapshot.changes)[: MANY // 4])
    text = feed_json.dump(fewer).encode()
    assert feed_json.load(text).changes == tuple(fewer.changes)
    assert longest_ns(lambda: feed_json.load(text), monkeypatch) < HELD_UP_NS


def test_many_locks_are_read_out_of_a_database_in_pieces(
    snapshot: Update, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before the first pause is the question, which takes as long when there are no locks."""
    engine = open_engine(migrated_url)
    fewer = list(snapshot.changes)[: MANY // 4]
    with engine.begin() as db:
        lock_feed.publish(db, fewer, "m1")
    engine.dispose()
    source = open_source(migrated_url)
    try:
        assert source.fetch(None).changes == tuple(fewer)
        assert longest_ns(lambda: source.fetch(None), monkeypatch, skip=1) < HELD_UP_NS
    finally:
        source.close()


SEALED_NS = 50_000_000  # to sum up a file and to put it in its place takes a while, and nobody's turn


@pytest.fixture
def nothing_old() -> None:
    """The collector looks at what these tests make, not at what others left."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("nothing_old")
def test_a_view_is_kept_and_recalled_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = apply(EMPTY, an_update(PackedChanges(map(Set, islice(many_locks(), MANY // 4))), None, 1))
    shelf = ViewFile(tmp_path / "view")
    assert longest_ns(lambda: shelf.keep(view, NOON, 0.0), monkeypatch, tries=1) < SEALED_NS
    assert longest_ns(lambda: shelf.recall(NOON), monkeypatch, tries=1) < SEALED_NS
    found = shelf.recall(NOON)
    assert found is not None
    assert set(found.locks) == set(view)


@pytest.mark.usefixtures("nothing_old")
def test_what_one_process_asks_for_the_others_is_written_and_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = list(islice(many_locks(), MANY // 4))
    lock_feed = FixedSource(*locks)
    leader, other = (SharedSource(lock_feed, tmp_path / "view", 1e9, time.monotonic) for _ in range(2))
    try:
        assert longest_ns(lambda: leader.fetch(None), monkeypatch, tries=1) < SEALED_NS
        assert longest_ns(lambda: other.fetch(None), monkeypatch, tries=1) < SEALED_NS
        assert not other.leads
        assert other.fetch(None).changes == tuple(map(Set, locks))
    finally:
        leader.close()
        other.close()


def test_a_few_changes_to_many_locks_never_pause(large: LockView, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("paused")

    monkeypatch.setattr(cooperative, "pause", never)
    changed = apply(large, an_update((Set(a_lock("user:new")),), 1, 2))
    assert changed.of(RequestScopes("user:new"))


def test_old_tables_are_given_back_in_steps_and_nobody_sees_them_half_empty(large: LockView) -> None:
    old = list(apply(EMPTY, an_update(PackedChanges(map(Set, many_locks())), None, 1)).tables.values())
    reader = next(table for table in old if isinstance(table, ShardedTable))
    steps = 0
    for _ in release(old, large.tables.values()):
        steps += 1
        if steps == 500:
            assert len(reader) == MANY
    assert steps >= MANY / 100


def test_what_both_views_share_is_not_given_back(large: LockView) -> None:
    after = apply(large, an_update((Set(a_lock("user:new")),), 1, 2))
    steps = sum(1 for _ in release(list(large.tables.values()), after.tables.values()))
    assert steps <= 2 * MANY / 256 / 100 + 1
    assert len(large) == MANY


CALLERS = [f"user:{number}" for number in range(40)]
CHANGES = st.lists(st.tuples(st.sampled_from(CALLERS), st.sampled_from(["daily", "flood"]), st.booleans()))


@given(st.lists(CHANGES, max_size=8), st.sampled_from([0, 8, 20, SHARDED_ABOVE]))
def test_small_and_large_tables_say_the_same(
    versions: list[list[tuple[str, str, bool]]], spread_at: int
) -> None:
    """Against a dict of all locks, at every size at which a table is cut or joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatekeeper.view.sharded_table.SHARDED_ABOVE", spread_at)
        view, locks, at = apply(EMPTY, an_update((), None, 1)), dict[LockKey, Lock](), 1
        for version in versions:
            changes = [
                Set(a_lock(caller, policy)) if sets else Clear(a_lock(caller, policy).at)
                for caller, policy, sets in version
            ]
            for change in changes:
                locks.pop(change.at, None)
                if isinstance(change, Set):
                    locks[change.at] = change.lock
            view = apply(view, an_update(tuple(changes), at, at + 1))
            at += 1
            assert {lock.at: lock for lock in view} == locks
            assert len(view) == len({lock.key for lock in locks.values()})
            for caller in CALLERS:
                wanted = {at.policy for at in locks if at.key == caller}
                assert {held[2] for held in view.of(RequestScopes(caller))} == wanted
                assert (caller in view.tables["caller"]) == bool(wanted)


def test_packed_changes_are_those_that_went_in() -> None:
    changes = (Set(a_lock()), Clear(a_lock("user:bob").at), Set(a_lock("user:eve", action="tag")))
    packed = PackedChanges(changes)
    assert (tuple(packed), packed, packed[1], packed[:2]) == (changes, changes, changes[1], changes[:2])
    assert (len(packed), bool(PackedChanges(())), hash(packed)) == (3, False, hash(changes))


def test_who_is_locked_before_and_after_is_never_let_through() -> None:
    """By another lock after than before, so that no single key tells it."""
    lock_feed, clock = HandFeed(a_lock("api_key:acme")), ManualClock()
    gate = Gate(lock_feed, clock=clock)
    assert gate.ready(1.0)
    answers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative, "WORK_NS", 0)  # a pause at each step of the work
        patch.setattr(
            cooperative, "pause", lambda: answers.append(gate.check("api_key:acme", tenant="acme").policy)
        )
        others = [a_lock(f"user:{number}") for number in range(200)]
        lock_feed.publish(Clear(a_lock("api_key:acme").at), *map(Set, others))
        lock_feed.publish(Set(a_lock("acme", "contract", scope="tenant")))
        clock.advance(0.5)
    assert len(answers) > 20
    assert set(answers) == {"daily"}
    assert gate.check("api_key:acme", tenant="acme").policy == "contract"
