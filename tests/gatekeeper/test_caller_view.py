"""`Gate.caller_view`: a real gate, and a real server of documents that a test holds."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import http_sf
import pytest

from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import Token, TokenList, token_digest
from gatekeeper import Gate, SourceError
from gatekeeper.adapters import caller_view_response as views
from gatekeeper.adapters.caller_view_response import caller_view_response, caller_view_response_async
from gatekeeper.caller_view import parse_view
from gatekeeper.log_pace import LogPace
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.sources.http import VIEW_CONNECTIONS_MAX, HttpSource
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server
from tests.support.waiting import PATIENCE_S

ACME, STRANGE = "api_key:acme", "user:Ünal, 100% (a\\b)"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
FOREVER_S = 1e9


def limit(policy: str, used: int, amount: int | None, **fields: Any) -> dict[str, Any]:
    left = None if amount is None else max(0, amount - used)
    return {
        "policy": policy, "scope": "caller", "resource": None, "meter": "requests", "unit": None,
        "used": used, "limit": amount, "remaining": left, "window_s": 86_400,
        "resets": "2026-11-21T00:00:00Z", "reached": None, "exempt": amount is None, "detail": "a sentence",
    } | fields  # fmt: skip


class Documents:
    """The documents of callers; the database may be away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False
        self.tokens = TokenList((), 0)
        self.limits = [
            limit("daily", 40, 100),
            limit("rolling", 0, 9, window_s=7200, resets=None),
            limit("traffic", 5, 1 << 31, meter="volume", unit="bytes"),
            limit("busy", 5, 10**9, meter="busy", unit="microseconds"),
            limit("daily", 90, 100, resource="/v1/export"),
            limit("free", 7, None),
        ]

    def __call__(self, caller: str) -> Mapping[str, Any]:
        self.asked.append(caller)
        if self.is_away:
            raise StoreAway("it is not there")
        locked = caller == "api_key:locked"
        return {"format": 1, "now": "2026-11-20T12:00:00Z", "locked": locked, "locks": [], "later": 1,
                "limits": self.limits}  # fmt: skip


@pytest.fixture
def documents() -> Documents:
    return Documents()


@pytest.fixture
def url(documents: Documents) -> Iterator[str]:
    feed = HandFeed(a_lock(ends_in=FOREVER_S))
    with feed_server(feed, lambda: documents.tokens, views=documents) as url:
        yield url


@pytest.fixture
def gate(url: str) -> Iterator[Gate]:
    with Gate(url) as gate:
        assert gate.ready(PATIENCE_S)
        yield gate


@pytest.mark.parametrize("caller", [ACME, STRANGE, "address:2001:db8::/64"])
def test_a_gate_asks_for_one_caller(gate: Gate, documents: Documents, caller: str) -> None:
    view = gate.caller_view(caller)
    assert documents.asked == [caller]
    assert (view.locked, view.now, view.max_age) == (False, NOW, 5.0)
    assert [(one.policy, one.remaining) for one in view.limits][:2] == [("daily", 60), ("rolling", 9)]
    assert view.limits[0].resets == NOW + timedelta(hours=12)
    assert (view.limits[1].resets, view.limits[1].window) == (None, 7200)
    assert (view.limits[4].resource, view.limits[5].limit) == ("/v1/export", None)
    assert b'"later": 1' in view.document, "what this version does not know is passed on"


def test_an_asyncio_application_does_not_block(gate: Gate) -> None:
    async def ask_all() -> list[bool]:
        views = await asyncio.gather(*(gate.caller_view_async(f"user:{n}") for n in range(20)))
        return [view.locked for view in views]

    assert asyncio.run(ask_all()) == [False] * 20


def test_threads_ask_at_the_same_time_and_connections_are_kept(gate: Gate, documents: Documents) -> None:
    source = gate._options.source
    assert isinstance(source, HttpSource)
    with ThreadPoolExecutor(12) as pool:
        assert len(list(pool.map(gate.caller_view, [f"user:{n}" for n in range(60)]))) == 60
    assert sorted(documents.asked) == sorted(f"user:{n}" for n in range(60))
    assert 1 <= len(source._for_views) <= VIEW_CONNECTIONS_MAX
    gate.close()
    assert source._for_views == []


def test_asking_does_not_wait_for_the_long_poll(url: str) -> None:
    source = HttpSource(url, wait=20, timeout=20)
    at = source.fetch(None).at

    def poll() -> None:
        with suppress(SourceError):  # the source was closed
            source.fetch(at)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        assert source.caller_view(ACME).locked is False
        assert polling.is_alive()
    finally:
        source.close()
        polling.join(PATIENCE_S)


def test_a_forked_child_asks_on_separate_connections(gate: Gate) -> None:
    gate.caller_view(ACME)  # leaves an open connection
    child = os.fork()
    if not child:
        os._exit(0 if gate.caller_view("user:child").max_age == 5.0 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert gate.caller_view(ACME).locked is False


def test_a_token_for_locks_alone_is_refused_with_the_scope_that_it_needs(
    url: str, documents: Documents
) -> None:
    reader = Token("shop", token_digest("gatelock_read"), "read", 0, None)
    asker = Token("till", token_digest("gatelock_callers"), "callers", 0, None)
    documents.tokens = TokenList((reader, asker), 0, were_made=True)
    with pytest.raises(SourceError, match="403 Forbidden: The token shop has the scope read; this request"):
        Gate(url, token="gatelock_read").caller_view(ACME)
    assert Gate(url, token="gatelock_callers").caller_view(ACME).locked is False
    assert documents.asked == [ACME]


@pytest.mark.parametrize("caller", ["", "acme", "unnamed:", "api_key:\n"])
def test_a_name_without_its_kind_is_refused_before_it_is_sent(gate: Gate, caller: str) -> None:
    with pytest.raises(ValueError, match="expected a name with its kind"):
        gate.caller_view(caller)


def test_a_gate_without_a_server_says_so(tmp_path: Path) -> None:
    for gate in (
        Gate(FixedSource()),
        Gate(f"sqlite:///{tmp_path}/none.db"),
        Gate("file:///none.json", saved=tmp_path / "view", shared=True),
    ):
        with pytest.raises(ValueError, match="only a server can be asked"):
            gate.caller_view(ACME)


def test_processes_that_share_a_poller_ask_each_for_itself(url: str, tmp_path: Path) -> None:
    assert Gate(url, saved=tmp_path / "view", shared=True).caller_view(ACME).limits[0].used == 40


def test_while_the_database_is_away_the_error_says_where(gate: Gate, url: str, documents: Documents) -> None:
    documents.is_away = True
    with pytest.raises(SourceError, match=r"127\.0\.0\.1.*503 Service Unavailable: The use of callers"):
        gate.caller_view(ACME)
    documents.is_away = False
    assert gate.caller_view(ACME).locked is False


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"[]", "expected an object"),
        (b'{"format": 2}', "of a later version"),
        (b'{"format": 1, "limits": [], "now": "2026-11-20T12:00:00Z"}', "locked"),
        (b'{"format": 1, "locked": false, "limits": [{}], "now": "2026-11-20T12:00:00Z"}', "policy"),
    ],
)
def test_another_document_is_an_error(document: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_view(document, 5.0)


# -- the response that passes it on --------------------------------------------------------------

Ask = Callable[..., Any]


def ask_async(gate: Gate, *arguments: Any) -> Any:
    return asyncio.run(caller_view_response_async(gate, *arguments))


both = pytest.mark.parametrize("ask", [caller_view_response, ask_async], ids=["sync", "async"])


@both
def test_the_response_has_the_document_and_what_remains_of_each_policy(gate: Gate, ask: Ask) -> None:
    answer = ask(gate, ACME)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["cache-control"] == "private, max-age=5"
    assert answer.body == gate.caller_view(ACME).document
    # By resource the one with least remaining; nothing in a unit that the draft does not have.
    assert dict(http_sf.parse(answer.headers["ratelimit"].encode(), tltype="list")) == {
        "daily": {"r": 10, "t": 43_200},
        "rolling": {"r": 9},
        "traffic": {"r": (1 << 31) - 5, "t": 43_200},
    }
    assert dict(http_sf.parse(answer.headers["ratelimit-policy"].encode(), tltype="list")) == {
        "daily": {"q": 100, "w": 86_400},
        "rolling": {"q": 9, "w": 7_200},
        "traffic": {"q": 1 << 31, "qu": "content-bytes", "w": 86_400},
    }


@both
def test_the_response_has_the_chosen_headers(gate: Gate, ask: Ask) -> None:
    legacy = {name: value for name, value in ask(gate, ACME, "legacy").headers.items() if "rate" in name}
    assert legacy == {
        "x-ratelimit-limit": "9", "x-ratelimit-remaining": "9"
    }, "of the policy with least remaining"  # fmt: skip
    assert not [name for name in ask(gate, ACME, "off").headers if "rate" in name]
    with pytest.raises(ValueError, match="expected one of draft"):
        ask(gate, ACME, "other")


@both
def test_a_request_without_a_caller_is_a_400(gate: Gate, documents: Documents, ask: Ask) -> None:
    answer = ask(gate, "")
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert documents.asked == []


@both
def test_while_the_server_is_away_the_response_is_a_503_without_details(
    gate: Gate,
    documents: Documents,
    ask: Ask,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "_unavailable_pace", LogPace())
    documents.is_away = True
    answer = ask(gate, ACME)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["cache-control"] == "no-store"
    assert b"127.0.0.1" not in answer.body
    assert "a caller's view cannot be read" in caplog.text
