"""A gate with the system clock: its thread, forks, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gatekeeper import Gate
from gatekeeper.clock import SystemClock
from gatekeeper.feed.saved_view import read
from gatekeeper.model import Cursor, Update
from gatekeeper.view.fast_path import FastPath, build_fast_path
from gatekeeper.view.lock_tuples import KEY
from gatekeeper.view.lock_view import LockView
from tests.support.feed import HandFeed, a_lock
from tests.support.waiting import wait_until


def run_script(text: str) -> str:
    """Runs a script in a new interpreter, with warnings as errors; returns its output."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture
def feed() -> HandFeed:
    feed = HandFeed(a_lock(ends_in=10**9))
    feed.next_poll = 0.05
    return feed


def test_the_first_check_starts_a_thread_that_learns_of_locks(feed: HandFeed) -> None:
    gate = Gate(feed, name="shop")
    assert gate.allow("user:bob")
    assert gate.ready(10)
    assert not gate.allow("api_key:acme")
    assert "gatelock shop" in {thread.name for thread in threading.enumerate()}
    feed.set(a_lock("user:bob", ends_in=10**9))
    wait_until(lambda: not gate.allow("user:bob"))
    gate.close()
    assert "gatelock shop" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # the thread is meant to crash
def test_a_thread_that_crashed_is_replaced_by_the_next_request(feed: HandFeed) -> None:
    with Gate(feed) as gate:
        assert gate.ready(10)
        fetch, feed.fetch = feed.fetch, crash
        wait_until(lambda: not gate.healthy)
        feed.fetch = fetch
        feed.set(a_lock("user:bob", ends_in=10**9))
        wait_until(lambda: not gate.allow("user:bob"))


def crash(since: Cursor | None) -> Update:
    raise SystemExit


def test_closing_does_not_wait_for_the_next_poll(feed: HandFeed) -> None:
    feed.next_poll = 15.0
    gate = Gate(feed)
    assert gate.ready(10)
    begun_s = time.monotonic()
    gate.close()
    assert time.monotonic() - begun_s < 5.0


def test_concurrent_first_checks_start_one_poller(feed: HandFeed) -> None:
    gate, barrier = Gate(feed, name="crowd"), threading.Barrier(16)

    def ask() -> None:
        barrier.wait()
        gate.allow("user:bob")

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [thread.name for thread in threading.enumerate()].count("gatelock crowd") == 1
    gate.close()


def test_random_numbers_are_spread_within_their_bounds() -> None:
    drawn = [SystemClock().random() for _ in range(1000)]
    assert 0 <= min(drawn) < 0.1
    assert 0.9 < max(drawn) < 1


def test_a_forked_child_has_the_view_and_starts_a_poller() -> None:
    printed = run_script("""
        import os, threading
        from gatekeeper import Gate
        from gatekeeper.model import Set
        from tests.support.feed import HandFeed, a_lock
        from tests.support.waiting import wait_until

        feed = HandFeed(a_lock(ends_in=10**9))
        feed.next_poll = 0.05
        gate = Gate(feed)
        assert gate.ready(10)
        assert gate.allow("user:bob")
        gate._runtime._switch.mutex.acquire()  # as the poller's thread may at the fork
        child = os.fork()
        if not child:
            feed.set(a_lock("user:bob", ends_in=10**9))
            assert not gate.healthy
            assert not gate.allow("api_key:acme")  # by the parent's view
            wait_until(lambda: not gate.allow("user:bob"), 10)
            print("child", gate.allow("user:bob"), gate.healthy, flush=True)
            os._exit(0)
        gate._runtime._switch.mutex.release()
        assert os.waitpid(child, 0)[1] == 0
        print("parent", gate.allow("user:bob"), gate.healthy)
    """)
    assert printed.split() == ["child", "False", "True", "parent", "True", "True"]


def test_callbacks_run_in_a_child_that_was_forked_during_a_callback() -> None:
    printed = run_script("""
        import os, threading
        from gatekeeper import Gate
        from tests.support.feed import HandFeed, a_lock

        called, may_return, returned = threading.Event(), threading.Event(), threading.Event()

        def on_change(gate):
            if os.getpid() == parent:
                called.set()
                may_return.wait(20)
            returned.set()

        parent = os.getpid()
        feed = HandFeed()
        feed.next_poll = 0.05
        gate = Gate(feed, on_change=on_change).start()
        assert called.wait(10)
        child = os.fork()
        if not child:
            feed.set(a_lock(ends_in=10**9))
            gate.start()
            print(returned.wait(10), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        may_return.set()
        gate.close()
    """)
    assert printed.split() == ["True"]


def test_a_gate_that_was_not_started_before_the_fork_starts_in_the_child() -> None:
    printed = run_script("""
        import os
        from gatekeeper import Gate
        from tests.support.feed import HandFeed, a_lock

        gate = Gate(HandFeed(a_lock(ends_in=10**9)))
        child = os.fork()
        if not child:
            print(gate.ready(10), gate.allow("api_key:acme"), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(gate.healthy)
    """)
    assert printed.split() == ["True", "False", "False"]


def test_a_program_that_does_not_close_its_gate_ends_without_errors_and_saves_the_view(
    tmp_path: Path,
) -> None:
    printed = run_script(f"""
        from pathlib import Path
        from gatekeeper import Gate
        from tests.support.feed import HandFeed, a_lock
        from tests.support.waiting import wait_until

        feed = HandFeed()
        feed.next_poll = 0.05
        gate = Gate(feed, saved=Path({str(tmp_path)!r}, "view"))
        gate.ready(10)
        feed.set(a_lock(ends_in=10**9))
        wait_until(lambda: not gate.allow("api_key:acme"), 10)
        print(gate.version)
    """)
    assert printed.split() == ["1"]
    assert [lock[KEY] for lock in read(tmp_path / "view", datetime.now(UTC)).locks] == ["api_key:acme"]


def test_a_request_that_waits_for_the_first_answer_is_decided_by_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Until the answer decided, the empty view of a first start did, and let requests pass."""
    asked = threading.Event()

    def build_late(view: LockView) -> FastPath:
        if view.at is not None:
            asked.wait(0.3)
        return build_fast_path(view)

    monkeypatch.setattr("gatekeeper.gate_runtime.build_fast_path", build_late)
    with Gate(HandFeed(a_lock(ends_in=10**9)), saved=tmp_path / "view") as gate:
        assert gate.ready(20.0)
        allowed = gate.allow("api_key:acme")
        asked.set()
    assert not allowed
