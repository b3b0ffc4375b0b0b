"""`PUT /v1/gates/{instance}` through a real server, by a real client and by a real gate."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import httpx2
import pytest

from analyzer.errors import StoreAway
from analyzer.store.database.engine import open_engine
from analyzer.store.operations.tokens import Token, TokenList, digest_of
from analyzer.store.reports.gate_reports import reporting_gates, store_statuses
from analyzer.web import gates_endpoint as module
from analyzer.web.gates_endpoint import PendingStatuses
from gatekeeper import Gate
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.sources.http import HEAR_S, HttpSource
from gatekeeper.telemetry import gate_status as feedback_module
from gatekeeper.telemetry import status_json
from gatekeeper.telemetry.status_json import TOLD_BYTES_MAX
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server

READER = Token("shop", digest_of("gatelock_shop"), "read", 0, None)
PATIENCE_S = 20.0
FOR_EVER_S = 1e9


def told(number: int = 1, instance: str = "host:1:ab", **said: Any) -> GateStatus:
    given: dict[str, Any] = {"application": "shop", "library": "0.1.0", "at": None, "age": 0.4, "locks": (),
                             "more": (0, 0), "callers": ()}  # fmt: skip
    return GateStatus(instance=instance, number=number, **given | said)


class Desk:
    """Where a server writes what it heard."""

    def __init__(self) -> None:
        self.kept: list[list[GateStatus]] = []
        self.away = 0
        self.released = threading.Event()
        self.released.set()
        self.tokens = TokenList((), 0)

    def keep(self, told: Collection[GateStatus]) -> None:
        assert self.released.wait(PATIENCE_S)
        if self.away:
            self.away -= 1
            raise StoreAway("it is not there")
        self.kept.append(list(told))

    def after(self, times: int) -> list[list[GateStatus]]:
        """What was written, once that is so many times."""
        eventually(lambda: len(self.kept) >= times)
        return self.kept


def eventually(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.05)
    monkeypatch.setattr(feedback_module, "TELL_EVERY_S", 0.1)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def url(desk: Desk) -> Iterator[str]:
    with feed_server(
        HandFeed(a_lock(ends_in=FOR_EVER_S)), lambda: desk.tokens, told=PendingStatuses(desk.keep)
    ) as url:
        yield url


def put(url: str, body: str | bytes, instance: str = "host:1:ab", **headers: str) -> httpx2.Response:
    return plain_http.put(f"{url}/v1/gates/{instance}", content=body, headers=headers, timeout=PATIENCE_S)


def test_what_is_heard_is_written_later_and_all_at_once(url: str, desk: Desk) -> None:
    desk.released.clear()  # the database takes its time; who tells does not wait for it
    assert put(url, status_json.dump(told())).status_code == 204
    time.sleep(0.2)
    for each in (told(2), told(5), told(4), told(1, "other:2:cd")):
        assert put(url, status_json.dump(each), each.instance).status_code == 204
    desk.released.set()
    assert desk.after(2) == [[told()], [told(5), told(1, "other:2:cd")]]


def test_what_cannot_be_written_is_forgotten_and_the_next_is_written(
    url: str, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.away = 2
    for number in (1, 2, 3):
        put(url, status_json.dump(told(number)))
        left = max(0, 2 - number)
        eventually(lambda: desk.away == left)  # noqa: B023 - called at once
    assert desk.after(1) == [[told(3)]]
    assert caplog.text.count("cannot be written down") == 1


def test_no_more_wait_to_be_written_than_there_is_room_for(
    url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    monkeypatch.setattr(module, "WRITE_EVERY_S", 1.0)
    answers = [put(url, status_json.dump(told(1, f"h:{n}")), f"h:{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [204, 204, 503]
    assert answers[2].headers["retry-after"] == "60"
    assert put(url, status_json.dump(told(2, "h:1")), "h:1").status_code == 204, "it has its place"


@pytest.mark.parametrize(
    ("body", "instance", "status", "why"),
    [
        ("{", "host:1:ab", 400, "not a JSON document"),
        ("[]", "host:1:ab", 400, "expected an object"),
        (json.dumps({"instance": "a b", "number": 1}), "host:1:ab", 400, "expected instance"),
        (status_json.dump(told()), "other", 400, "another instance"),
        (b" " * (TOLD_BYTES_MAX + 1), "host:1:ab", 413, "more than"),
    ],
    ids=["half", "a list", "a strange name", "another instance", "too long"],
)
def test_what_is_no_feedback_is_refused(
    url: str, desk: Desk, body: str | bytes, instance: str, status: int, why: str
) -> None:
    answer = put(url, body, instance)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert why in answer.json()["detail"]
    assert desk.kept == []


def test_half_of_it_is_waited_for_only_so_long(
    url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BODY_S", 0.2)
    half = b"PUT /v1/gates/host:1:ab HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{"
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(place, PATIENCE_S) as slow:
        slow.sendall(half)
        assert slow.recv(1_000).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(place, PATIENCE_S) as gone:
        gone.sendall(half)
    assert put(url, status_json.dump(told())).status_code == 204
    time.sleep(0.3)
    assert desk.after(1) == [[told()]]
    assert "Exception in ASGI" not in caplog.text


def test_who_may_read_the_feed_may_tell(url: str, desk: Desk) -> None:
    desk.tokens = TokenList((READER,), 1_000)
    time.sleep(0.01)
    assert put(url, status_json.dump(told()), authorization="Bearer wrong").status_code == 401
    assert put(url, status_json.dump(told()), authorization="Bearer gatelock_shop").status_code == 204
    assert desk.after(1) == [[told()]]


class TestAGate:
    def test_a_gate_tells_what_it_met_and_whom_it_was_asked_for(self, url: str, desk: Desk) -> None:
        with Gate(HttpSource(url, wait=0.1), name="shop") as gate:
            assert gate.ready(PATIENCE_S)
            # Of the first ones nobody is noted: that begins when it has told for the first time.
            eventually(
                lambda: not gate.allow("api_key:acme") and bool(desk.kept) and bool(desk.kept[-1][0].callers)
            )
            assert gate.allow("user:bob")
        last = desk.kept[-1][0]
        assert last.application == "shop"
        assert last.callers == ("api_key:acme",)
        assert last.locks[0].at.key == "api_key:acme"
        assert last.locks[0].checks == last.locks[0].denials > 0

    def test_a_server_that_does_not_hear_is_polled_all_the_same(self) -> None:
        feed = HandFeed(a_lock(ends_in=FOR_EVER_S))
        with feed_server(feed) as url, Gate(HttpSource(url, wait=0.1)) as gate:
            assert gate.ready(PATIENCE_S)
            feed.set(a_lock("user:bob", ends_in=FOR_EVER_S))
            eventually(lambda: not gate.allow("user:bob"))
            assert gate.healthy

    def test_who_does_not_answer_holds_up_nobody_for_longer_than_a_second(self) -> None:
        """A server that takes what it is told and says nothing: the poll waits a moment, requests do not."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            source = HttpSource(f"http://127.0.0.1:{silent.getsockname()[1]}")
            begun_s = time.monotonic()
            with pytest.raises(SourceError, match="no whole answer in time"):
                source.hear(told())
            assert time.monotonic() - begun_s < HEAR_S + 0.5
            source.close()

    def test_an_answer_that_is_lost_leaves_one_row_with_the_whole(
        self, migrated_url: str, desk: Desk, url: str
    ) -> None:
        """What was told is told again, with more: the row is what the gate counted, not a sum."""
        engine = open_engine(migrated_url)
        try:
            source = HttpSource(url)
            for number in (1, 2, 2, 2, 3):  # a lost answer has it come twice
                source.hear(told(number, more=(10 * number, 5 * number)))
            source.close()
            eventually(lambda: bool(desk.kept) and desk.kept[-1][0].number == 3)
            for written in (*desk.kept, *desk.kept):
                store_statuses(engine, written)
            (gate,) = reporting_gates(engine)
            assert (gate.checks, gate.denials) == (30, 15)
        finally:
            engine.dispose()
