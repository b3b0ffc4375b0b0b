"""Log lines that requests cause: of each kind one in a second, with a count."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn

import pytest

from gatekeeper import Gate
from gatekeeper.adapters import caller_view_response as views
from gatekeeper.adapters.admission_control import AdmissionController, RequestIdentity
from gatekeeper.limits import FirstRefusal, TokenBucket
from gatekeeper.limits.schedulers import job_queues
from gatekeeper.log_pace import LogPace
from gatekeeper.model import SourceError
from gatekeeper.sources.fixed import FixedSource
from tests.support.feed import a_lock

REQUESTS = 200


def denied_in_shadow() -> Callable[[int], object]:
    gate = Gate(FixedSource(a_lock("api_key:acme", ends_in=10**9)), shadow=True)
    gate.ready(5.0)
    admission = AdmissionController(gate)
    return lambda _: admission.check(RequestIdentity(caller="api_key:acme", address="", tenant=""))


def limited_in_shadow() -> Callable[[int], object]:
    admission = AdmissionController(Gate(FixedSource()), [TokenBucket(1, 3600)], shadow=True)
    return lambda _: admission.check(RequestIdentity(caller="api_key:acme", address="", tenant=""))


def a_flag_that_fails() -> Callable[[int], object]:
    limiter = FirstRefusal(TokenBucket(1, 3600), fail)
    return lambda number: limiter.allow(f"key {number}", 2)


def a_trace_that_fails() -> Callable[[int], object]:
    queues = job_queues.KeyedJobQueues(1, 1, fail)
    return lambda number: queues.report("aborted", f"key {number}", 1)


def a_job_that_fails() -> Callable[[int], object]:
    def drop(number: int) -> None:
        future: Future[None] = job_queues.JobFuture(f"key {number}")
        future.set_exception(OSError("no service"))
        del future
        gc.collect(0)

    return drop


def a_server_that_is_away() -> Callable[[int], object]:
    return lambda _: views._unavailable(SourceError("refused"))


def fail(*_: object) -> NoReturn:
    raise OSError("no queue")


KINDS = (
    denied_in_shadow,
    limited_in_shadow,
    a_flag_that_fails,
    a_trace_that_fails,
    a_job_that_fails,
    a_server_that_is_away,
)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_cause_one_line_in_a_second(
    kind: Callable[[], Callable[[int], object]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "_unavailable_pace", LogPace(lambda: 7.0))
    monkeypatch.setattr(job_queues, "_unread_pace", LogPace(lambda: 7.0))
    request = kind()
    with caplog.at_level(logging.INFO, "gatekeeper"):
        for number in range(REQUESTS):
            request(number)
    assert 1 <= len(caplog.records) <= 3  # most kinds read the real clock


def test_the_next_line_has_the_number_of_those_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 7.0
    monkeypatch.setattr(views, "_unavailable_pace", LogPace(lambda: now_s))
    for _ in range(4):
        views._unavailable(SourceError("refused"))
    now_s = 8.0
    views._unavailable(SourceError("refused"))
    assert caplog.messages == [
        "a caller's view cannot be read: refused",
        "a caller's view cannot be read: refused (and 3 more since the line before)",
    ]
