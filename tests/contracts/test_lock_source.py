"""What every LockSource promises, whatever it reads: a desk writes, the source tells."""

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

from analyzer.store.database.schema import lock_changes, locks
from analyzer.store.transaction import lock_feed as feed_store
from gatekeeper.feed import feed_json
from gatekeeper.model import Change, Clear, Cursor, Lock, LockKey, Set, SourceError, Update
from gatekeeper.sources import open_source
from gatekeeper.sources.http import TryLater
from gatekeeper.view.lock_view import EMPTY, LockView, ViewOutOfStep, apply
from tests.contracts.desks import (
    ACME,
    BOB,
    EVE,
    NOW,
    Desk,
    FileDesk,
    HttpDesk,
    SqlDesk,
    a_lock,
    but_fixed,
    caught_up,
    seen,
    with_a_clock_by_hand,
)  # fmt: skip


def test_the_first_answer_is_a_snapshot_of_every_lock(desk: Desk) -> None:
    desk.publish(Set(ACME), Set(BOB))
    update = desk.source.fetch(None)
    assert (update.snapshot, update.since, update.unknown) == (True, None, ())
    assert seen(apply(EMPTY, update)) == {ACME, BOB}


def test_a_feed_without_locks_has_a_version_too(desk: Desk) -> None:
    update = desk.source.fetch(None)
    assert (update.snapshot, update.changes) == (True, ())
    assert caught_up(apply(EMPTY, update), desk).at == update.at


def test_without_news_there_are_no_changes(desk: Desk) -> None:
    desk.publish(Set(ACME))
    at = desk.source.fetch(None).at
    update = desk.source.fetch(at)
    assert (update.at, update.since, update.snapshot, update.changes) == (at, at.version, False, ())


def test_asking_twice_gets_the_same_twice(desk: Desk) -> None:
    """So a lost answer costs nothing."""
    desk.publish(Set(ACME))
    at = desk.source.fetch(None).at
    desk.publish(Set(BOB))
    first, second = desk.source.fetch(at), desk.source.fetch(at)
    assert (first.at, first.snapshot, first.changes) == (second.at, second.snapshot, second.changes)


def test_what_changes_is_told_in_order(desk: Desk) -> None:
    desk.publish(Set(ACME), Set(BOB))
    view = caught_up(EMPTY, desk)
    desk.publish(Clear(ACME.at), Set(EVE))
    desk.publish(Set(a_lock(hours=48)))
    assert seen(caught_up(view, desk)) == {BOB, EVE, a_lock(hours=48)}
    desk.publish(Clear(BOB.at))
    assert seen(caught_up(caught_up(view, desk), desk)) == {EVE, a_lock(hours=48)}


def test_clearing_one_lock_leaves_the_others_of_the_caller(desk: Desk) -> None:
    desk.publish(Set(ACME), Set(a_lock(policy="flood")), Set(a_lock(resource="/v1/export")))
    view = caught_up(EMPTY, desk)
    desk.publish(Clear(ACME.at))
    assert seen(caught_up(view, desk)) == {a_lock(policy="flood"), a_lock(resource="/v1/export")}


def test_a_cursor_of_another_history_gets_a_snapshot(desk: Desk) -> None:
    desk.publish(Set(ACME))
    at = desk.source.fetch(None).at
    for stranger in (Cursor(at.version, "another"), Cursor(at.version + 1, at.mark), Cursor(-1, at.mark)):
        assert desk.source.fetch(stranger).snapshot


def test_after_a_restore_from_an_older_copy_everybody_gets_a_snapshot(desk: Desk) -> None:
    """Also when the versions that were given before are given again, for other locks."""
    desk.publish(Set(ACME))
    kept = desk.backup()
    desk.publish(Set(BOB))
    ahead = caught_up(EMPTY, desk)
    desk.restore(kept)
    assert seen(caught_up(ahead, desk)) == {ACME}
    desk.publish(Set(EVE))
    assert seen(caught_up(ahead, desk)) == {ACME, EVE}
    desk.publish(Clear(ACME.at))
    assert seen(caught_up(ahead, desk)) == {EVE}


@but_fixed
def test_a_source_that_is_away_says_so_and_is_found_again(desk: Desk) -> None:
    desk.publish(Set(ACME))
    view = caught_up(EMPTY, desk)
    desk.break_down()
    for _ in range(2):
        with pytest.raises(SourceError):
            desk.source.fetch(view.at)
    desk.mend()
    assert ACME in caught_up(view, desk)


def test_a_closed_source_opens_again(desk: Desk) -> None:
    desk.publish(Set(ACME))
    desk.source.close()
    desk.source.close()
    assert seen(caught_up(EMPTY, desk)) == {ACME}


def test_the_answer_says_what_time_it_is_and_when_to_ask_again(desk: Desk) -> None:
    if hasattr(desk, "feed") and not isinstance(desk, FileDesk):
        desk.feed.now = datetime.now(UTC)
    update = desk.source.fetch(None)
    assert abs(update.now - datetime.now(UTC)) < timedelta(seconds=5)
    assert update.now.tzinfo is not None
    assert 0 < update.next_poll <= 10


def locked_by(some: random.Random, people: int) -> list[Change]:
    """A flush's worth of changes, each lock at most once in it."""
    callers = some.sample(range(people), some.randint(1, 20))
    return [
        Set(a_lock(f"user:{n}", hours=some.randint(1, 99)))
        if some.random() < 0.6
        else Clear(a_lock(f"user:{n}").at)
        for n in callers
    ]


def held_by(changes: list[Change]) -> dict[LockKey, Lock]:
    """The slow obvious answer."""
    held: dict[LockKey, Lock] = {}
    for change in changes:
        held.pop(change.at, None)
        if isinstance(change, Set):
            held[change.at] = change.lock
    return held


def test_after_a_storm_of_changes_the_view_equals_the_locks(desk: Desk) -> None:
    """Polls come in its midst, some of their answers get lost, and some come twice."""
    some, said, view = random.Random(6), [], caught_up(EMPTY, desk)
    for _ in range(40):
        changes = locked_by(some, 200)
        desk.publish(*changes)
        said += changes
        if some.random() < 0.5:
            update = desk.source.fetch(view.at)
            if some.random() < 0.7:
                view = apply(view, update)
                with suppress(ViewOutOfStep):
                    view = apply(view, update)
    assert seen(caught_up(view, desk)) == set(held_by(said).values())


@but_fixed
def test_a_poll_in_the_midst_of_a_storm_gets_whole_versions(desk: Desk) -> None:
    """One thread changes both locks at once, again and again; nobody ever sees one without the other."""
    view, over = caught_up(EMPTY, desk), threading.Event()

    def storm() -> None:
        for turn in range(40):
            both = (ACME, EVE)
            desk.publish(*([Clear(lock.at) for lock in both] if turn % 2 else map(Set, both)))
        over.set()

    thread = threading.Thread(target=storm)
    thread.start()
    while not over.is_set():
        view = caught_up(view, desk)
        assert len(seen(view)) in (0, 2)
    thread.join()
    assert seen(caught_up(view, desk)) == set()


def patiently_caught_up(view: LockView, desk: Desk) -> LockView:
    """As a gate does it: a server that cannot read so many in its time says when to come again."""
    for _ in range(10):
        with suppress(TryLater):
            return caught_up(view, desk)
    return caught_up(view, desk)


# Where there is something between the lock and the gate; over HTTP, by what the database is behind it.
@pytest.mark.slow
@pytest.mark.parametrize("desk", ["file", "sqlite", "http-postgresql"], indirect=True)
def test_a_hundred_thousand_locks_arrive_whole_and_go_one_by_one(desk: Desk) -> None:
    number = 100_000
    locks = [a_lock(f"user:{n}") for n in range(number)]
    for begin in range(0, number, 50_000):  # in two: a file is written anew for each
        desk.publish(*map(Set, locks[begin : begin + 50_000]))
    view = patiently_caught_up(EMPTY, desk)
    assert seen(view) == set(locks)
    desk.publish(*(Clear(lock.at) for lock in locks[::1000]))
    view = patiently_caught_up(view, desk)
    assert len(seen(view)) == number - len(locks[::1000])
    assert not {lock.key for lock in view} & {lock.key for lock in locks[::1000]}


@with_a_clock_by_hand
@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
def test_whatever_time_it_is_over_there_the_locks_are_the_same(desk: Desk, jump: timedelta) -> None:
    desk.publish(Set(ACME))
    view = caught_up(EMPTY, desk)
    desk.feed.now += jump
    desk.publish(Set(EVE), Clear(ACME.at))
    assert seen(caught_up(view, desk)) == {EVE}


# -- over SQL, where there is a history ----------------------------------------------------------


def test_changes_are_told_as_changes_while_they_are_kept(sql_desk: SqlDesk) -> None:
    sql_desk.publish(Set(ACME))
    at = sql_desk.source.fetch(None).at
    sql_desk.publish(Set(BOB), Clear(ACME.at))
    sql_desk.publish(Set(EVE))
    update = sql_desk.source.fetch(at)
    assert (update.snapshot, update.since) == (False, at.version)
    assert sorted(update.changes[:2], key=repr) == sorted([Set(BOB), Clear(ACME.at)], key=repr)
    assert update.changes[2:] == (Set(EVE),)


def test_who_asks_for_what_was_pruned_gets_a_snapshot(sql_desk: SqlDesk) -> None:
    cursors = []
    for lock in (ACME, BOB, EVE):
        sql_desk.publish(Set(lock))
        cursors.append(sql_desk.source.fetch(None).at)
    sql_desk.prune()
    if not isinstance(sql_desk, HttpDesk):  # a server may remember what the database has forgotten
        assert [sql_desk.source.fetch(at).snapshot for at in cursors] == [True, True, False]
    assert seen(apply(EMPTY, sql_desk.source.fetch(cursors[0]))) == {ACME, BOB, EVE}


def test_what_a_later_analyzer_says_is_passed_over_and_the_rest_is_heard(sql_desk: SqlDesk) -> None:
    sql_desk.publish(Set(ACME))
    view = caught_up(EMPTY, sql_desk)
    sql_desk.publish(Set(BOB), Set(EVE), Clear(ACME.at))
    with sql_desk.engine.begin() as db:
        newer = sa.and_(lock_changes.c.op == "set", lock_changes.c.key == EVE.key)
        db.execute(sa.update(lock_changes).where(newer).values(op="warn"))
    assert seen(caught_up(view, sql_desk)) == {BOB}


LOCKS = [a_lock(caller, policy) for caller in ("api_key:acme", "user:bob") for policy in ("daily", "flood")]
STEPS = st.one_of(
    st.tuples(
        st.just("publish"),
        st.lists(st.sampled_from(LOCKS), min_size=1, max_size=3, unique=True).flatmap(
            lambda some: st.tuples(*(st.sampled_from([Set(lock), Clear(lock.at)]) for lock in some))
        ),
    ),
    st.tuples(st.sampled_from(["prune", "backup", "restore", "poll", "poll", "lost"]), st.just(())),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=12))
def test_whatever_happens_to_the_feed_the_next_poll_makes_the_view_equal_to_the_locks(
    sql_desk: SqlDesk, steps: list[tuple[str, tuple[Change, ...]]]
) -> None:
    view, kept = EMPTY, sql_desk.backup()
    for step, changes in [*steps, ("poll", ())]:
        match step:
            case "publish":
                sql_desk.publish(*changes)
            case "prune":
                sql_desk.prune()
            case "backup":
                kept = sql_desk.backup()
            case "restore":
                sql_desk.restore(kept)
            case "lost":
                sql_desk.source.fetch(view.at)
            case "poll":
                view = caught_up(view, sql_desk)
    with sql_desk.engine.begin() as db:
        truth = {feed_store.lock_of(row) for row in db.execute(sa.select(locks))}
    assert seen(view) == truth


# -- the file ------------------------------------------------------------------------------------


class TestFile:
    @pytest.fixture
    def desk(self, tmp_path: Path) -> FileDesk:
        return FileDesk(tmp_path / "locks.json")

    def test_a_file_that_is_half_written_is_not_half_a_view(self, desk: FileDesk) -> None:
        desk.publish(Set(ACME))
        view = caught_up(EMPTY, desk)
        text = desk.path.read_text()
        for size in range(0, len(text), 7):
            desk.path.write_text(text[:size])
            with pytest.raises(SourceError, match=r"locks\.json"):
                desk.source.fetch(view.at)
        desk.path.write_text(text)
        assert not desk.source.fetch(view.at).changes

    def test_a_file_edited_by_hand_is_read_though_its_version_stayed(self, desk: FileDesk) -> None:
        desk.publish(Set(ACME))
        view = caught_up(EMPTY, desk)
        edited = desk.path.read_text().replace("api_key:acme", "api_key:bobs")
        desk.path.write_text(edited)
        with pytest.raises(SourceError, match="checksum"):
            desk.source.fetch(view.at)
        desk.path.write_text(edited.replace('"checksum"', '"was"'))
        desk.source.fetch(view.at)  # an answer that is lost
        assert [lock.key for lock in caught_up(view, desk)] == ["api_key:bobs"]

    def test_an_unchanged_file_is_not_read_again(
        self, desk: FileDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at = desk.source.fetch(None).at
        monkeypatch.setattr(feed_json, "load", None)
        assert desk.source.fetch(at).at == at

    def test_a_file_that_nobody_renews_falls_behind(self, desk: FileDesk) -> None:
        desk.feed.now, desk.feed.behind = datetime.now(UTC) - timedelta(hours=1), 5.0
        desk.publish(Set(ACME))
        assert 3605 <= desk.source.fetch(None).behind < 3700

    def test_changes_alone_are_not_enough(self, desk: FileDesk) -> None:
        update = Update(Cursor(2, "m2"), 1, False, NOW, 0.0, 0.4, ())
        desk.path.write_text(feed_json.dump(update))
        with pytest.raises(SourceError, match="expected a snapshot, got the changes since version 1"):
            desk.source.fetch(None)

    def test_a_log_that_was_named_by_mistake_is_not_read_into_memory(self, desk: FileDesk) -> None:
        os.truncate(desk.path, 100 << 20)
        with pytest.raises(SourceError, match="is this the right file"):
            desk.source.fetch(None)


# -- by URL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost", "no source reads 'redis' URLs: expected https://host:port, postgresql"),
        ("https://", "expected https://host:port"),
        ("https://ann:secret@gatelock:8080", "token goes into `token`"),
        ("postgresql://localhost/gatelock", r"for PostgreSQL write postgresql\+psycopg://"),
        ("sqlite://", "expected the analyzer's file"),
        ("sqlite:///:memory:", "expected the analyzer's file"),
        ("file://elsewhere/locks.json", "expected a file on this machine"),
        ("locks.json", "no source reads 'locks.json' URLs"),
    ],
)
def test_a_url_that_nothing_reads_names_those_that_are(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        open_source(url)
