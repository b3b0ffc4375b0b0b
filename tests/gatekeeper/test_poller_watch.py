"""A gate whose poller gets no time from its server notices, says so once, and goes stale by its rule."""

from __future__ import annotations

import os
import sys
from math import ceil
from types import ModuleType
from typing import Any

import pytest

from gatekeeper import Gate, lifecycle
from gatekeeper.adapters.admission_control import AdmissionController, RequestIdentity
from gatekeeper.poller_watch import LATE_POLLS, LATE_S
from gatekeeper.testing import ManualClock
from tests.support.feed import HandFeed, a_lock

LATE = "its poller does not run"
BOB = RequestIdentity("api_key:bob")
ACME = RequestIdentity("api_key:acme")


class BusyServer(ManualClock):
    """A clock of a server that keeps its only thread busy: time passes, and nothing else happens."""

    def serve(self, seconds: float) -> None:
        self._move(self._up_ns + ceil(seconds * 1e9))


class Shop:
    """A guard and its gate."""

    def __init__(self, **settings: Any) -> None:
        self.clock = BusyServer()
        self.feed = HandFeed(a_lock("api_key:zoe"))
        self.gate = Gate(self.feed, clock=self.clock, **settings)
        self.guard = AdmissionController(self.gate)
        assert self.gate.ready(1.0)

    def status(self, identity: RequestIdentity = BOB) -> int:
        decision = self.guard.check(identity).decision
        return 200 if decision.allowed else decision.status


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if LATE in record.message]


def test_requests_that_find_the_poller_overdue_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    fetches = len(shop.feed.fetches)
    for _ in range(10):
        shop.clock.serve(LATE_S)
        assert shop.status() == 200
    assert len(messages(caplog)) == 1
    assert "turn its threads on" in messages(caplog)[0]
    assert not shop.gate.healthy
    assert len(shop.feed.fetches) == fetches, "nothing is polled on the way of a request"


def test_the_poller_itself_notices_that_it_runs_late_and_that_it_runs_in_time_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop()
    for _ in range(LATE_POLLS):
        assert shop.gate.healthy
        shop.clock.serve(5.0)
        shop.clock.advance(0.0)
    assert len(messages(caplog)) == 1
    assert not shop.gate.healthy
    shop.clock.advance(2.0)
    assert shop.gate.healthy


def test_a_process_that_was_stopped_for_an_hour_is_not_accused(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(stale_after=7200.0)
    shop.clock.serve(3600.0)
    assert shop.status() == 200
    shop.clock.advance(60.0)
    assert shop.status() == 200
    assert messages(caplog) == []
    assert shop.gate.healthy


def test_callers_without_a_lock_get_what_the_gate_says_for_a_stale_view_when_nothing_polls() -> None:
    shop = Shop(on_stale="deny", stale_after=30.0)
    assert shop.status() == 200
    shop.clock.serve(29.0)
    assert shop.status() == 200
    shop.clock.serve(2.0)
    assert shop.status() == 503
    shop.clock.advance(1.0)
    assert shop.status() == 200, "the poller ran again"


def test_a_process_that_was_forked_without_pythons_hooks_starts_its_own_poller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    shop.feed.set(a_lock("api_key:acme"))
    monkeypatch.setattr(os, "getpid", lambda pid=os.getpid(): pid + 1)
    try:
        shop.clock.serve(10.0)
        assert shop.status(ACME) == 429, "it waits for the first answer, as each new process does"
        assert shop.gate.healthy
    finally:
        monkeypatch.undo()
        lifecycle.after_fork()


@pytest.fixture
def uwsgi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that exists inside uWSGI, without threads, in a worker."""
    module: Any = ModuleType("uwsgi")
    module.has_threads, module.loop, module.worker_id = 0, None, lambda: 1
    monkeypatch.setitem(sys.modules, "uwsgi", module)
    return module


def test_inside_uwsgi_without_threads_the_setting_is_named_at_the_start(
    uwsgi: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.clock.advance(60.0)
    assert [("--enable-threads" in message) for message in messages(caplog)] == [True]
    assert not shop.gate.healthy


@pytest.mark.parametrize(("has_threads", "loop"), [(1, None), (0, b"gevent")])
def test_inside_uwsgi_with_threads_nothing_is_logged(
    uwsgi: Any, caplog: pytest.LogCaptureFixture, has_threads: int, loop: bytes | None
) -> None:
    uwsgi.has_threads, uwsgi.loop = has_threads, loop
    shop = Shop()
    assert shop.gate.healthy
    assert messages(caplog) == []


def test_before_uwsgi_forks_its_workers_no_poller_is_started(uwsgi: Any) -> None:
    uwsgi.worker_id, uwsgi.has_threads = lambda: 0, 1
    clock = ManualClock()
    gate = Gate(HandFeed(a_lock()), clock=clock).start()
    assert not gate.ready(20.0)
    assert clock.uptime_s() == 0.0, "it does not wait for what cannot come"
    uwsgi.worker_id = lambda: 1
    gate.allow("api_key:acme")
    clock.advance(0.0)
    assert not gate.allow("api_key:acme")


def test_with_gevent_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "gevent", ModuleType("gevent"))
    shop = Shop()
    for _ in range(3):
        shop.clock.serve(LATE_S)
        shop.status()
    assert "gevent.monkey.patch_all()" in messages(caplog)[0]
