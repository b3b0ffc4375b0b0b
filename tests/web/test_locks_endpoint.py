"""`GET /v1/locks` through a real server and a real client."""

from __future__ import annotations

import gzip
import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from analyzer.faces import authentication
from analyzer.faces.authentication import LOG_EVERY_S, RefusalLog, RequestRefused, is_loopback
from analyzer.faces.feed import feed_cache
from analyzer.kernel.errors import StoreAway
from analyzer.kernel.tokens import Token, TokenList, token_digest
from gatekeeper.feed import feed_json
from gatekeeper.model import Clear, Cursor, Set, SourceError, Update
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server
from tests.support.waiting import wait_until

READER = Token("shop", token_digest("gatelock_shop"), "read", 0, None)
UNKNOWN_SCOPE = Token("new", token_digest("gatelock_new"), "of a later version", 0, None)
EXPIRED = Token("old", token_digest("gatelock_old"), "admin", 0, 500)
SOON_S = 5.0  # much less than any wait that a request asks for


class ObservedFeed(HandFeed):
    """A feed that a test changes while a server reads it; it records how it is read."""

    def __init__(self) -> None:
        super().__init__(a_lock())
        self.now = datetime.now(UTC)
        self.threads_inside = 0
        self.was_read_concurrently = False

    def fetch(self, since: Cursor | None) -> Update:
        self.threads_inside += 1
        self.was_read_concurrently = self.was_read_concurrently or self.threads_inside > 1
        try:
            time.sleep(0.002)  # as a database: another thread has time to start a read
            return super().fetch(since)
        finally:
            self.threads_inside -= 1

    def wait_for_waiter(self) -> None:
        """Returns when a request waits: the server only refreshes again and again while one does."""
        before = len(self.fetches)
        wait_until(lambda: len(self.fetches) >= before + 4)


class World:
    """A feed and the tokens of a server."""

    def __init__(self) -> None:
        self.feed = ObservedFeed()
        self.tokens: TokenList | Exception = TokenList((), 1_000)

    def load_tokens(self) -> TokenList:
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    with (
        feed_server(world.feed, world.load_tokens) as url,
        plain_http.Client(base_url=url, timeout=30, limits=httpx2.Limits(max_connections=200)) as client,
    ):
        yield client


def version_of(feed: HandFeed) -> dict[str, Any]:
    """The query of a gate that holds the latest version."""
    return {"since": feed.at.version, "mark": feed.at.mark}


# Answers


def test_without_a_version_a_gate_gets_every_lock_with_a_checksum(
    world: World, client: httpx2.Client
) -> None:
    answer = client.get("/v1/locks")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    update = feed_json.load(answer.content)
    assert (update.at, update.snapshot, update.changes) == (world.feed.at, True, (Set(a_lock()),))
    assert answer.json()["checksum"].startswith("sha256:")
    assert answer.json()["next_poll_s"] == 0.4


def test_with_a_version_a_gate_gets_the_changes_since(world: World, client: httpx2.Client) -> None:
    query = version_of(world.feed)
    world.feed.set(a_lock("user:bob"))
    world.feed.clear(a_lock())
    update = feed_json.load(client.get("/v1/locks", params=query).content)
    assert (update.since, update.snapshot) == (1, False)
    assert update.changes == (Set(a_lock("user:bob")), Clear(a_lock().at))
    assert update.waited < SOON_S


@pytest.mark.parametrize("query", [{"since": 1, "mark": "another"}, {"since": 999}, {"since": 1}])
def test_with_an_unknown_version_a_gate_gets_a_snapshot(query: dict[str, Any], client: httpx2.Client) -> None:
    assert client.get("/v1/locks", params=query).json()["snapshot"]


def test_a_version_that_the_etag_names_is_not_sent_again(world: World, client: httpx2.Client) -> None:
    etag = client.get("/v1/locks").headers["etag"]
    answer = client.get("/v1/locks", headers={"if-none-match": f'"x", {etag}'})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    world.feed.set(a_lock("user:bob"))
    answer = client.get("/v1/locks", headers={"if-none-match": etag})
    assert answer.status_code == 200
    assert answer.headers["etag"] != etag


@pytest.mark.parametrize(
    ("accepted", "compressed"), [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False)]
)
def test_a_long_answer_is_compressed_for_clients_that_accept_gzip(
    world: World, client: httpx2.Client, accepted: str, compressed: bool
) -> None:
    world.feed.set(*(a_lock(f"user:{n}") for n in range(1000)))
    with client.stream("GET", "/v1/locks", headers={"accept-encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())
    assert (answer.headers.get("content-encoding") == "gzip") is compressed
    assert len(feed_json.load(gzip.decompress(raw) if compressed else raw).changes) == 1001


@pytest.mark.parametrize(
    "query",
    [{"since": "x"}, {"since": ""}, {"since": -1}, {"since": 2**63}, {"since": "1_0"}, {"since": "\u0661"},
     {"since": 1, "mark": "m" * 65}, {"wait": "x"}, {"wait": -1}, {"wait": "nan"}, {"wait": "1e9"}],
)  # fmt: skip
def test_a_query_that_is_not_valid_is_refused_with_its_field(
    query: dict[str, Any], client: httpx2.Client
) -> None:
    answer = client.get("/v1/locks", params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["title"] == "Bad Request"
    assert next(iter(query if "mark" not in query else {"mark"})) in answer.json()["detail"]


def test_fields_that_a_later_gate_adds_to_its_query_are_ignored(client: httpx2.Client) -> None:
    assert client.get("/v1/locks?colour=red").status_code == 200


def test_a_feed_that_cannot_be_read_is_503_until_it_can(world: World, client: httpx2.Client) -> None:
    world.feed.away = True
    for query in ({}, version_of(world.feed) | {"wait": 5}):
        answer = client.get("/v1/locks", params=query)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"] == "The locks cannot be read at the moment."
    world.feed.away = False
    assert client.get("/v1/locks").status_code == 200


def test_head_is_answered_by_the_headers_alone(world: World, client: httpx2.Client) -> None:
    for number in (0, 1_000):  # in one piece, and in several
        world.feed.set(*(a_lock(f"user:{n}") for n in range(number + 1)))
        get, head = client.get("/v1/locks"), client.head("/v1/locks")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", get.headers["etag"])


def test_refusals_of_the_framework_are_problems_too(client: httpx2.Client) -> None:
    for answer, status in ((client.post("/v1/locks"), 405), (client.get("/v2/locks"), 404)):
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert answer.json()["status"] == status
        assert answer.json()["detail"].endswith(".")
        assert answer.headers["cache-control"] == "no-store"
    assert set(client.post("/v1/locks").headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_bug_is_answered_without_details(world: World, client: httpx2.Client) -> None:
    world.tokens = RuntimeError("s3cret")
    answer = client.get("/v1/locks")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "s3cret" not in answer.text


# Waiting (test_feed_cache.py has the rest, on a manual clock)


def test_a_waiting_request_is_answered_as_soon_as_something_changes(
    world: World, client: httpx2.Client
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=version_of(world.feed) | {"wait": 20})
        world.feed.wait_for_waiter()
        assert not waiting.done()
        changed_s = time.monotonic()
        world.feed.set(a_lock("user:bob"))
        update = feed_json.load(waiting.result(10).content)
    assert time.monotonic() - changed_s < SOON_S
    assert update.changes == (Set(a_lock("user:bob")),)
    assert 0.1 < update.waited < 10
    assert update.next_poll == 0


def test_a_wait_without_a_change_ends_with_no_changes(world: World, client: httpx2.Client) -> None:
    began_s = time.monotonic()
    update = feed_json.load(client.get("/v1/locks", params=version_of(world.feed) | {"wait": "0.3"}).content)
    assert 0.3 <= time.monotonic() - began_s < SOON_S
    assert (update.since, update.snapshot, update.changes) == (1, False, ())
    assert 0.1 < update.waited < SOON_S


def test_a_wait_ends_with_503_when_the_feed_can_no_longer_be_read(
    world: World, client: httpx2.Client
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=version_of(world.feed) | {"wait": 20})
        world.feed.wait_for_waiter()
        world.feed.away = True
        assert waiting.result(10).status_code == 503


def test_a_request_may_also_wait_with_an_etag(world: World, client: httpx2.Client) -> None:
    etag = client.get("/v1/locks").headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks?wait=20", headers={"if-none-match": etag})
        world.feed.wait_for_waiter()
        world.feed.set(a_lock("user:bob"))
        assert waiting.result(10).json()["snapshot"]
    etag = client.get("/v1/locks").headers["etag"]
    assert client.get("/v1/locks?wait=0.2", headers={"if-none-match": etag}).status_code == 304


def test_a_request_that_is_not_up_to_date_does_not_wait(world: World, client: httpx2.Client) -> None:
    query = version_of(world.feed) | {"wait": 20}
    world.feed.set(a_lock("user:bob"))
    began_s = time.monotonic()
    client.get("/v1/locks", params=query)
    client.get("/v1/locks?wait=20")
    assert time.monotonic() - began_s < SOON_S


def test_a_client_that_disconnects_gives_its_place_among_the_waiters_to_another(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_cache, "WAITERS_MAX", 1)
    at, address = version_of(world.feed), urlsplit(str(client.base_url))
    leaving = http.client.HTTPConnection(address.hostname or "", address.port)
    leaving.request("GET", f"/v1/locks?since={at['since']}&mark={at['mark']}&wait=30")
    world.feed.wait_for_waiter()

    def may_wait() -> bool:
        return bool(client.get("/v1/locks", params=at | {"wait": "0.1"}).json()["next_poll_s"] == 0)

    assert not may_wait()
    leaving.close()
    wait_until(may_wait)


def test_stopping_answers_the_requests_that_wait(world: World) -> None:
    with ThreadPoolExecutor() as pool, plain_http.Client(timeout=30) as client:
        with feed_server(world.feed) as url:
            query = version_of(world.feed) | {"wait": 30}
            waiting = pool.submit(client.get, f"{url}/v1/locks", params=query)
            world.feed.wait_for_waiter()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 2.5
        assert waiting.result(5).status_code == 200


def test_two_threads_never_use_the_source_at_once(world: World, client: httpx2.Client) -> None:
    stop = threading.Event()

    def change() -> None:
        for n in range(200):
            world.feed.set(a_lock(f"user:{n}"))
            if stop.wait(0.005):
                return

    def follow(_: int) -> int:
        query, version = {}, 0
        while version < 201:
            try:
                update = feed_json.load(client.get("/v1/locks", params=query | {"wait": 5}).content)
            except SourceError:
                continue
            version = update.at.version
            query = {"since": update.at.version, "mark": update.at.mark}
        return version

    changing = threading.Thread(target=change)
    changing.start()
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(follow, range(20))) == {201}
    stop.set()
    changing.join()
    assert not world.feed.was_read_concurrently


# Authentication


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_while_no_token_exists_this_machine_is_served(client: httpx2.Client) -> None:
    assert client.get("/v1/locks").status_code == 200
    assert client.get("/v1/locks", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 proxy"},
     {"host": "evil.example"}, {"host": "127.0.0.1.evil.example"}],
)  # fmt: skip
def test_while_no_token_exists_requests_through_a_proxy_or_by_another_name_are_refused(
    client: httpx2.Client, headers: dict[str, str]
) -> None:
    """Behind a proxy every request comes from this machine, and so does one of a browser on this machine for
    a web page whose name leads to 127.0.0.1."""
    answer = client.get("/v1/locks", headers=headers)
    assert answer.status_code == 403
    assert "gatelock upkeep tokens create" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status", "challenge"),
    [
        (bearing("gatelock_shop"), 200, None),
        ({"authorization": "bearer  gatelock_shop"}, 200, None),
        ({}, 401, "Bearer"),
        ({"authorization": "Basic Z2F0ZWxvY2tfc2hvcA=="}, 401, "Bearer"),
        (bearing("gatelock_shoP"), 401, 'Bearer error="invalid_token"'),
        (bearing("gatelock_old"), 401, 'Bearer error="invalid_token"'),
        (bearing("gatelock_new"), 403, 'Bearer error="insufficient_scope", scope="read"'),
    ],
)
def test_once_a_token_exists_every_request_needs_one(
    world: World, client: httpx2.Client, headers: dict[str, str], status: int, challenge: str | None
) -> None:
    world.tokens = TokenList((READER, UNKNOWN_SCOPE, EXPIRED), 1_000)
    answer = client.get("/v1/locks", headers=headers)
    assert (answer.status_code, answer.headers.get("www-authenticate")) == (status, challenge)
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert "gatelock_shop" not in answer.text


def test_a_revoked_token_is_refused_once_the_cached_tokens_expire(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "TOKENS_CACHED_S", 0.2)
    world.tokens = TokenList((READER, EXPIRED), 1_000)
    assert client.get("/v1/locks", headers=bearing("gatelock_shop")).status_code == 200
    world.tokens = TokenList((EXPIRED,), 1_000)
    wait_until(lambda: client.get("/v1/locks", headers=bearing("gatelock_shop")).status_code != 200)


def test_a_waiting_request_is_refused_once_its_token_was_revoked(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "TOKENS_CACHED_S", 0.0)
    world.tokens = TokenList((READER, EXPIRED), 1_000)
    query, headers = version_of(world.feed) | {"wait": 20}, bearing("gatelock_shop")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=query, headers=headers)
        world.feed.wait_for_waiter()
        world.tokens = TokenList((EXPIRED,), 1_000)
        world.feed.set(a_lock("user:bob"))
        assert waiting.result(10).status_code == 401


def test_a_token_is_refused_from_its_end_by_the_clock_of_the_database(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "TOKENS_CACHED_S", 0.0)
    short = Token("till", token_digest("gatelock_till"), "read", 0, 2_000)
    world.tokens = TokenList((short,), 1_999)
    assert client.get("/v1/locks", headers=bearing("gatelock_till")).status_code == 200
    world.tokens = TokenList((short,), 2_000)
    assert client.get("/v1/locks", headers=bearing("gatelock_till")).status_code == 401


def test_while_the_tokens_cannot_be_read_every_request_is_refused(
    world: World, client: httpx2.Client
) -> None:
    world.tokens = StoreAway("connection to postgresql://ann:s3cret@db refused")
    answer = client.get("/v1/locks", headers=bearing("gatelock_shop"))
    assert answer.status_code == 503
    assert "s3cret" not in answer.text


def test_a_request_does_not_wait_for_tokens_that_take_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.server.single_flight.TIMEOUT_S", 0.2)
    done = threading.Event()

    def hangs() -> TokenList:
        done.wait(30)
        return TokenList((), 0)

    with feed_server(world.feed, hangs) as url:
        assert plain_http.get(f"{url}/v1/locks").status_code == 503
        done.set()
        wait_until(lambda: plain_http.get(f"{url}/v1/locks").status_code != 503)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("LOCALHOST", True), ("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("gatelock", False),  # noqa: S104 - compared, not bound
     ("127.0.0.1.example", False), ("", False)],
)  # fmt: skip
def test_only_loopback_addresses_and_localhost_are_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_refused_requests_are_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s, counted = [0.0], Counter[str]()
    refusals = RefusalLog(lambda reason: counted.update([reason]), lambda: now_s[0])
    for n in range(1_000):
        refusals.add(RequestRefused("invalid-token", HTTPStatus.UNAUTHORIZED, ""), (f"192.0.2.{n % 250}", n))
    assert counted == {"invalid-token": 1_000}
    assert caplog.messages == ["requests refused: invalid-token: 1; from 192.0.2.0"]
    now_s[0] += LOG_EVERY_S
    refusals.add(RequestRefused("no-token", HTTPStatus.UNAUTHORIZED, ""), None)
    assert caplog.messages[1] == (
        "requests refused: invalid-token: 999, no-token: 1; from 192.0.2.1, 192.0.2.2, 192.0.2.3 and others"
    )


def test_after_the_last_token_is_revoked_no_request_is_served(world: World, client: httpx2.Client) -> None:
    world.tokens = TokenList((), 1_000, were_made=True)
    assert client.get("/v1/locks").status_code == 401


@pytest.mark.parametrize("field", ["origin", "sec-fetch-site"])
def test_a_web_page_is_not_served_while_there_are_no_tokens(client: httpx2.Client, field: str) -> None:
    assert client.get("/v1/locks").status_code == 200
    assert client.get("/v1/locks", headers={field: "cross-site"}).status_code == 403
