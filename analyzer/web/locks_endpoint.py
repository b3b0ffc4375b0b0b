"""`GET /v1/locks`: the feed for gates that ask over HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from urllib.parse import quote, unquote

from fastapi import FastAPI, Request, Response

from analyzer.web.authentication import RETRY_SOON, Authenticator
from analyzer.web.feed_cache import FeedCache
from analyzer.web.problems import HttpProblem, add_problem_handlers
from analyzer.web.shared_gzip import PIECE_BYTES, CompressedAnswer, PiecewiseResponse
from gatekeeper.model import Cursor, SourceError

WAIT_MAX_S = 60.0  # what lies between closes connections that are silent for longer
VERSION_MAX = 2**63
MARK_CHARACTERS_MAX = 64
GZIP_BYTES_MIN = 1_024  # less is as long when it is packed

ETAG = re.compile(r'(?:W/)?"(\d{1,19})-([^"]{0,192})"')
WAIT = re.compile(r"\d{1,6}(\.\d{1,6})?")
ALWAYS = {"cache-control": "no-cache", "vary": "accept-encoding, authorization"}


def add_locks_endpoint(app: FastAPI, feed: FeedCache, bearers: Authenticator) -> None:
    """Have `app` tell the feed to who may read it."""
    add_problem_handlers(app)

    async def locks(request: Request) -> Response:
        """Changes since the version and mark in the query, or every lock; with `wait`, once there are any."""
        asked_s = time.monotonic()
        await bearers.require("read", request)
        since, wait_s = _since(request.query_params), _wait(request.query_params)
        had = [cursor_of(found) for found in ETAG.finditer(request.headers.get("if-none-match", ""))]
        held = since or next(iter(had), None)
        telling = _telling(feed, since, held, had, wait_s, asked_s)
        try:
            if wait_s:
                answer, headers = await _unless_gone(request, telling)
                await bearers.require("read", request)  # it may have been revoked meanwhile
            else:
                answer, headers = await telling
        except SourceError as away:
            why = "The locks cannot be read at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, why, RETRY_SOON) from away
        if answer is None:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        pieces = answer.pieces()
        length = sum(map(len, pieces))
        if length >= GZIP_BYTES_MIN and _takes_gzip(request.headers.get("accept-encoding", "")):
            pieces = await answer.gzipped()
            headers |= {"content-encoding": "gzip"}
        if length < PIECE_BYTES:
            return Response(b"".join(pieces), headers=headers, media_type="application/json")
        return PiecewiseResponse(pieces, headers, "application/json")

    # Not as one of FastAPI's: what it does for a path with parameters is a quarter of what an answer costs.
    app.add_route("/v1/locks", locks, methods=["GET"])


PendingAnswer = Coroutine[None, None, tuple[CompressedAnswer | None, dict[str, str]]]


async def _telling(
    feed: FeedCache,
    since: Cursor | None,
    held: Cursor | None,
    had: list[Cursor],
    wait_s: float,
    asked_s: float,
) -> tuple[CompressedAnswer | None, dict[str, str]]:
    """The answer, None where the client has it already, and its headers."""
    look = await feed.state(held, wait_s)
    headers = ALWAYS | {"etag": etag_of(look.update.at)}
    if look.update.at in had:
        return None, headers
    return await feed.answer(since, look, asked_s), headers


async def _unless_gone(
    request: Request, telling: PendingAnswer
) -> tuple[CompressedAnswer | None, dict[str, str]]:
    """What `telling` comes to. A gate that has gone leaves its place to another."""
    answering, leaving = asyncio.ensure_future(telling), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise HttpProblem(HTTPStatus.REQUEST_TIMEOUT, "The client has gone.")
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def etag_of(at: Cursor) -> str:
    """Weak: two answers of one version differ in the time that they tell."""
    return f'W/"{at.version}-{quote(at.mark, safe="")}"'


def cursor_of(found: re.Match[str]) -> Cursor:
    return Cursor(int(found[1]), unquote(found[2]))


def _since(query: Mapping[str, str]) -> Cursor | None:
    version, mark = query.get("since"), query.get("mark", "")
    if version is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", version) or int(version) >= VERSION_MAX:
        raise HttpProblem(
            HTTPStatus.BAD_REQUEST, "`since` is no version: give a whole number, or leave it out."
        )
    if len(mark) > MARK_CHARACTERS_MAX:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, f"`mark` has more than {MARK_CHARACTERS_MAX} characters.")
    return Cursor(int(version), mark)


def _wait(query: Mapping[str, str]) -> float:
    wait = query.get("wait", "0")
    if not WAIT.fullmatch(wait):
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "`wait` is no number of seconds: write 5, or 2.5.")
    return min(float(wait), WAIT_MAX_S)


def _takes_gzip(accepted: str) -> bool:
    for coding in accepted.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False
