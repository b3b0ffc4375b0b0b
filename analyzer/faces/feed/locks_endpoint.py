"""`GET /v1/locks`: the lock feed for gates over HTTP; docs/feed.md has the protocol."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from urllib.parse import quote, unquote

from fastapi import FastAPI, Request, Response

from analyzer.faces.authentication import RETRY_SOON, Authenticator
from analyzer.faces.feed.feed_cache import FeedCache
from analyzer.server.problems import HttpProblem, add_problem_handlers
from analyzer.server.shared_gzip import PIECE_BYTES, CompressedAnswer, PiecewiseResponse, SendingTurns
from gatekeeper.model import Cursor, SourceError

WAIT_MAX_S = 60.0  # firewalls and proxies on the way close connections that are silent for longer
VERSION_MAX = 2**63
MARK_CHARACTERS_MAX = 64
GZIP_BYTES_MIN = 1_024  # a shorter answer does not become shorter

ETAG = re.compile(r'(?:W/)?"(\d{1,19})-([^"]{0,192})"')
WAIT = re.compile(r"\d{1,6}(\.\d{1,6})?")
ANSWER_HEADERS = {"cache-control": "no-cache", "vary": "accept-encoding, authorization"}

AnswerAndHeaders = tuple[CompressedAnswer | None, dict[str, str]]


def add_locks_endpoint(app: FastAPI, feed: FeedCache, authenticator: Authenticator) -> None:
    """Adds the feed to `app`, for tokens with the scope `read`."""
    add_problem_handlers(app)
    turns = SendingTurns()

    async def locks(request: Request) -> Response:
        """Changes since the version and mark in the query, or all locks; with `wait`, as soon as there are
        any."""
        arrived_s = time.monotonic()
        await authenticator.require("read", request)
        since, wait_s = _since(request.query_params), _wait(request.query_params)
        etags = [cursor_of(match) for match in ETAG.finditer(request.headers.get("if-none-match", ""))]
        answering = _answer(feed, since, etags, wait_s, arrived_s)
        try:
            if wait_s:
                answer, headers = await _unless_disconnected(request, answering)
                await authenticator.require("read", request)  # the token may have been revoked meanwhile
            else:
                answer, headers = await answering
        except SourceError as error:
            detail = "The locks cannot be read at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error
        if answer is None:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        parts = answer.parts()
        length = sum(map(len, parts))
        if length >= GZIP_BYTES_MIN and accepts_gzip(request.headers.get("accept-encoding", "")):
            parts = await answer.gzipped()
            headers |= {"content-encoding": "gzip"}
        if length < PIECE_BYTES:
            return Response(b"".join(parts), headers=headers, media_type="application/json")
        return PiecewiseResponse(parts, headers, "application/json", turns)

    # A Starlette route: FastAPI's handling of parameters would cost a quarter of an answer.
    app.add_route("/v1/locks", locks, methods=["GET"])


async def _answer(
    feed: FeedCache, since: Cursor | None, etags: list[Cursor], wait_s: float, arrived_s: float
) -> AnswerAndHeaders:
    """Returns the answer, None if the client has it already, and its headers. Raises SourceError."""
    state = await feed.state(since or next(iter(etags), None), wait_s)
    if state.update.at in etags:
        return None, ANSWER_HEADERS | {"etag": etag_of(state.update.at)}
    answer = await feed.answer(since, state, arrived_s)
    return answer, ANSWER_HEADERS | {"etag": etag_of(answer.at)}


async def _unless_disconnected(
    request: Request, answering: Coroutine[None, None, AnswerAndHeaders]
) -> AnswerAndHeaders:
    """Returns the result of `answering`. Cancels it and raises HttpProblem when the client disconnects."""
    answer, disconnect = asyncio.ensure_future(answering), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HttpProblem(HTTPStatus.REQUEST_TIMEOUT, "The client has disconnected.")
        return answer.result()
    finally:
        answer.cancel()
        disconnect.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def etag_of(cursor: Cursor) -> str:
    """Returns the entity tag of a version: weak, because two answers of one version differ in their times."""
    return f'W/"{cursor.version}-{quote(cursor.mark, safe="")}"'


def cursor_of(match: re.Match[str]) -> Cursor:
    """Returns the version that an `ETAG` names."""
    return Cursor(int(match[1]), unquote(match[2]))


def _since(query: Mapping[str, str]) -> Cursor | None:
    version, mark = query.get("since"), query.get("mark", "")
    if version is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", version) or int(version) >= VERSION_MAX:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "`since` must be a whole number below 2^63, or left out.")
    if len(mark) > MARK_CHARACTERS_MAX:
        detail = f"`mark` must have at most {MARK_CHARACTERS_MAX} characters."
        raise HttpProblem(HTTPStatus.BAD_REQUEST, detail)
    return Cursor(int(version), mark)


def _wait(query: Mapping[str, str]) -> float:
    wait = query.get("wait", "0")
    if not WAIT.fullmatch(wait):
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "`wait` must be a number of seconds, for example 5 or 2.5.")
    return min(float(wait), WAIT_MAX_S)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client with this header field reads gzip."""
    for coding in accept_encoding.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False
