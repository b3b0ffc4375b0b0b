"""`PUT /v1/gates/{instance}` through a real server, with a real client and a real gate."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import httpx2
import pytest

from analyzer.faces.api import request_bodies as bodies
from analyzer.faces.feed import gates_endpoint as module
from analyzer.faces.feed.gates_endpoint import PendingStatuses
from analyzer.gates.gate_reports import reporting_gates, store_statuses
from analyzer.kernel.database.engine import open_engine
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import Token, TokenList, token_digest
from gatekeeper import Gate
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.sources.http import REPORT_S, HttpSource
from gatekeeper.telemetry import gate_status, status_json
from gatekeeper.telemetry.status_json import STATUS_BYTES_MAX
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server
from tests.support.waiting import PATIENCE_S, wait_until

READER = Token("shop", token_digest("gatelock_shop"), "read", 0, None)
FOREVER_S = 1e9


def status(number: int = 1, instance: str = "host:1:ab", **fields: Any) -> GateStatus:
    """A status report; `fields` replace those of an idle gate."""
    idle: dict[str, Any] = {"application": "shop", "library": "0.1.0", "at": None, "age": 0.4, "locks": (),
                            "more": (0, 0), "callers": ()}  # fmt: skip
    return GateStatus(instance=instance, number=number, **idle | fields)


class StatusStore:
    """Receives the batches that a server stores; it may block or fail."""

    def __init__(self) -> None:
        self.batches: list[list[GateStatus]] = []
        self.failures_left = 0
        self.began = threading.Event()
        self.released = threading.Event()
        self.released.set()
        self.tokens = TokenList((), 0)

    def store(self, statuses: Collection[GateStatus], _tokens: Mapping[str, str]) -> None:
        self.began.set()
        assert self.released.wait(PATIENCE_S)
        if self.failures_left:
            self.failures_left -= 1
            raise StoreAway("it is not there")
        self.batches.append(list(statuses))

    def after(self, batches: int) -> list[list[GateStatus]]:
        """Returns all batches, once there are so many."""
        wait_until(lambda: len(self.batches) >= batches)
        return self.batches


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_EVERY_S", 0.05)
    monkeypatch.setattr(gate_status, "REPORT_EVERY_S", 0.1)


@pytest.fixture
def store() -> StatusStore:
    return StatusStore()


@pytest.fixture
def url(store: StatusStore) -> Iterator[str]:
    feed = HandFeed(a_lock(ends_in=FOREVER_S))
    with feed_server(feed, lambda: store.tokens, pending=PendingStatuses(store.store)) as url:
        yield url


def put(url: str, body: str | bytes, instance: str = "host:1:ab", **headers: str) -> httpx2.Response:
    return plain_http.put(f"{url}/v1/gates/{instance}", content=body, headers=headers, timeout=PATIENCE_S)


def test_reports_are_stored_later_in_batches_with_the_latest_of_each_gate(
    url: str, store: StatusStore
) -> None:
    store.released.clear()  # the database takes its time, and no gate waits for it
    assert put(url, status_json.dump(status())).status_code == 204
    assert store.began.wait(PATIENCE_S)
    for report in (status(2), status(5), status(4), status(1, "other:2:cd")):
        assert put(url, status_json.dump(report), report.instance).status_code == 204
    store.released.set()
    assert store.after(2) == [[status()], [status(5), status(1, "other:2:cd")]]


def test_reports_that_cannot_be_stored_are_dropped_and_later_ones_are_stored(
    url: str, store: StatusStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.failures_left = 2
    for number in (1, 2, 3):
        put(url, status_json.dump(status(number)))
        left = max(0, 2 - number)
        wait_until(lambda: store.failures_left == left)  # noqa: B023 - called at once
    assert store.after(1) == [[status(3)]]
    assert caplog.text.count("cannot store the status reports") == 1


def test_a_bounded_number_of_gates_waits_to_be_stored(
    url: str, store: StatusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    monkeypatch.setattr(module, "STORE_EVERY_S", 1.0)
    answers = [put(url, status_json.dump(status(1, f"h:{n}")), f"h:{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [204, 204, 503]
    assert answers[2].headers["retry-after"] == "60"
    assert put(url, status_json.dump(status(2, "h:1")), "h:1").status_code == 204, "it has its place"


@pytest.mark.parametrize(
    ("body", "instance", "status_code", "detail"),
    [
        ("{", "host:1:ab", 400, "not a JSON document"),
        ("[]", "host:1:ab", 400, "expected an object"),
        (json.dumps({"instance": "a b", "number": 1}), "host:1:ab", 400, "expected instance"),
        (status_json.dump(status()), "other", 400, "`instance` in the document must be"),
        (b" " * (STATUS_BYTES_MAX + 1), "host:1:ab", 413, "at most"),
    ],
    ids=["half", "a list", "a strange name", "another instance", "too long"],
)
def test_a_document_that_is_not_a_valid_report_is_refused(
    url: str, store: StatusStore, body: str | bytes, instance: str, status_code: int, detail: str
) -> None:
    answer = put(url, body, instance)
    assert (answer.status_code, answer.headers["content-type"]) == (status_code, "application/problem+json")
    assert detail in answer.json()["detail"]
    assert store.batches == []


def test_the_server_waits_for_the_rest_of_a_report_only_for_a_while(
    url: str, store: StatusStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    half = b"PUT /v1/gates/host:1:ab HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{"
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(address, PATIENCE_S) as slow:
        slow.sendall(half)
        assert slow.recv(1_000).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(address, PATIENCE_S) as leaving:
        leaving.sendall(half)
    assert put(url, status_json.dump(status())).status_code == 204
    assert store.after(1) == [[status()]]
    assert "Exception in ASGI" not in caplog.text


def test_a_report_needs_a_token_with_the_scope_read(url: str, store: StatusStore) -> None:
    store.tokens = TokenList((READER,), 1_000)
    assert put(url, status_json.dump(status()), authorization="Bearer wrong").status_code == 401
    assert put(url, status_json.dump(status()), authorization="Bearer gatelock_shop").status_code == 204
    assert store.after(1) == [[status()]]


class TestAGate:
    def test_a_gate_reports_the_locks_it_enforced_and_some_callers(
        self, url: str, store: StatusStore
    ) -> None:
        with Gate(HttpSource(url, wait=0.1), name="shop") as gate:
            assert gate.ready(PATIENCE_S)
            # The gate samples callers only after its first report.
            wait_until(
                lambda: (
                    not gate.allow("api_key:acme")
                    and bool(store.batches)
                    and bool(store.batches[-1][0].callers)
                )
            )
            assert gate.allow("user:bob")
        last = store.batches[-1][0]
        assert last.application == "shop"
        assert last.callers == ("api_key:acme",)
        assert last.locks[0].at.key == "api_key:acme"
        assert last.locks[0].checks == last.locks[0].denials > 0

    def test_a_gate_polls_a_server_that_takes_no_reports(self) -> None:
        feed = HandFeed(a_lock(ends_in=FOREVER_S))
        with feed_server(feed) as url, Gate(HttpSource(url, wait=0.1)) as gate:
            assert gate.ready(PATIENCE_S)
            feed.set(a_lock("user:bob", ends_in=FOREVER_S))
            wait_until(lambda: not gate.allow("user:bob"))
            assert gate.healthy

    def test_a_report_that_is_not_answered_times_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            source = HttpSource(f"http://127.0.0.1:{silent.getsockname()[1]}")
            began_s = time.monotonic()
            with pytest.raises(SourceError):
                source.report_status(status())
            assert REPORT_S / 2 < time.monotonic() - began_s < 4 * REPORT_S
            source.close()

    def test_a_report_that_arrives_twice_is_counted_once(
        self, migrated_url: str, store: StatusStore, url: str
    ) -> None:
        """A report contains everything since the gate began: its row is replaced, not added to."""
        engine = open_engine(migrated_url)
        try:
            source = HttpSource(url)
            for number in (1, 2, 2, 2, 3):  # after a lost answer a gate sends a report again
                source.report_status(status(number, more=(10 * number, 5 * number)))
            source.close()
            wait_until(lambda: bool(store.batches) and store.batches[-1][0].number == 3)
            for batch in (*store.batches, *store.batches):
                store_statuses(engine, batch)
            (gate,) = reporting_gates(engine)
            assert (gate.checks, gate.denials) == (30, 15)
        finally:
            engine.dispose()


def test_long_reports_take_no_room_from_those_of_honest_gates(
    url: str, store: StatusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another token, and of the same one."""
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 300_000)
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 100_000)
    hostile = Token("other", token_digest("gatelock_other"), "read", 0, None)
    store.tokens = TokenList((READER, hostile), 1_000)
    store.released.clear()
    put(url, status_json.dump(status()), authorization="Bearer gatelock_shop")
    assert store.began.wait(PATIENCE_S)
    honest = [status(1, f"web-{n}:1:a") for n in range(20)]
    for n, report in enumerate(honest):
        for token in ("gatelock_shop", "gatelock_other"):
            long = status_json.dump(status(1, f"{token}:{n}"))[:-1] + ', "x": "' + "x" * 100_000 + '"}'
            put(url, long, f"{token}:{n}", authorization=f"Bearer {token}")
        answer = put(url, status_json.dump(report), report.instance, authorization="Bearer gatelock_shop")
        assert answer.status_code == 204
    store.released.set()
    wait_until(lambda: {report.instance for batch in store.batches for report in batch} >= {
        report.instance for report in honest
    })  # fmt: skip
    assert sum(map(len, store.batches)) <= 1 + len(honest) + 3


def test_an_instance_belongs_to_its_token_until_it_is_silent(
    url: str, store: StatusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tokens = TokenList((READER, Token("other", token_digest("gatelock_other"), "read", 0, None)), 1_000)
    assert put(url, status_json.dump(status(1)), authorization="Bearer gatelock_shop").status_code == 204
    forged = status_json.dump(status(2**63 - 1))
    assert put(url, forged, authorization="Bearer gatelock_other").status_code == 403
    assert put(url, status_json.dump(status(2)), authorization="Bearer gatelock_shop").status_code == 204
    monkeypatch.setattr(module, "OWNED_S", -1.0)  # its token was replaced, and it reports with the new one
    assert put(url, status_json.dump(status(3)), authorization="Bearer gatelock_other").status_code == 204
