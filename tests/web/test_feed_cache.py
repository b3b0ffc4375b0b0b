"""The cache of the lock feed on a manual clock: when it reads the source, and how long requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from analyzer.faces.feed import feed_cache as module
from analyzer.faces.feed.feed_cache import (
    CACHED_MAX,
    FALLBACK_S,
    READ_AHEAD_S,
    REFRESH_EVERY_S,
    REFRESH_MIN_S,
    FeedCache,
)
from gatekeeper.feed import feed_json
from gatekeeper.model import Clear, Cursor, Set, SourceError
from gatekeeper.testing import ManualClock
from gatekeeper.testing.manual_loop import run
from gatekeeper.view import lock_view
from tests.support.feed import HandFeed, a_lock

T = TypeVar("T")
BOB = a_lock("user:bob")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the source at once: a thread would not wait for the manual clock."""

    def call_now(call: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again in the callers
            future.set_exception(error)
        return future

    monkeypatch.setattr(module, "run_in_thread", call_now)


class World:
    """A feed, a cache of it, and a clock that moves when everything waits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.source = HandFeed(a_lock())
        self.marks_read = 0
        self.cache = FeedCache(self.source, self.clock.uptime_s, mark_of=self.version_mark)
        self.started_s = self.clock.uptime_s()

    @property
    def elapsed_s(self) -> float:
        return self.clock.uptime_s() - self.started_s

    @property
    def reads(self) -> int:
        return len(self.source.fetches)

    def version_mark(self, version: int) -> str | None:
        self.marks_read += 1
        return self.source.version_mark(version)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return run(story, self.clock)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    async def version(self, cursor: Cursor | None = None, wait_s: float = 0.0) -> int:
        return (await self.cache.state(cursor, wait_s)).update.at.version

    async def pace(self, cursor: Cursor | None = None, wait_s: float = 0.0) -> float:
        return (await self.cache.state(cursor, wait_s)).update.next_poll

    async def changes(self, since: Cursor | None) -> bytes:
        state = await self.cache.state(since, 0)
        return b"".join((await self.cache.answer(since, state, self.clock.uptime_s())).parts())


@pytest.fixture
def world() -> World:
    return World()


# Waiting for a change


def test_a_waiting_request_is_answered_by_the_first_refresh_after_a_change(world: World) -> None:
    async def story() -> None:
        world.after(3.02, lambda: world.source.set(BOB))
        assert await world.version(world.source.at, wait_s=20) == 2

    world.run(story())
    assert 3.02 <= world.elapsed_s <= 3.02 + REFRESH_EVERY_S


def test_a_notification_makes_the_refresh_begin_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_EVERY_S", 20.0)
    world.cache.notify()  # before the first request: without effect

    def change() -> None:
        world.source.set(BOB)
        world.cache.notify()

    async def story() -> None:
        world.after(3.0, change)
        assert await world.version(world.source.at, wait_s=15) == 2

    world.run(story())
    assert world.elapsed_s == pytest.approx(3.0)
    world.cache.notify()  # after the end of the loop: without effect


def test_a_request_that_holds_another_version_than_the_cache_does_not_wait_for_the_next_refresh(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_EVERY_S", 20.0)

    async def story() -> None:
        old = world.source.at
        world.source.set(BOB)
        assert await world.version() == 2
        assert await world.version(old, wait_s=15) == 2

    world.run(story())
    assert world.elapsed_s <= 2 * REFRESH_MIN_S


def test_a_request_that_is_not_up_to_date_does_not_wait(world: World) -> None:
    async def story() -> None:
        cursor = world.source.at
        world.source.set(BOB)
        assert await world.version(cursor, wait_s=20) == 2
        assert await world.version(None, wait_s=20) == 2

    world.run(story())
    assert world.elapsed_s <= REFRESH_MIN_S


def test_without_a_change_the_wait_ends_with_the_same_version(world: World) -> None:
    assert world.run(world.version(world.source.at, wait_s=0.3)) == 1
    assert world.elapsed_s == pytest.approx(0.3)


def test_a_source_that_fails_meanwhile_ends_the_wait_with_its_error(world: World) -> None:
    async def story() -> None:
        world.after(3.0, lambda: setattr(world.source, "away", True))
        with pytest.raises(SourceError):
            await world.version(world.source.at, wait_s=20)

    world.run(story())
    assert world.elapsed_s <= 3.0 + REFRESH_EVERY_S


def test_closing_answers_every_waiting_request(world: World) -> None:
    async def story() -> list[int]:
        world.after(3.0, lambda: setattr(world.cache, "closed", True))
        return await asyncio.gather(*(world.version(world.source.at, wait_s=30) for _ in range(3)))

    assert world.run(story()) == [1, 1, 1]
    assert world.elapsed_s <= 3.0 + 2 * REFRESH_EVERY_S


def test_a_client_that_leaves_does_not_end_the_wait_of_the_others(world: World) -> None:
    async def story() -> None:
        cursor = world.source.at
        leaving = asyncio.ensure_future(world.version(cursor, wait_s=20))
        staying = asyncio.ensure_future(world.version(cursor, wait_s=20))
        world.after(0.0, leaving.cancel)
        world.after(3.0, leaving.cancel)
        world.after(5.0, lambda: world.source.set(BOB))
        assert await staying == 2

    world.run(story())
    assert world.elapsed_s >= 5.0


# Notified changes


def test_while_changes_are_notified_the_source_is_hardly_read_for_a_waiting_request(world: World) -> None:
    async def story() -> None:
        await world.version()
        world.cache.notified(True)
        before = world.reads
        for _ in range(20):
            assert await world.version(world.source.at, wait_s=5) == 1
        assert world.reads - before <= 2 * 20

    world.run(story())
    assert world.elapsed_s == pytest.approx(100, abs=1)


def test_a_notified_change_reaches_a_waiting_request_at_once(world: World) -> None:
    def change() -> None:
        world.source.set(BOB)
        world.cache.notified(True)

    async def story() -> None:
        await world.version()
        world.cache.notified(True)
        world.after(3.0, change)
        assert await world.version(world.source.at, wait_s=15) == 2

    world.run(story())
    assert world.elapsed_s == pytest.approx(3.0, abs=REFRESH_MIN_S)


def test_a_change_whose_notification_was_lost_is_found_by_the_next_refresh(world: World) -> None:
    async def story() -> None:
        await world.version()
        world.cache.notified(True)
        world.after(3.0, lambda: world.source.set(BOB))
        assert await world.version(world.source.at, wait_s=15) == 2

    world.run(story())
    assert world.elapsed_s <= 3.0 + FALLBACK_S


def test_once_changes_are_not_notified_any_more_the_source_is_read_often_again(world: World) -> None:
    async def story() -> None:
        await world.version()
        world.cache.notified(True)
        world.after(1.0, lambda: world.cache.notified(False))
        world.after(3.0, lambda: world.source.set(BOB))
        assert await world.version(world.source.at, wait_s=15) == 2

    world.run(story())
    assert world.elapsed_s <= 3.0 + REFRESH_EVERY_S


def test_the_state_after_a_wait_is_as_new_as_the_end_of_the_wait(world: World) -> None:
    """A gate takes the age of its view from it."""

    async def story() -> None:
        await world.version()
        world.cache.notified(True)
        state = await world.cache.state(world.source.at, 4.0)
        assert state.begun_s == pytest.approx(world.started_s + 4.0, abs=2 * REFRESH_EVERY_S)

    world.run(story())


def test_changes_that_follow_closely_reach_many_waiting_requests_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.002)
    gates, answers = 100, []

    async def poll(until_s: float, starts_after_s: float) -> None:
        await asyncio.sleep(starts_after_s)
        held = await world.cache.state(None, 0)
        while world.elapsed_s < until_s:
            held = await world.cache.state(held.update.at, 5.0)
            answers.append(world.elapsed_s)
            await asyncio.sleep(0.01)

    async def story() -> None:
        polls = [asyncio.ensure_future(poll(11.0, n / gates)) for n in range(gates)]
        while world.elapsed_s < 11.0:
            world.source.set(a_lock(f"user:{world.elapsed_s}"))
            world.cache.notified(True)
            await asyncio.sleep(0.05)
        await asyncio.gather(*polls)

    world.run(story())
    answers_per_gate = sum(1.0 < at_s < 11.0 for at_s in answers) / gates
    assert answers_per_gate <= 10 / (0.002 * gates) + 1, "in ten seconds"
    assert answers_per_gate >= 10 / (0.002 * gates + 0.05) - 2


def test_a_change_is_read_ahead_for_a_gate_that_is_busy_with_its_last_answer(world: World) -> None:
    def change() -> None:
        world.source.set(BOB)
        world.cache.notify()

    async def story() -> None:
        await world.version()
        before = world.reads
        world.after(1.0, change)
        await asyncio.sleep(1.5)
        assert world.reads == before + 1
        world.after(READ_AHEAD_S, change)
        await asyncio.sleep(60)
        assert world.reads == before + 1, "no gate has asked for a long time"

    world.run(story())


# Reading the source


def test_a_hundred_waiting_requests_cost_one_read_for_each_refresh(world: World) -> None:
    async def story() -> None:
        world.after(2.0, lambda: world.source.set(BOB))
        cursor = world.source.at
        versions = await asyncio.gather(*(world.version(cursor, wait_s=20) for _ in range(100)))
        assert set(versions) == {2}
        answers = await asyncio.gather(*(world.changes(cursor) for _ in range(100)))
        assert all(b"user:bob" in answer for answer in answers)

    world.run(story())
    assert world.reads <= 2.0 / REFRESH_EVERY_S + 4


def test_the_source_is_not_read_while_no_request_waits(world: World) -> None:
    async def story() -> None:
        await world.version(world.source.at, wait_s=0.2)
        await asyncio.sleep(REFRESH_EVERY_S)  # a refresh that has begun is completed
        before = world.reads
        await asyncio.sleep(60)
        assert world.reads == before

    world.run(story())


def test_requests_one_after_the_other_are_at_least_one_refresh_apart(world: World) -> None:
    async def story() -> None:
        for _ in range(20):
            await world.version(world.source.at)

    world.run(story())
    assert world.elapsed_s >= 19 * REFRESH_MIN_S
    assert world.reads == 20, "a refresh that began before a request is not new enough for it"


def test_unknown_versions_share_one_snapshot_in_memory(world: World) -> None:
    async def story() -> None:
        state = await world.cache.state(None, 0)
        unknown = [Cursor(7, f"unknown-{n}") for n in range(5)]
        answers = [await world.cache.answer(cursor, state, world.clock.uptime_s()) for cursor in unknown]
        assert len({id(answer.changes[0]) for answer in answers}) == 1
        assert b"api_key:acme" in answers[0].changes[0].text

    world.run(story())


def test_an_unknown_version_is_answered_without_a_read_for_each_question(world: World) -> None:
    """Unknown marks of a version that there was, versions that will come, and versions that are pruned."""

    async def story() -> None:
        for n in range(20):
            world.source.set(a_lock(f"user:{n}"))
        await world.changes(None)
        before = world.reads
        for n in range(50):
            for cursor in (Cursor(7, f"unknown-{n}"), Cursor(1000 + n, "m1"), Cursor(21, f"unknown-{n}")):
                update = feed_json.load(await world.changes(cursor))
                assert (update.snapshot, len(update.changes), update.at) == (True, 21, world.source.at)
        assert set(world.source.fetches[before:]) == {world.source.at}, "looks alone"
        assert world.marks_read == 1

    world.run(story())


def test_all_locks_are_read_once_for_many_versions(world: World) -> None:
    """The snapshot at hand is completed with the changes since; its checksum covers both."""

    async def story() -> None:
        await world.changes(None)
        before = world.reads
        for n in range(50):
            world.source.set(a_lock(f"user:{n}"))
            if n % 5 == 4:
                world.source.clear(a_lock(f"user:{n}"))
            update = feed_json.load(await world.changes(Cursor(1, f"unknown-{n}")))
            assert {
                change.at for change in update.changes if isinstance(change, Set)
            } >= world.source.locks.keys()
            assert lock_view.apply(lock_view.EMPTY, update).at == world.source.at
            assert len(lock_view.apply(lock_view.EMPTY, update)) == len(world.source.locks)
        assert None not in world.source.fetches[before:]

    world.run(story())


def test_all_locks_are_read_again_when_the_changes_since_are_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATER_BYTES_MIN", 1_000)

    async def story() -> None:
        for n in range(50):
            world.source.set(a_lock("user:bob", detail=f"{n}" * 100))
            update = feed_json.load(await world.changes(None))
            assert update.at == world.source.at
            assert len(update.changes) < 20
        assert 1 < world.source.fetches.count(None) < 20

    world.run(story())


def test_a_restored_database_has_other_marks(world: World) -> None:
    async def story() -> None:
        old = world.source.at
        backup = world.source.backup()
        world.source.set(BOB)
        lost = world.source.at
        world.source.set(a_lock("user:cid"))
        await world.changes(None)
        assert not feed_json.load(await world.changes(lost)).snapshot
        world.source.restore(backup)
        world.source.set(a_lock("user:dan"))
        world.source.set(a_lock("user:eve"))
        await world.changes(None)
        assert feed_json.load(await world.changes(lost)).snapshot
        assert not feed_json.load(await world.changes(old)).snapshot

    world.run(story())


def test_looks_do_not_wait_for_long_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all locks are read for one gate, another one gets a change."""
    read_s = 30.0
    calls = module.run_in_thread

    class SlowFeed(HandFeed):
        """Marks what takes long."""

    slow = SlowFeed()
    slow.locks, slow.versions = world.source.locks, world.source.versions

    async def slowly(call: partial[Any]) -> Any:
        if call.args[:1] == (slow,):
            await asyncio.sleep(read_s)
        return await calls(call)

    monkeypatch.setattr(module, "run_in_thread", lambda call: asyncio.ensure_future(slowly(call)))
    world.cache = FeedCache(world.source, world.clock.uptime_s, slow)

    async def story() -> None:
        old = world.source.at
        world.source.set(BOB)
        at = (await world.cache.state(None, 0)).update.at
        readings = [asyncio.ensure_future(world.changes(old)) for _ in range(5)]
        await asyncio.sleep(1)
        world.after(1, lambda: world.source.set(a_lock("user:ann")))
        began_s = world.elapsed_s
        assert await world.version(at, wait_s=20) == 3
        assert world.elapsed_s - began_s < 2
        for reading in readings:
            assert feed_json.load(await reading).at.version >= 2
        assert world.elapsed_s < 3 * read_s
        assert len(slow.fetches) <= 2, "requests for one version share a read"

    world.run(story())


def test_the_changes_are_kept_from_a_bounded_number_of_versions(world: World) -> None:
    cursors = [world.source.at]
    for n in range(CACHED_MAX + 10):
        world.source.set(a_lock(f"user:{n}"))
        cursors.append(world.source.at)

    async def story() -> None:
        for cursor in cursors[:-1]:
            assert b'"op": "set"' in await world.changes(cursor)
        before = world.reads
        await asyncio.gather(*map(world.changes, cursors[-CACHED_MAX // 2 : -1]))
        assert world.reads == before + 1, "the newest of them are kept"
        await world.changes(cursors[0])
        assert world.reads == before + 3, "the oldest of them are not"

    world.run(story())


def test_each_change_is_read_once_for_gates_that_were_answered_at_different_times(world: World) -> None:
    async def story() -> None:
        cursors = []
        for n in range(5):
            cursors.append((await world.cache.state(None, 0)).update.at)
            world.source.set(a_lock(f"user:{n}"))
        await world.cache.state(None, 0)
        before = world.reads
        for number, cursor in enumerate(cursors):
            text = await world.changes(cursor)
            update = feed_json.load(text)
            assert [change.at.key for change in update.changes] == [f"user:{n}" for n in range(number, 5)]
            assert (update.since, update.at, update.snapshot) == (cursor.version, world.source.at, False)
        assert world.reads == before + 5, "one refresh for each request, and nothing for its answer"

    world.run(story())


def test_changes_that_are_kept_have_a_bounded_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 100_000)
    first = world.source.at

    async def story() -> None:
        await world.cache.state(None, 0)
        for n in range(10):
            world.source.set(a_lock(f"user:{n}", detail="x" * 30_000))
            await world.cache.state(None, 0)
        before = world.reads
        assert len(feed_json.load(await world.changes(first)).changes) == 10
        assert world.reads == before + 2, "the refresh, and another read of what was dropped"

    world.run(story())


def test_a_snapshot_of_the_source_replaces_the_changes_before(world: World) -> None:
    async def story() -> None:
        first = (await world.cache.state(None, 0)).update.at
        world.source.set(BOB)
        await world.cache.state(None, 0)
        world.source.publish(Clear(BOB.at))
        world.source.prune()
        await world.cache.state(None, 0)
        update = feed_json.load(await world.changes(first))
        assert (update.snapshot, [change.at.key for change in update.changes]) == (True, ["api_key:acme"])

    world.run(story())


def test_a_new_version_replaces_the_changes_that_were_kept(world: World) -> None:
    async def story() -> None:
        cursor = world.source.at
        world.source.set(BOB)
        assert b"user:bob" in await world.changes(cursor)
        world.source.publish(Clear(BOB.at), Set(a_lock("user:ann")))
        assert b"user:ann" in await world.changes(cursor)

    world.run(story())


# The pace


def test_beyond_the_bound_of_waiters_a_request_is_answered_at_once_with_a_pace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 1)

    async def story() -> None:
        first = asyncio.ensure_future(world.pace(world.source.at, wait_s=3))
        await asyncio.sleep(1.0)
        assert await world.pace(world.source.at, wait_s=3) == world.source.next_poll
        assert world.elapsed_s < 1.0 + 2 * REFRESH_EVERY_S
        assert await first == 0.0

    world.run(story())


def test_above_the_bound_of_requests_gates_are_asked_to_poll_less_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUESTS_PER_S_MAX", 2)
    monkeypatch.setattr(module, "REFRESH_EVERY_S", 0.0)
    poll_s = world.source.next_poll

    async def story() -> None:
        paces = [await world.pace() for _ in range(20)]  # in a fifth of a second
        assert paces[:3] == pytest.approx([poll_s, poll_s, 1.5 * poll_s])
        assert paces[-1] == pytest.approx(10 * poll_s)
        assert await world.pace(world.source.at, wait_s=0.1) == pytest.approx(9.5 * poll_s)
        await asyncio.sleep(2.0)
        assert await world.pace() == poll_s, "only this second and the one before count"

    world.run(story())
