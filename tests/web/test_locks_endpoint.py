"""`GET /v1/locks` through a real server and a real client."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from analyzer.errors import StoreAway
from analyzer.store.operations.tokens import Token, TokenList, digest_of
from analyzer.web import authentication as bearers_module
from analyzer.web import feed_cache as feed_module
from analyzer.web.authentication import is_loopback
from gatekeeper.feed import feed_json
from gatekeeper.model import Clear, Cursor, Set, SourceError, Update
from tests.support import plain_http
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server

READER = Token("shop", digest_of("gatelock_shop"), "read", 0, None)
LATER = Token("new", digest_of("gatelock_new"), "of a later version", 0, None)
OVER = Token("old", digest_of("gatelock_old"), "admin", 0, 500)


class Feed(HandFeed):
    """Written by a test while a server reads; it counts how often it is read."""

    def __init__(self) -> None:
        super().__init__(a_lock())
        self.now = datetime.now(UTC)
        self.reads: list[Cursor | None] = []
        self.inside = 0
        self.crowded = False

    def fetch(self, since: Cursor | None) -> Update:
        self.inside += 1
        self.crowded = self.crowded or self.inside > 1
        self.reads.append(since)
        try:
            time.sleep(0.002)
            return super().fetch(since)
        finally:
            self.inside -= 1


class World:
    def __init__(self) -> None:
        self.feed = Feed()
        self.tokens: TokenList | Exception = TokenList((), 1_000)

    def known(self) -> TokenList:
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    with (
        feed_server(world.feed, world.known) as url,
        plain_http.Client(base_url=url, timeout=30, limits=httpx2.Limits(max_connections=200)) as client,
    ):
        yield client


def held(feed: HandFeed) -> dict[str, Any]:
    return {"since": feed.at.version, "mark": feed.at.mark}


# What is answered


def test_who_knows_nothing_gets_every_lock_with_a_checksum(world: World, client: httpx2.Client) -> None:
    answer = client.get("/v1/locks")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    update = feed_json.load(answer.content)
    assert (update.at, update.snapshot, update.changes) == (world.feed.at, True, (Set(a_lock()),))
    assert answer.json()["checksum"].startswith("sha256:")
    assert answer.json()["next_poll_s"] == 0.4


def test_who_knows_a_version_gets_what_changed_since(world: World, client: httpx2.Client) -> None:
    query = held(world.feed)
    world.feed.set(a_lock("user:bob"))
    world.feed.clear(a_lock())
    update = feed_json.load(client.get("/v1/locks", params=query).content)
    assert (update.since, update.snapshot) == (1, False)
    assert update.changes == (Set(a_lock("user:bob")), Clear(a_lock().at))
    assert update.waited < 5


@pytest.mark.parametrize("query", [{"since": 1, "mark": "another"}, {"since": 999}, {"since": 1}])
def test_who_knows_another_history_gets_a_snapshot(query: dict[str, Any], client: httpx2.Client) -> None:
    assert client.get("/v1/locks", params=query).json()["snapshot"]


def test_what_the_client_has_already_is_not_sent_again(world: World, client: httpx2.Client) -> None:
    etag = client.get("/v1/locks").headers["etag"]
    answer = client.get("/v1/locks", headers={"if-none-match": f'"x", {etag}'})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    world.feed.set(a_lock("user:bob"))
    answer = client.get("/v1/locks", headers={"if-none-match": etag})
    assert answer.status_code == 200
    assert answer.headers["etag"] != etag


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False)]
)
def test_a_long_answer_is_packed_where_that_is_asked_for(
    world: World, client: httpx2.Client, accepted: str, packed: bool
) -> None:
    world.feed.set(*(a_lock(f"user:{n}") for n in range(1000)))
    with client.stream("GET", "/v1/locks", headers={"accept-encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())
    assert (answer.headers.get("content-encoding") == "gzip") is packed
    assert len(feed_json.load(gzip.decompress(raw) if packed else raw).changes) == 1001


@pytest.mark.parametrize(
    "query",
    [{"since": "x"}, {"since": ""}, {"since": -1}, {"since": 2**63}, {"since": "1_0"}, {"since": "\u0661"},
     {"since": 1, "mark": "m" * 65}, {"wait": "x"}, {"wait": -1}, {"wait": "nan"}, {"wait": "1e9"}],
)  # fmt: skip
def test_a_question_that_is_none_is_told_so(query: dict[str, Any], client: httpx2.Client) -> None:
    answer = client.get("/v1/locks", params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["title"] == "Bad Request"
    assert next(iter(query if "mark" not in query else {"mark"})) in answer.json()["detail"]


def test_what_a_later_gate_adds_to_its_question_is_passed_over(client: httpx2.Client) -> None:
    assert client.get("/v1/locks?colour=red").status_code == 200


def test_a_feed_that_is_away_is_503_and_found_again(world: World, client: httpx2.Client) -> None:
    world.feed.away = True
    for query in ({}, held(world.feed) | {"wait": 5}):
        answer = client.get("/v1/locks", params=query)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"] == "The locks cannot be read at the moment."
    world.feed.away = False
    assert client.get("/v1/locks").status_code == 200


def test_who_waits_while_the_feed_goes_away_is_told(world: World, client: httpx2.Client) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=held(world.feed) | {"wait": 20})
        time.sleep(0.2)
        world.feed.away = True
        assert waiting.result(10).status_code == 503


# Waiting


def test_who_waits_is_told_as_soon_as_something_changes(world: World, client: httpx2.Client) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=held(world.feed) | {"wait": 20})
        time.sleep(0.3)
        assert not waiting.done()
        changed_s = time.monotonic()
        world.feed.set(a_lock("user:bob"))
        update = feed_json.load(waiting.result(10).content)
    assert time.monotonic() - changed_s < 5
    assert update.changes == (Set(a_lock("user:bob")),)
    assert 0.2 < update.waited < 10
    assert update.next_poll == 0


def test_who_is_told_that_there_is_news_does_not_wait_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_EVERY_S", 20.0)
    source = Feed()
    feed = feed_module.FeedCache(source, time.monotonic)
    feed.notify()  # before anybody ever asked

    async def story() -> tuple[Cursor, float]:
        held = (await feed.state(None, 0)).update.at
        waiting = asyncio.ensure_future(feed.state(held, 15))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        source.set(a_lock("user:bob"))
        begun_s = time.monotonic()
        await asyncio.to_thread(feed.notify)
        look = await waiting
        # Who comes back and has not heard of it yet does not wait for a look either.
        assert (await feed.state(held, 15)).update.at == look.update.at
        return look.update.at, time.monotonic() - begun_s

    at, took_s = asyncio.run(story())
    assert at == source.at
    assert took_s < 5
    feed.notify()  # nobody is there any more


def test_who_waits_for_nothing_is_told_so_in_the_end(world: World, client: httpx2.Client) -> None:
    begun_s = time.monotonic()
    update = feed_json.load(client.get("/v1/locks", params=held(world.feed) | {"wait": "0.3"}).content)
    assert 0.3 <= time.monotonic() - begun_s < 5
    assert (update.since, update.snapshot, update.changes) == (1, False, ())
    assert 0.1 < update.waited < 5


def test_one_may_also_wait_with_an_etag(world: World, client: httpx2.Client) -> None:
    etag = client.get("/v1/locks").headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks?wait=20", headers={"if-none-match": etag})
        time.sleep(0.2)
        world.feed.set(a_lock("user:bob"))
        assert waiting.result(10).json()["snapshot"]
    etag = client.get("/v1/locks").headers["etag"]
    assert client.get("/v1/locks?wait=0.2", headers={"if-none-match": etag}).status_code == 304


def test_who_is_not_up_to_date_does_not_wait(world: World, client: httpx2.Client) -> None:
    query = held(world.feed) | {"wait": 20}
    world.feed.set(a_lock("user:bob"))
    begun_s = time.monotonic()
    client.get("/v1/locks", params=query)
    client.get("/v1/locks?wait=20")
    assert time.monotonic() - begun_s < 5


def test_a_hundred_who_wait_cost_one_fetch_and_few_looks(world: World, client: httpx2.Client) -> None:
    client.get("/v1/locks")
    query = held(world.feed) | {"wait": 20}
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(client.get, "/v1/locks", params=query) for _ in range(100)]
        time.sleep(2.0)
        before = len(world.feed.reads)
        begun_s = time.monotonic()
        world.feed.set(a_lock("user:bob"))
        for each in waiting:
            assert feed_json.load(each.result(10).content).changes == (Set(a_lock("user:bob")),)
        looks = len(world.feed.reads) - before
        assert looks <= 3 + (time.monotonic() - begun_s) / feed_module.REFRESH_EVERY_S
    assert not world.feed.crowded


def test_when_too_many_wait_the_next_is_answered_at_once_with_a_pace(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "WAITERS_MAX", 1)
    query = held(world.feed) | {"wait": 3}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=query)
        time.sleep(0.3)
        begun_s = time.monotonic()
        answer = client.get("/v1/locks", params=query)
        assert time.monotonic() - begun_s < 2
        assert answer.json()["next_poll_s"] == 0.4
        assert not waiting.done()


def test_a_gate_that_has_gone_leaves_its_place(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "WAITERS_MAX", 1)
    at, place = held(world.feed), urlsplit(str(client.base_url))
    left = http.client.HTTPConnection(place.hostname or "", place.port)
    left.request("GET", f"/v1/locks?since={at['since']}&mark={at['mark']}&wait=30")
    time.sleep(0.3)
    left.close()
    time.sleep(0.3)
    assert client.get("/v1/locks", params=at | {"wait": "0.2"}).json()["next_poll_s"] == 0


def test_nobody_looks_when_nobody_asks(world: World, client: httpx2.Client) -> None:
    client.get("/v1/locks", params=held(world.feed) | {"wait": "0.2"})
    time.sleep(0.3)
    before = len(world.feed.reads)
    time.sleep(0.3)
    assert len(world.feed.reads) == before


def test_stopping_lets_those_go_who_wait(world: World) -> None:
    with ThreadPoolExecutor() as pool, plain_http.Client(timeout=30) as client:
        with feed_server(world.feed) as url:
            waiting = pool.submit(client.get, f"{url}/v1/locks", params=held(world.feed) | {"wait": 30})
            time.sleep(0.3)
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 2.5
        assert waiting.result(5).status_code == 200


def test_the_more_come_the_less_often_they_are_asked_to(
    client: httpx2.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REQUESTS_PER_S_MAX", 1)
    for _ in range(20):
        pace_s = client.get("/v1/locks").json()["next_poll_s"]
    assert 5 * 0.4 <= pace_s <= 20 * 0.4
    waiting = client.get("/v1/locks", params=held(world.feed) | {"wait": "0.1"}).json()["next_poll_s"]
    assert 3 * 0.4 <= waiting <= 20 * 0.4


# Who may ask


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_without_any_token_this_machine_may_ask(client: httpx2.Client) -> None:
    assert client.get("/v1/locks").status_code == 200
    assert client.get("/v1/locks", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 proxy"},
     {"host": "evil.example"}, {"host": "127.0.0.1.evil.example"}],
)  # fmt: skip
def test_without_any_token_nobody_asks_through_another(
    client: httpx2.Client, headers: dict[str, str]
) -> None:
    """A proxy makes everybody come from here, and so does a web page whose name leads to 127.0.0.1."""
    answer = client.get("/v1/locks", headers=headers)
    assert answer.status_code == 403
    assert "gatelock tokens create" in answer.json()["detail"]


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
def test_once_a_token_was_made_everybody_needs_one(
    world: World, client: httpx2.Client, headers: dict[str, str], status: int, challenge: str | None
) -> None:
    world.tokens = TokenList((READER, LATER, OVER), 1_000)
    answer = client.get("/v1/locks", headers=headers)
    assert (answer.status_code, answer.headers.get("www-authenticate")) == (status, challenge)
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert "gatelock_shop" not in answer.text


def test_a_revoked_token_is_noticed_and_the_tokens_are_not_read_for_each_request(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers_module, "TOKENS_CACHED_S", 0.2)
    world.tokens = TokenList((READER, OVER), 1_000)
    assert client.get("/v1/locks", headers=bearing("gatelock_shop")).status_code == 200
    world.tokens = TokenList((OVER,), 1_000)
    deadline_s = time.monotonic() + 10
    while client.get("/v1/locks", headers=bearing("gatelock_shop")).status_code == 200:
        assert time.monotonic() < deadline_s


def test_who_waits_is_told_nothing_once_the_token_was_revoked(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers_module, "TOKENS_CACHED_S", 0.1)
    world.tokens = TokenList((READER, OVER), 1_000)
    query, headers = held(world.feed) | {"wait": 20}, bearing("gatelock_shop")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.get, "/v1/locks", params=query, headers=headers)
        time.sleep(0.3)
        world.tokens = TokenList((OVER,), 1_000)
        world.feed.set(a_lock("user:bob"))
        assert waiting.result(10).status_code == 401


def test_a_token_that_came_to_its_end_is_noticed(
    world: World, client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers_module, "TOKENS_CACHED_S", 0.0)
    short = Token("till", digest_of("gatelock_till"), "read", 0, 2_000)
    world.tokens = TokenList((short,), 1_999)
    assert client.get("/v1/locks", headers=bearing("gatelock_till")).status_code == 200
    world.tokens = TokenList((short,), 2_000)
    assert client.get("/v1/locks", headers=bearing("gatelock_till")).status_code == 401


def test_tokens_that_cannot_be_read_let_nobody_in(world: World, client: httpx2.Client) -> None:
    world.tokens = StoreAway("connection to postgresql://ann:s3cret@db refused")
    answer = client.get("/v1/locks", headers=bearing("gatelock_shop"))
    assert answer.status_code == 503
    assert "s3cret" not in answer.text


def test_tokens_that_cannot_be_read_are_looked_for_once_for_all_who_ask(world: World) -> None:
    looks = []

    def hangs() -> TokenList:
        looks.append(time.monotonic())
        time.sleep(0.5)
        raise StoreAway("it hangs")

    with feed_server(world.feed, hangs) as url, ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: plain_http.get(f"{url}/v1/locks", timeout=30), range(30)))
    assert {answer.status_code for answer in answers} == {503}
    assert len(looks) < 10


def test_tokens_that_are_read_for_too_long_are_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.web.single_flight.TIMEOUT_S", 0.2)
    done = threading.Event()

    def hangs() -> TokenList:
        done.wait(30)
        return TokenList((), 0)

    with feed_server(world.feed, hangs) as url:
        assert plain_http.get(f"{url}/v1/locks").status_code == 503
        done.set()
        deadline_s = time.monotonic() + 10
        while plain_http.get(f"{url}/v1/locks").status_code == 503:
            assert time.monotonic() < deadline_s


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("LOCALHOST", True), (".".join("0000"), False), ("::", False), ("192.0.2.1", False), ("gatelock", False),
     ("127.0.0.1.example", False), ("", False)],
)  # fmt: skip
def test_what_can_only_be_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_the_source_is_never_asked_by_two_threads_at_once(world: World, client: httpx2.Client) -> None:
    stop = threading.Event()

    def change() -> None:
        for n in range(200):
            world.feed.set(a_lock(f"user:{n}"))
            if stop.wait(0.005):
                return

    def follow(_: int) -> int:
        query, seen = {}, 0
        while seen < 201:
            try:
                update = feed_json.load(client.get("/v1/locks", params=query | {"wait": 5}).content)
            except SourceError:
                continue
            seen = update.at.version
            query = {"since": update.at.version, "mark": update.at.mark}
        return seen

    changing = threading.Thread(target=change)
    changing.start()
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(follow, range(20))) == {201}
    stop.set()
    changing.join()
    assert not world.feed.crowded


def test_what_the_framework_refuses_is_a_problem_too(client: httpx2.Client) -> None:
    for answer, status in ((client.post("/v1/locks"), 405), (client.get("/v2/locks"), 404)):
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert answer.json()["status"] == status
        assert answer.json()["detail"].endswith(".")
        assert answer.headers["cache-control"] == "no-store"
    assert set(client.post("/v1/locks").headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_head_is_answered_by_the_headers_alone(world: World, client: httpx2.Client) -> None:
    for number in (0, 1_000):  # in one piece, and in several
        world.feed.set(*(a_lock(f"user:{n}") for n in range(number + 1)))
        get, head = client.get("/v1/locks"), client.head("/v1/locks")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", get.headers["etag"])


def test_a_mistake_of_ours_is_a_problem_that_tells_nothing(world: World, client: httpx2.Client) -> None:
    world.tokens = RuntimeError("s3cret")
    answer = client.get("/v1/locks")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "s3cret" not in answer.text
