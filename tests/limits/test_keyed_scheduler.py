"""Jobs per key: never two at once, high before low, no key starves, no job is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
from collections import defaultdict

import pytest

from gatekeeper.limits import AsyncKeyedScheduler, KeyedScheduler, QueueEvent


def no_threads_left() -> bool:
    deadline = time.monotonic() + 5
    while any(thread.name == "keyed scheduler" for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def blocked(scheduler: KeyedScheduler, key: str) -> threading.Event:
    """Returns an event; `key` is busy until it is set."""
    started, may_end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait(10)

    scheduler.submit(key, work)
    assert started.wait(5)
    return may_end


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_racing_submitters_lose_no_job_and_no_key_runs_twice_at_once(workers):
    ran = defaultdict(list)
    inside = defaultdict(int)
    overlaps: list[str] = []
    threads_seen = set()

    with KeyedScheduler(workers, yield_after=3) as scheduler:

        def job(key: str, submitter: int, n: int) -> None:
            inside[key] += 1
            if inside[key] > 1:
                overlaps.append(key)
            time.sleep(0)  # lets other threads run in between
            threads_seen.add(threading.current_thread().name)
            ran[key, submitter].append(n)
            inside[key] -= 1

        def submit(submitter: int) -> None:
            chance = random.Random(submitter)
            for n in range(300):
                key = chance.choice("abcde")
                scheduler.submit(key, lambda key=key, n=n: job(key, submitter, n))

        submitters = [threading.Thread(target=submit, args=(n,)) for n in range(4)]
        for submitter in submitters:
            submitter.start()
        for submitter in submitters:
            submitter.join()
    assert sum(map(len, ran.values())) == 1200
    assert all(order == sorted(order) for order in ran.values())
    assert overlaps == []
    assert threads_seen == {"keyed scheduler"}, "a job ran in the thread that submitted it"
    assert no_threads_left()


def test_high_jobs_run_before_all_that_wait_but_never_interrupt():
    with KeyedScheduler(2) as scheduler:
        may_end, ran = blocked(scheduler, "a"), []
        for name in ("low 1", "low 2"):
            scheduler.submit("a", lambda name=name: ran.append(name))
        for name in ("high 1", "high 2"):
            scheduler.submit("a", lambda name=name: ran.append(name), high=True)
        assert (scheduler.pending("a"), ran) == (4, [])
        may_end.set()
    assert ran == ["high 1", "high 2", "low 1", "low 2"]
    assert scheduler.pending("a") == 0


@pytest.mark.parametrize(
    ("others_wait", "order"), [(True, "aaabaa"), (False, "aaaaa")], ids=["others wait", "no other waits"]
)
def test_a_worker_yields_only_if_other_keys_wait(others_wait, order):
    with KeyedScheduler(1, yield_after=3) as scheduler:
        may_end, ran = blocked(scheduler, "first"), []
        for _ in range(5):
            scheduler.submit("a", lambda: ran.append("a"))
        if others_wait:
            scheduler.submit("b", lambda: ran.append("b"))
        may_end.set()
    assert "".join(ran) == order


def test_a_removed_key_runs_its_jobs_first_and_is_a_new_key_then():
    with KeyedScheduler(1) as scheduler:
        may_end, ran = blocked(scheduler, "a"), []
        for n in range(3):
            scheduler.submit("a", lambda n=n: ran.append(n))
        drained = scheduler.remove("a")
        with pytest.raises(RuntimeError, match="'a' takes no more jobs"):
            scheduler.submit("a", lambda: None)
        assert not drained.done()
        may_end.set()
        drained.result(5)
        assert ran == [0, 1, 2]
        assert scheduler.submit("a", lambda: "new").result(5) == "new"
        assert scheduler.remove("never seen").result(0) is None


def test_aborting_cancels_waiting_jobs_and_lets_the_running_one_end():
    with KeyedScheduler(1) as scheduler:
        may_end, ran = blocked(scheduler, "a"), []
        waiting = [scheduler.submit("a", lambda: ran.append("never"), high=n > 1) for n in range(4)]
        assert waiting[0].cancel(), "a single job can be cancelled, too"
        assert scheduler.abort("a") == 3, "the other three"
        assert scheduler.abort("never seen") == scheduler.pending("a") == 0
        may_end.set()
        assert scheduler.submit("a", lambda: "after").result(5) == "after"
    assert ran == []
    assert all(future.cancelled() for future in waiting)


def test_an_exception_is_raised_from_the_future_or_logged_if_the_future_is_dropped(caplog):
    with KeyedScheduler(1) as scheduler:
        read = scheduler.submit("a", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            read.result(5)
        scheduler.submit(("b", 1), lambda: {}["missing"])
        assert scheduler.submit("a", lambda: "continues").result(5) == "continues"
    with caplog.at_level(logging.ERROR):
        del read
        gc.collect()
    assert [record.getMessage() for record in caplog.records] == [
        "a job of ('b', 1) failed, and its result was not read"
    ]
    assert caplog.records[0].exc_info[0] is KeyError


def test_a_closed_scheduler_runs_its_jobs_and_takes_no_more():
    scheduler = KeyedScheduler(2)
    ran: list[int] = []
    for n in range(50):
        scheduler.submit(f"key {n % 5}", lambda n=n: ran.append(n))
    scheduler.close()
    assert sorted(ran) == list(range(50))
    with pytest.raises(RuntimeError, match="takes no more jobs"):
        scheduler.submit("a", lambda: None)
    for arguments in ((0,), (1, 0)):
        with pytest.raises(ValueError, match="expected a whole number of at least 1"):
            KeyedScheduler(*arguments)


def test_tasks_run_in_order_per_key_and_many_keys_at_once():
    ran = defaultdict(list)
    inside, most = defaultdict(int), defaultdict(int)
    chance = random.Random(7)

    async def job(key: str, n: int) -> None:
        for counted in (key, "all"):
            inside[counted] += 1
            most[counted] = max(most[counted], inside[counted])
        await asyncio.sleep(0 if chance.random() < 0.9 else 0.0005)
        ran[key].append(n)
        for counted in (key, "all"):
            inside[counted] -= 1

    async def story() -> None:
        async with AsyncKeyedScheduler(3, yield_after=2) as scheduler:
            for n in range(200):
                scheduler.submit(key := chance.choice("abcde"), lambda key=key, n=n: job(key, n))
            assert inside == {}, "no job runs inside submit"

    asyncio.run(story())
    assert sum(map(len, ran.values())) == 200
    assert all(order == sorted(order) for order in ran.values())
    assert most["all"] == 3
    assert all(most[key] == 1 for key in "abcde")


def test_tasks_run_high_jobs_first_abort_and_drain():
    async def story() -> None:
        scheduler, may_end, ran = AsyncKeyedScheduler(1), asyncio.Event(), []

        async def note(name: str) -> str:
            ran.append(name)
            return name

        async def fail() -> None:
            raise OSError("no")

        scheduler.submit("a", may_end.wait)
        await asyncio.sleep(0)
        low = scheduler.submit("a", lambda: note("low"))
        high = scheduler.submit("a", lambda: note("high"), high=True)
        failed = scheduler.submit("a", fail)
        dropped = scheduler.submit("b", lambda: note("dropped"))
        assert (scheduler.pending("a"), scheduler.abort("b")) == (3, 1)
        may_end.set()
        await scheduler.remove("a")
        assert ran == ["high", "low"]
        assert [await low, await high] == ["low", "high"]
        with pytest.raises(OSError, match="no"):
            await failed
        assert dropped.cancelled()
        assert await scheduler.submit("a", lambda: note("new")) == "new"
        await scheduler.close()

    asyncio.run(story())


def test_an_exception_of_a_task_is_reported_if_its_future_is_dropped():
    reported: list[str] = []

    async def fail() -> None:
        raise OSError("no")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        async with AsyncKeyedScheduler(1) as scheduler:
            scheduler.submit("a", fail)
            scheduler.submit("a", lambda: asyncio.sleep(0))
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(story())
    assert reported == ["no"]


async def sleep_forever() -> None:
    await asyncio.Event().wait()


async def value_of(number: int) -> int:
    return number


def end_with_cancelled_tasks(scheduler: AsyncKeyedScheduler) -> None:
    async def story() -> None:
        scheduler.submit("a", sleep_forever)
        scheduler.submit("a", lambda: value_of(1))
        scheduler.submit("b", lambda: value_of(1))
        await asyncio.sleep(0)

    asyncio.run(story())


def end_before_the_worker_began(scheduler: AsyncKeyedScheduler) -> None:
    async def story() -> None:
        scheduler.submit("a", sleep_forever)

    asyncio.run(story())


def end_without_cancelling(scheduler: AsyncKeyedScheduler) -> None:
    async def story() -> None:
        scheduler.submit("a", sleep_forever)
        scheduler.submit("b", lambda: value_of(1))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(story())
    loop.close()


def end_by_an_exit(scheduler: AsyncKeyedScheduler) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def story() -> None:
        left = scheduler.submit("a", leave)
        scheduler.submit("a", lambda: value_of(1))
        await left

    with pytest.raises(SystemExit):
        asyncio.run(story())


@pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    "end",
    [end_with_cancelled_tasks, end_before_the_worker_began, end_without_cancelling, end_by_an_exit],
)
def test_an_asyncio_scheduler_survives_its_loop(end):
    """The only worker is lost while it has a key; that key and others run in the next loop."""
    scheduler = AsyncKeyedScheduler(workers=1)
    for _ in range(2):
        end(scheduler)

        async def story() -> list[int]:
            assert scheduler.scheduled() == [], "jobs of the closed loop are dropped"
            async with asyncio.timeout(5):
                jobs = [scheduler.submit(key, lambda n=n: value_of(n)) for n, key in enumerate("aabc")]
                results = [await job for job in jobs]
                await scheduler.remove("a")
                return results

        assert asyncio.run(story()) == [0, 1, 2, 3]


def test_a_waiter_for_a_removal_that_gives_up_does_not_stop_the_worker():
    async def story() -> None:
        scheduler, may_end = AsyncKeyedScheduler(1), asyncio.Event()
        scheduler.submit("a", may_end.wait)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.remove("a"), 0.01)
        may_end.set()
        async with asyncio.timeout(5):
            assert await scheduler.submit("b", lambda: value_of(7)) == 7
            await scheduler.close()

    asyncio.run(story())


def test_waiting_jobs_are_listed_in_the_order_in_which_they_run():
    with KeyedScheduler(1) as scheduler:
        may_end = blocked(scheduler, "a")
        low = scheduler.submit("a", lambda: "low")
        dropped = scheduler.submit("a", lambda: "dropped")
        high = scheduler.submit("a", lambda: "high", high=True)
        other = scheduler.submit(("b", 2), lambda: "other")
        dropped.cancel()
        assert scheduler.scheduled("a") == [("a", True, high), ("a", False, low)]
        assert scheduler.scheduled() == [*scheduler.scheduled("a"), (("b", 2), False, other)]
        assert scheduler.scheduled("nope") == []
        may_end.set()
    assert scheduler.scheduled() == []


def test_yield_after_may_be_changed_while_jobs_run_and_is_clamped():
    order: list[str] = []
    events: list[tuple[str, object, int]] = []
    with KeyedScheduler(1, yield_after=3, trace=events.append) as scheduler:
        may_end = blocked(scheduler, "gate")
        for key in "ab":
            for _ in range(4):
                scheduler.submit(key, lambda key=key: order.append(key))
        for asked, taken in ((0, 1), (-5, 1), (10**9, 10_000), (2, 2)):
            scheduler.yield_after = asked
            assert scheduler.yield_after == taken
        with pytest.raises(TypeError, match="yield_after: expected a whole number"):
            scheduler.yield_after = "2"  # type: ignore[assignment]  # that is the test
        removed = scheduler.remove("b")
        may_end.set()
        removed.result(5)
    assert "".join(order) == "aabbaabb"
    assert events == [("yielded", "a", 2), ("yielded", "b", 2), ("removed", "b", 0)]


def test_a_trace_that_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture):
    def fail(event: object) -> None:
        raise OSError("no trace")

    with KeyedScheduler(1, trace=fail) as scheduler:
        may_end = blocked(scheduler, "a")
        scheduler.submit("a", lambda: None)
        assert scheduler.abort("a") == 1
        may_end.set()
        assert scheduler.submit("b", lambda: 5).result(5) == 5
    assert "the trace of a scheduler failed at aborted of 'a'" in caplog.text


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (None, TypeError, "key: expected text, or a tuple"),
        (b"a", TypeError, "key: expected text, or a tuple"),
        (7, TypeError, "key: expected text, or a tuple"),
        ("", ValueError, "key: expected the key whose jobs run in order"),
    ],
)
def test_a_job_without_a_usable_key_is_not_taken(key, error, message):
    with KeyedScheduler(1) as scheduler, pytest.raises(error, match=message):
        scheduler.submit(key, lambda: None)

    async def story() -> None:
        async with AsyncKeyedScheduler(1) as scheduler:
            with pytest.raises(error, match=message):
                scheduler.submit(key, lambda: value_of(1))

    asyncio.run(story())


def test_a_job_that_is_not_a_function_is_not_taken():
    async def story() -> None:
        coroutine = value_of(1)
        async with AsyncKeyedScheduler(1) as scheduler:
            with pytest.raises(TypeError, match="function: expected a function, got <coroutine"):
                scheduler.submit("a", coroutine)
        coroutine.close()

    asyncio.run(story())
    with (
        KeyedScheduler(1) as scheduler,
        pytest.raises(TypeError, match="function: expected a function, got 3"),
    ):
        scheduler.submit("a", 3)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="trace: expected a function"):
        KeyedScheduler(1, trace=3)  # type: ignore[arg-type]  # that is the test


def test_a_thread_that_cannot_be_started_costs_no_worker(monkeypatch: pytest.MonkeyPatch):
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[str] = []
    scheduler = KeyedScheduler(workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            scheduler.submit("a", lambda: ran.append("the job that was not taken"))
    for key in ("a", "b"):
        scheduler.submit(key, lambda key=key: ran.append(key)).result(timeout=5)
    scheduler.close(timeout=5)
    assert ran == ["a", "b"]


@pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_trace_of_what_a_closed_loop_left_may_wait_for_another_thread():
    traced, removals = [], []

    def trace(event: QueueEvent) -> None:
        asking = threading.Thread(target=lambda: traced.append((event.kind, scheduler.pending("b"))))
        asking.start()
        asking.join(timeout=2)

    async def story() -> None:
        scheduler.submit("a", sleep_forever)
        scheduler.submit("b", lambda: value_of(1))
        removals.append(asyncio.ensure_future(scheduler.remove("b")))
        await asyncio.sleep(0)

    async def next_story() -> None:
        await scheduler.submit("c", lambda: value_of(3))
        assert traced == [("removed", 0)]

    scheduler = AsyncKeyedScheduler(workers=1, trace=trace)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(story())
    loop.close()
    asyncio.run(next_story())
    removals.clear()
    gc.collect()  # the tasks of the closed loop, not during another test


def test_a_scheduler_shows_its_size():
    with KeyedScheduler(3) as scheduler:
        assert repr(scheduler) == "<KeyedScheduler: 3 workers, 0 keys with jobs>"
