"""Long polls of gates, answered without an HTTP parser and without the application.

*Purpose.* A change wakes every waiting gate, each gets an answer, and each asks again. With uvicorn, h11 and
Starlette an answer costs half a millisecond, of which a tenth is the answer itself: 500 gates and ten changes
a second would keep a core busy, and the last gate would wait for half a second. docs/decisions/0020 has the
measurement.

*Method.* A gate sends the same bytes again and again, in which only `since`, `mark` and `wait` differ. The
connection gives each piece of data that may be such a request to `LongPolls.parse`, which knows exactly one
form of it. h11 parses the header fields when they are seen for the first time on a connection. After that,
equal bytes are equal fields.

*What it leaves to the application.* Everything but a short answer to a valid request: other requests, header
fields that call for something else, refusals, errors, long answers. The connection then gives the same bytes
to uvicorn as if nothing had happened. So no rule of the protocol is written twice, and a gate cannot tell the
difference but by the time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import NamedTuple

import h11
from starlette.requests import Request

from analyzer.faces.authentication import Authenticator, Credentials
from analyzer.faces.feed.feed_cache import FeedCache
from analyzer.faces.feed.locks_endpoint import (
    ANSWER_HEADERS,
    GZIP_BYTES_MIN,
    VERSION_MAX,
    WAIT_MAX_S,
    accepts_gzip,
    etag_of,
)
from analyzer.server.problems import HttpProblem
from analyzer.server.shared_gzip import CHECKSUM_BYTES_MAX, PIECE_BYTES
from gatekeeper.model import Cursor, SourceError

COST = 0.2  # of an ordinary request
FIELDS_BYTES_MAX = 2 << 10  # kept per connection

REQUEST_LINE = re.compile(
    rb"GET /v1/locks\?since=(\d{1,19})&mark=([\w.~-]{0,64})&wait=(\d{1,6}(?:\.\d{1,6})?) HTTP/1\.1\r\n",
    re.ASCII,
)
END_OF_HEAD = b"\r\n\r\n"
# With one of these fields a request needs more than a look at the feed.
LEFT_TO_APPLICATION = {
    *(b"connection", b"content-length", b"expect", b"if-none-match", b"transfer-encoding", b"upgrade"),
}
KEEP_ALIVE = (b"connection", b"keep-alive")  # means what HTTP/1.1 does anyway
STATUS_LINE = b"HTTP/1.1 200 OK\r\n"
COMMON_FIELDS = b"".join(f"{name}: {value}\r\n".encode() for name, value in ANSWER_HEADERS.items())


class PollFields(NamedTuple):
    """The header fields of a long poll, as far as its answer depends on them."""

    raw: bytes
    credentials: Credentials
    accepts_gzip: bool


class LongPoll(NamedTuple):
    """A request for the changes after `since`, as soon as there are any."""

    since: Cursor
    wait_s: float
    fields: PollFields


class LongPolls:
    """Parses and answers long polls. All methods belong to the event loop of the feed."""

    def __init__(self, feed: FeedCache, authenticator: Authenticator) -> None:
        self._feed = feed
        self._authenticator = authenticator

    def parse(
        self, data: bytes, client: tuple[str, int] | None, fields: PollFields | None
    ) -> LongPoll | None:
        """Returns the long poll in `data`; None if it is anything else, or has to be left to the application.

        `client` is the address of the connection, `known` the fields of its last long poll.
        """
        line = REQUEST_LINE.match(data)
        if line is None:
            return None
        raw, version, wait_s = data[line.end() :], int(line[1]), min(float(line[3]), WAIT_MAX_S)
        if fields is None or fields.raw != raw:
            fields = _parse_fields(raw, client)
        if fields is None or version >= VERSION_MAX or not wait_s:
            return None
        return LongPoll(Cursor(version, line[2].decode()), wait_s, fields)

    async def answer(self, poll: LongPoll, default_fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Returns the response, as soon as there is a change or the wait has ended, with `default_fields` in
        its head; None if it has to come from the application."""
        arrived_s, fields = time.monotonic(), poll.fields
        try:
            await self._authenticator.check("read", fields.credentials)
            state = await self._feed.state(poll.since, poll.wait_s, COST)
            await self._authenticator.check("read", fields.credentials)  # it may have been revoked meanwhile
        except (HttpProblem, SourceError):
            return None  # the application raises and explains it
        answer = self._feed.kept_answer(poll.since, state, arrived_s)
        if answer is None:
            return None
        parts, coding = answer.parts(), b""
        length = sum(map(len, parts))
        if GZIP_BYTES_MIN <= length < CHECKSUM_BYTES_MAX and fields.accepts_gzip:
            parts, coding = await answer.gzipped(), b"content-encoding: gzip\r\n"
            length = sum(map(len, parts))
        if length >= PIECE_BYTES:
            return None  # the application sends it piece by piece
        head = b"%betag: %b\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n\r\n" % (
            COMMON_FIELDS, etag_of(answer.at).encode(), coding, length,
        )  # fmt: skip
        defaults = [b"%b: %b\r\n" % field for field in default_fields]
        return b"".join((STATUS_LINE, *defaults, head, *parts))


def _parse_fields(raw: bytes, client: tuple[str, int] | None) -> PollFields | None:
    if len(raw) > FIELDS_BYTES_MAX or raw.find(END_OF_HEAD) != len(raw) - len(END_OF_HEAD):
        return None
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"GET /v1/locks HTTP/1.1\r\n" + raw)
    try:
        event = parser.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Request):
        return None
    headers = [(name, value) for name, value in event.headers if (name, value.lower()) != KEEP_ALIVE]
    if LEFT_TO_APPLICATION.intersection(name for name, _ in headers):
        return None
    scope = {"type": "http", "scheme": "http", "path": "/v1/locks", "query_string": b"", "client": client}
    request = Request(scope | {"headers": headers})
    accepts = accepts_gzip(request.headers.get("accept-encoding", ""))
    return PollFields(raw, Credentials.of(request), accepts)
