"""Long polls that are answered without the application, in the way in which it answers."""

from __future__ import annotations

import gzip
import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from analyzer.faces.feed.feed_cache import FeedCache
from analyzer.faces.feed.long_polls import FIELDS_BYTES_MAX, LongPolls
from analyzer.kernel.tokens import Token, TokenList, token_digest
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor
from tests.support.feed import HandFeed, a_lock
from tests.support.serving import feed_server, line_to
from tests.support.waiting import wait_until

HOST = b"host: 127.0.0.1\r\n"
TOKENS = TokenList((Token("shop", token_digest("gatelock_shop"), "read", 0, None),), 1_000)
BEARER = b"authorization: Bearer gatelock_shop\r\n"
GZIP = b"accept-encoding: gzip\r\n"


def a_poll(at: Cursor, wait: float = 0.05, fields: bytes = HOST) -> bytes:
    """A request in the form that needs no application."""
    return (
        f"GET /v1/locks?since={at.version}&mark={at.mark}&wait={wait:g} HTTP/1.1\r\n".encode()
        + fields
        + b"\r\n"
    )


def an_ordinary_request(at: Cursor, fields: bytes = HOST) -> bytes:
    """An equal request in another form, for the application."""
    return f"GET /v1/locks?mark={at.mark}&since={at.version} HTTP/1.1\r\n".encode() + fields + b"\r\n"


def is_readable(line: socket.socket, within_s: float) -> bool:
    """Whether something arrives within this time."""
    return bool(select.select([line], [], [], within_s)[0])


class Answer:
    """An answer from a connection."""

    def __init__(self, line: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more(line)
        head, _, self.body = received.partition(b"\r\n\r\n")
        self.status, *fields = head.decode().split("\r\n")
        self.fields = dict(field.split(": ", 1) for field in fields)
        while len(self.body) < int(self.fields.get("content-length", 0)):
            self.body += self._more(line)
        assert len(self.body) == int(self.fields.get("content-length", 0))

    @staticmethod
    def _more(line: socket.socket) -> bytes:
        received = line.recv(1 << 16)
        assert received, "the server closed the connection"
        return received

    @property
    def document(self) -> dict[str, Any]:
        body = gzip.decompress(self.body) if "content-encoding" in self.fields else self.body
        return dict(json.loads(body))


class World:
    """A server whose application counts the locks that it is asked for."""

    def __init__(self) -> None:
        self.feed = HandFeed(a_lock(ends_in=10**9))
        self.tokens = TokenList((), 1_000)
        self.by_application = 0
        self.url = ""

    def ask(self, *requests: bytes) -> list[Answer]:
        with line_to(self.url) as line:
            found = []
            for request in requests:
                line.sendall(request)
                found.append(Answer(line))
            return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world, answer = World(), FeedCache.answer

    async def counted(self: FeedCache, *arguments: Any) -> Any:
        world.by_application += 1
        return await answer(self, *arguments)

    monkeypatch.setattr(FeedCache, "answer", counted)
    with feed_server(world.feed, lambda: world.tokens) as world.url:
        yield world


@pytest.mark.parametrize("locks", [0, 1, 50], ids=["nothing", "a line", "gzip"])
def test_the_answer_equals_that_of_the_application(world: World, locks: int) -> None:
    held, fields = world.feed.at, HOST + GZIP
    for n in range(locks):
        world.feed.set(a_lock(f"user:{n}"))
    ordinary, first, second = world.ask(
        an_ordinary_request(held, fields), a_poll(held, fields=fields), a_poll(held, fields=fields)
    )
    assert world.by_application == 1
    for answer in (first, second):
        assert answer.status == ordinary.status == "HTTP/1.1 200 OK"
        assert answer.fields.keys() == ordinary.fields.keys()
        different = {name for name in answer.fields if answer.fields[name] != ordinary.fields[name]}
        assert different <= {"date", "content-length"}
        assert ("content-encoding" in answer.fields) is (locks == 50)
        without_times = {"waited_s": 0, "next_poll_s": 0}
        assert answer.document | without_times == ordinary.document | without_times
        assert answer.document["next_poll_s"] == 0.0, "a gate that waits polls again at once"


def test_a_change_answers_a_request_that_waits(world: World) -> None:
    held = world.feed.at
    with line_to(world.url) as line:
        line.sendall(a_poll(held, 0.01))
        assert Answer(line).document["changes"] == []
        line.sendall(a_poll(held, 20))
        assert not is_readable(line, 0.3)
        world.feed.set(a_lock("user:bob"))
        assert [change["key"] for change in Answer(line).document["changes"]] == ["user:bob"]
    assert world.by_application == 0


def test_a_gate_polls_without_the_application(world: World) -> None:
    from gatekeeper.sources.http import HttpSource

    source = HttpSource(world.url, wait=0.05)
    at = source.fetch(None).at
    before = world.by_application
    for _ in range(3):
        at = source.fetch(at).at
    source.close()
    assert world.by_application == before


@pytest.mark.parametrize(
    "data",
    [
        a_poll(Cursor(1, "m1"))[:-1],
        a_poll(Cursor(1, "m1")) + b"G",
        a_poll(Cursor(1, "m1")) * 2,
        a_poll(Cursor(1, "m1"), wait=0),
        a_poll(Cursor(2**63, "m1")),
        a_poll(Cursor(1, "m%31")),
        a_poll(Cursor(1, "m" * 65)),
        a_poll(Cursor(1, "m1")).replace(b"HTTP/1.1", b"HTTP/1.0"),
        a_poll(Cursor(1, "m1")).replace(b"GET", b"HEAD"),
        a_poll(Cursor(1, "m1")).replace(b"/v1/locks?", b"/v1/locks?x=1&"),
        a_poll(Cursor(1, "m1"), fields=b""),
        a_poll(Cursor(1, "m1"), fields=HOST + HOST),
        a_poll(Cursor(1, "m1"), fields=HOST + b"a b: c\r\n"),
        a_poll(Cursor(1, "m1"), fields=HOST + b"connection: close\r\n"),
        a_poll(Cursor(1, "m1"), fields=HOST + b'if-none-match: W/"1-m1"\r\n'),
        a_poll(Cursor(1, "m1"), fields=HOST + b"content-length: 3\r\n"),
        a_poll(Cursor(1, "m1"), fields=HOST + b"transfer-encoding: chunked\r\n"),
        a_poll(Cursor(1, "m1"), fields=HOST + b"expect: 100-continue\r\n"),
        a_poll(Cursor(1, "m1"), fields=HOST + b"x: " + b"x" * FIELDS_BYTES_MAX + b"\r\n"),
    ],
)  # fmt: skip
def test_other_requests_are_left_to_the_application(data: bytes) -> None:
    polls = LongPolls(None, None)  # type: ignore[arg-type]  # parsing needs neither
    assert polls.parse(a_poll(Cursor(1, "m1")), ("127.0.0.1", 1), None) is not None
    assert polls.parse(data, ("127.0.0.1", 1), None) is None


def test_fields_count_for_the_connection_on_which_they_were_sent(world: World) -> None:
    """And only as long as they are sent."""
    world.tokens = TOKENS
    bearing, nothing = a_poll(world.feed.at, fields=HOST + BEARER), a_poll(world.feed.at)
    answers = world.ask(bearing, bearing, nothing, bearing, nothing)
    found = [answer.status.split()[1] for answer in answers]
    assert found == ["200", "200", "401", "200", "401"]
    assert world.by_application == 0, "refusals come from it, but they need no locks"
    assert [answer.status.split()[1] for answer in world.ask(nothing)] == ["401"]


def test_without_tokens_another_name_of_this_machine_is_refused(world: World) -> None:
    (answer,) = world.ask(a_poll(world.feed.at, fields=b"host: gatelock.example\r\n"))
    assert answer.status.startswith("HTTP/1.1 403")


def test_a_long_answer_needs_the_application(world: World) -> None:
    held = world.feed.at
    world.ask(a_poll(held))  # the server knows this version
    world.feed.set(*(a_lock(f"user:{n}") for n in range(1_000)))
    (answer,) = world.ask(a_poll(held))
    assert (len(answer.document["changes"]), world.by_application) == (1_000, 1)


def test_an_answer_that_is_short_when_compressed_needs_no_application(world: World) -> None:
    held = world.feed.at
    world.ask(a_poll(held))  # the server knows this version
    world.feed.set(*(a_lock(f"user:{n}") for n in range(1_000)))
    (answer,) = world.ask(a_poll(held, fields=HOST + GZIP))
    assert (len(answer.document["changes"]), world.by_application) == (1_000, 0)


def test_an_unknown_version_gets_a_snapshot_from_the_application(world: World) -> None:
    (answer,) = world.ask(a_poll(Cursor(7, "unknown")))
    assert (answer.document["snapshot"], world.by_application) == (True, 1)


def test_a_source_that_fails_is_explained_by_the_application(world: World) -> None:
    at = world.feed.at
    world.ask(a_poll(at))
    world.feed.away = True
    (answer,) = world.ask(a_poll(at))
    assert answer.status.startswith("HTTP/1.1 503")
    assert answer.fields["retry-after"] == "1"


@pytest.mark.parametrize("split", ["in one piece", "while the first waits"])
def test_requests_that_are_sent_before_the_answer_are_answered_in_their_order(
    world: World, split: str
) -> None:
    held = world.feed.at
    world.feed.set(a_lock("user:bob"))
    requests = [a_poll(world.feed.at, 0.3), a_poll(held, 0.3)]
    with line_to(world.url) as line:
        if split == "in one piece":
            line.sendall(b"".join(requests))
        else:
            line.sendall(requests[0])
            assert not is_readable(line, 0.05)
            line.sendall(requests[1])
        with line.makefile("rb") as stream:
            changes = [len(_read(stream)["changes"]) for _ in requests]
    assert changes == [0, 1]


def _read(stream: Any) -> dict[str, Any]:
    head = b"".join(iter(stream.readline, b"\r\n")).decode()
    length = next(
        int(line.split(": ")[1]) for line in head.split("\r\n") if line.startswith("content-length")
    )
    return dict(json.loads(stream.read(length)))


def test_a_request_that_arrives_in_pieces_is_answered(world: World) -> None:
    request = a_poll(world.feed.at)
    with line_to(world.url) as line:
        for piece in (request[:20], request[20:-1]):
            line.sendall(piece)
            assert not is_readable(line, 0.05)
        line.sendall(request[-1:])
        assert Answer(line).status == "HTTP/1.1 200 OK"
        line.sendall(request)
        assert Answer(line).status == "HTTP/1.1 200 OK"


def test_a_client_that_leaves_while_it_waits_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[FeedCache] = []
    init: Callable[..., None] = FeedCache.__init__
    monkeypatch.setattr(
        FeedCache, "__init__", lambda self, *args: (init(self, *args), caches.append(self))[0]
    )
    feed = HandFeed(a_lock())
    with feed_server(feed) as url:
        with line_to(url) as line:
            line.sendall(a_poll(feed.at, 30))
            wait_until(lambda: len(caches[0]._waiting) == 1)
        wait_until(lambda: not caches[0]._waiting)


def test_stopping_answers_a_request_that_waits() -> None:
    feed = HandFeed(a_lock())
    with ExitStack() as stack:
        with feed_server(feed) as url:
            line = stack.enter_context(line_to(url))
            line.sendall(a_poll(feed.at, 30))
            wait_until(
                lambda: len(feed.fetches) > 3
            )  # the server reads again and again while a request waits
        assert feed_json.load(Answer(line).body).at == feed.at
