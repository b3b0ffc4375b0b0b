"""The contract of LockSource: what a publisher writes, every source returns."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.judging.locks import lock_feed as feed_store
from analyzer.kernel.tables.schema import lock_changes, locks
from gatekeeper.feed import feed_json
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Set, SourceError, Update
from gatekeeper.sources import open_source
from gatekeeper.sources.http import TryLater
from gatekeeper.view.lock_view import EMPTY, LockView, ViewOutOfStep, apply
from tests.contracts.lock_publishers import (
    ACME,
    BOB,
    EVE,
    NOW,
    FilePublisher,
    HttpPublisher,
    LockPublisher,
    SqlPublisher,
    a_lock,
    except_fixed,
    locks_of,
    updated,
    with_settable_clock,
)  # fmt: skip
from tests.support.depth import deeper


def test_the_first_answer_is_a_snapshot_of_every_lock(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME), Set(BOB))
    update = publisher.source.fetch(None)
    assert (update.snapshot, update.since, update.unknown) == (True, None, ())
    assert locks_of(apply(EMPTY, update)) == {ACME, BOB}


def test_a_feed_without_locks_has_a_version_too(publisher: LockPublisher) -> None:
    update = publisher.source.fetch(None)
    assert (update.snapshot, update.changes) == (True, ())
    assert updated(apply(EMPTY, update), publisher).at == update.at


def test_without_a_new_version_the_changes_are_empty(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME))
    at = publisher.source.fetch(None).at
    update = publisher.source.fetch(at)
    assert (update.at, update.since, update.snapshot, update.changes) == (at, at.version, False, ())


def test_fetching_twice_returns_the_same_changes(publisher: LockPublisher) -> None:
    """So a lost answer costs nothing."""
    publisher.publish(Set(ACME))
    at = publisher.source.fetch(None).at
    publisher.publish(Set(BOB))
    first, second = publisher.source.fetch(at), publisher.source.fetch(at)
    assert (first.at, first.snapshot, first.changes) == (second.at, second.snapshot, second.changes)


def test_changes_come_in_order(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME), Set(BOB))
    view = updated(EMPTY, publisher)
    publisher.publish(Clear(ACME.at), Set(EVE))
    publisher.publish(Set(a_lock(hours=48)))
    assert locks_of(updated(view, publisher)) == {BOB, EVE, a_lock(hours=48)}
    publisher.publish(Clear(BOB.at))
    assert locks_of(updated(updated(view, publisher), publisher)) == {EVE, a_lock(hours=48)}


def test_clearing_one_lock_leaves_the_others_of_the_caller(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME), Set(a_lock(policy="flood")), Set(a_lock(resource="/v1/export")))
    view = updated(EMPTY, publisher)
    publisher.publish(Clear(ACME.at))
    assert locks_of(updated(view, publisher)) == {a_lock(policy="flood"), a_lock(resource="/v1/export")}


def test_locks_by_a_named_value_arrive_as_they_were_set(publisher: LockPublisher) -> None:
    locks = [
        a_lock("large", scope="value:model"),
        a_lock(scope="caller+value:model", resource="large"),
        a_lock("acme-inc", scope="tenant+value:model", resource='a "large" model'),
    ]
    publisher.publish(*map(Set, locks))
    view = updated(EMPTY, publisher)
    assert locks_of(view) == set(locks)
    publisher.publish(Clear(locks[1].at))
    assert locks_of(updated(view, publisher)) == {locks[0], locks[2]}


def test_a_cursor_of_another_history_gets_a_snapshot(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME))
    at = publisher.source.fetch(None).at
    for cursor in (Cursor(at.version, "another"), Cursor(at.version + 1, at.mark), Cursor(-1, at.mark)):
        assert publisher.source.fetch(cursor).snapshot


def test_after_a_restore_from_an_older_copy_every_client_gets_a_snapshot(publisher: LockPublisher) -> None:
    """Even when the database counts to the same versions again, with other locks."""
    publisher.publish(Set(ACME))
    backup = publisher.backup()
    publisher.publish(Set(BOB))
    ahead = updated(EMPTY, publisher)
    publisher.restore(backup)
    assert locks_of(updated(ahead, publisher)) == {ACME}
    publisher.publish(Set(EVE))
    assert locks_of(updated(ahead, publisher)) == {ACME, EVE}
    publisher.publish(Clear(ACME.at))
    assert locks_of(updated(ahead, publisher)) == {EVE}


@except_fixed
def test_an_unavailable_source_raises_and_recovers(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME))
    view = updated(EMPTY, publisher)
    publisher.fail()
    for _ in range(2):
        with pytest.raises(SourceError):
            publisher.source.fetch(view.at)
    publisher.recover()
    assert ACME in updated(view, publisher)


def test_a_closed_source_opens_again(publisher: LockPublisher) -> None:
    publisher.publish(Set(ACME))
    publisher.source.close()
    publisher.source.close()
    assert locks_of(updated(EMPTY, publisher)) == {ACME}


def test_the_answer_has_the_sources_time_and_the_next_poll(publisher: LockPublisher) -> None:
    if hasattr(publisher, "feed") and not isinstance(publisher, FilePublisher):
        publisher.feed.now = datetime.now(UTC)
    update = publisher.source.fetch(None)
    assert abs(update.now - datetime.now(UTC)) < timedelta(seconds=5)
    assert update.now.tzinfo is not None
    assert 0 < update.next_poll <= 10


def random_changes(seeded: random.Random, callers_max: int) -> list[Change]:
    """The changes of one flush, each lock at most once."""
    callers = seeded.sample(range(callers_max), seeded.randint(1, 20))
    return [
        Set(a_lock(f"user:{n}", hours=seeded.randint(1, 99)))
        if seeded.random() < 0.6
        else Clear(a_lock(f"user:{n}").at)
        for n in callers
    ]


def locks_after(changes: list[Change]) -> dict[LockKey, Lock]:
    """The locks that these changes lead to, computed in the obvious way."""
    locks: dict[LockKey, Lock] = {}
    for change in changes:
        locks.pop(change.at, None)
        if isinstance(change, Set):
            locks[change.at] = change.lock
    return locks


def test_after_many_changes_the_view_equals_the_locks(publisher: LockPublisher) -> None:
    """With polls in between, some of whose answers get lost, and some come twice."""
    seeded, published, view = random.Random(6), [], updated(EMPTY, publisher)
    for _ in range(40):
        changes = random_changes(seeded, 200)
        publisher.publish(*changes)
        published += changes
        if seeded.random() < 0.5:
            update = publisher.source.fetch(view.at)
            if seeded.random() < 0.7:
                view = apply(view, update)
                with suppress(ViewOutOfStep):
                    view = apply(view, update)
    assert locks_of(updated(view, publisher)) == set(locks_after(published).values())


@except_fixed
def test_a_poll_during_changes_gets_whole_versions(publisher: LockPublisher) -> None:
    """A thread sets and clears two locks together, again and again; no poll sees one without the other."""
    view, ended = updated(EMPTY, publisher), threading.Event()

    def change() -> None:
        for number in range(40):
            both = (ACME, EVE)
            publisher.publish(*([Clear(lock.at) for lock in both] if number % 2 else map(Set, both)))
        ended.set()

    thread = threading.Thread(target=change)
    thread.start()
    while not ended.is_set():
        view = updated(view, publisher)
        assert len(locks_of(view)) in (0, 2)
    thread.join()
    assert locks_of(updated(view, publisher)) == set()


def updated_with_retries(view: LockView, publisher: LockPublisher) -> LockView:
    """Fetches as a gate does: a server that cannot read so many locks in time answers with Retry-After."""
    for _ in range(10):
        with suppress(TryLater):
            return updated(view, publisher)
    return updated(view, publisher)


# Sources that transform the locks; over HTTP with one of the databases.
@pytest.mark.slow
@pytest.mark.parametrize("publisher", ["file", "sqlite", "http-postgresql"], indirect=True)
@pytest.mark.deep("size")
def test_a_hundred_thousand_locks_arrive_and_can_be_cleared_one_by_one(publisher: LockPublisher) -> None:
    number = 100_000
    locks = [a_lock(f"user:{n}") for n in range(number)]
    for begin in range(0, number, 50_000):  # in two transactions
        publisher.publish(*map(Set, locks[begin : begin + 50_000]))
    view = updated_with_retries(EMPTY, publisher)
    assert locks_of(view) == set(locks)
    publisher.publish(*(Clear(lock.at) for lock in locks[::1000]))
    view = updated_with_retries(view, publisher)
    assert len(locks_of(view)) == number - len(locks[::1000])
    assert not {lock.key for lock in view} & {lock.key for lock in locks[::1000]}


@with_settable_clock
@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
def test_locks_do_not_depend_on_the_sources_clock(publisher: LockPublisher, jump: timedelta) -> None:
    publisher.publish(Set(ACME))
    view = updated(EMPTY, publisher)
    publisher.feed.now += jump
    publisher.publish(Set(EVE), Clear(ACME.at))
    assert locks_of(updated(view, publisher)) == {EVE}


# -- SQL, which keeps a history -------------------------------------------------------------------


def test_changes_come_as_changes_while_they_are_stored(sql_publisher: SqlPublisher) -> None:
    sql_publisher.publish(Set(ACME))
    at = sql_publisher.source.fetch(None).at
    sql_publisher.publish(Set(BOB), Clear(ACME.at))
    sql_publisher.publish(Set(EVE))
    update = sql_publisher.source.fetch(at)
    assert (update.snapshot, update.since) == (False, at.version)
    assert sorted(update.changes[:2], key=repr) == sorted([Set(BOB), Clear(ACME.at)], key=repr)
    assert update.changes[2:] == (Set(EVE),)


def test_a_cursor_before_the_pruned_changes_gets_a_snapshot(sql_publisher: SqlPublisher) -> None:
    views, cursors = [], []
    for lock in (ACME, BOB, EVE):
        sql_publisher.publish(Set(lock))
        views.append(apply(EMPTY, sql_publisher.source.fetch(None)))
        cursors.append(views[-1].at)
    sql_publisher.prune()
    if not isinstance(sql_publisher, HttpPublisher):  # a server may still have pruned changes in its cache
        assert [sql_publisher.source.fetch(at).snapshot for at in cursors] == [True, True, False]
    assert locks_of(updated(views[0], sql_publisher)) == {ACME, BOB, EVE}


def test_an_unknown_op_is_ignored_and_the_other_changes_apply(sql_publisher: SqlPublisher) -> None:
    sql_publisher.publish(Set(ACME))
    view = updated(EMPTY, sql_publisher)
    sql_publisher.publish(Set(BOB), Set(EVE), Clear(ACME.at))
    with sql_publisher.engine.begin() as db:
        newer = sa.and_(lock_changes.c.op == "set", lock_changes.c.key == EVE.key)
        db.execute(sa.update(lock_changes).where(newer).values(op="warn"))
    assert locks_of(updated(view, sql_publisher)) == {BOB}


LOCKS = [a_lock(caller, policy) for caller in ("api_key:acme", "user:bob") for policy in ("daily", "flood")]
STEPS = st.one_of(
    st.tuples(
        st.just("publish"),
        st.lists(st.sampled_from(LOCKS), min_size=1, max_size=3, unique=True).flatmap(
            lambda chosen: st.tuples(*(st.sampled_from([Set(lock), Clear(lock.at)]) for lock in chosen))
        ),
    ),
    st.tuples(st.sampled_from(["prune", "backup", "restore", "poll", "poll", "lost"]), st.just(())),
)


@settings(max_examples=deeper(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=12))
def test_after_any_history_of_the_feed_the_next_poll_makes_the_view_equal_to_the_locks(
    sql_publisher: SqlPublisher, steps: list[tuple[str, tuple[Change, ...]]]
) -> None:
    view, backup = EMPTY, sql_publisher.backup()
    for step, changes in [*steps, ("poll", ())]:
        match step:
            case "publish":
                sql_publisher.publish(*changes)
            case "prune":
                sql_publisher.prune()
            case "backup":
                backup = sql_publisher.backup()
            case "restore":
                sql_publisher.restore(backup)
            case "lost":
                sql_publisher.source.fetch(view.at)
            case "poll":
                view = updated(view, sql_publisher)
    with sql_publisher.engine.begin() as db:
        truth = {feed_store.lock_from_row(row) for row in db.execute(sa.select(locks))}
    assert locks_of(view) == truth


# -- files ---------------------------------------------------------------------------------------


class TestFile:
    @pytest.fixture
    def publisher(self, tmp_path: Path) -> FilePublisher:
        return FilePublisher(tmp_path / "locks.json")

    def test_a_file_that_is_not_completely_written_is_rejected(self, publisher: FilePublisher) -> None:
        publisher.publish(Set(ACME))
        view = updated(EMPTY, publisher)
        text = publisher.path.read_text()
        for size in range(0, len(text), 7):
            publisher.path.write_text(text[:size])
            with pytest.raises(SourceError, match=r"locks\.json"):
                publisher.source.fetch(view.at)
        publisher.path.write_text(text)
        assert not publisher.source.fetch(view.at).changes

    def test_a_file_edited_by_hand_is_read_again_although_its_version_did_not_change(
        self, publisher: FilePublisher
    ) -> None:
        publisher.publish(Set(ACME))
        view = updated(EMPTY, publisher)
        edited = publisher.path.read_text().replace("api_key:acme", "api_key:bobs")
        publisher.path.write_text(edited)
        with pytest.raises(SourceError, match="checksum"):
            publisher.source.fetch(view.at)
        publisher.path.write_text(edited.replace('"checksum"', '"former"'))
        publisher.source.fetch(view.at)  # an answer that is lost
        assert [lock.key for lock in updated(view, publisher)] == ["api_key:bobs"]

    def test_an_unchanged_file_is_not_read_again(
        self, publisher: FilePublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at = publisher.source.fetch(None).at
        monkeypatch.setattr(feed_json, "load", None)
        assert publisher.source.fetch(at).at == at

    def test_a_file_that_is_not_renewed_falls_behind(self, publisher: FilePublisher) -> None:
        publisher.feed.now, publisher.feed.behind = datetime.now(UTC) - timedelta(hours=1), 5.0
        publisher.publish(Set(ACME))
        assert 3605 <= publisher.source.fetch(None).behind < 3700

    def test_a_file_with_changes_instead_of_a_snapshot_is_rejected(self, publisher: FilePublisher) -> None:
        update = Update(Cursor(2, "m2"), 1, False, NOW, 0.0, 0.4, ())
        publisher.path.write_text(feed_json.dump(update))
        with pytest.raises(SourceError, match="expected a snapshot, got the changes since version 1"):
            publisher.source.fetch(None)

    def test_a_file_that_is_too_large_is_rejected(self, publisher: FilePublisher) -> None:
        os.truncate(publisher.path, 100 << 20)
        with pytest.raises(SourceError, match="is this the right file"):
            publisher.source.fetch(None)


# -- by URL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost", "no source reads 'redis' URLs: expected https://host:port, postgresql"),
        ("https://", "expected https://host:port"),
        ("https://ann:secret@gatelock:8080", "pass the token as `token`"),
        ("postgresql://localhost/gatelock", r"for PostgreSQL write postgresql\+psycopg://"),
        ("sqlite://", "expected the analyzer's file"),
        ("sqlite:///:memory:", "expected the analyzer's file"),
        ("file://elsewhere/locks.json", "expected a file on this machine"),
        ("locks.json", "no source reads 'locks.json' URLs"),
    ],
)
def test_the_error_for_an_unknown_url_names_the_known_ones(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        open_source(url)
