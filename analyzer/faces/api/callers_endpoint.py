"""`GET /v1/callers/me`: what one caller has used and what remains, for its application to pass on."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response

from analyzer.faces.authentication import RETRY_SOON, Authenticator
from analyzer.kernel.errors import AnalyzerError
from analyzer.server.problems import HttpProblem, add_problem_handlers
from analyzer.server.single_flight import TIMEOUT_S, consume_exception, run_in_thread
from gatekeeper.caller_view import CALLER_FIELD, PATH, is_caller

READS_MAX = 4  # at a time, so that the database's connections remain for counting
WAITING_MAX = 200  # callers that are read or wait for it
MAX_AGE_S = 5  # clients may keep an answer for as long
ANSWER_HEADERS = {
    "cache-control": f"private, max-age={MAX_AGE_S}",
    "vary": f"authorization, {CALLER_FIELD}",
}


class CallerReads:
    """Reads documents of callers in threads: `READS_MAX` at a time, one for each caller.

    Requests about a caller that is being read share the result. All methods belong to one event loop.
    """

    def __init__(self, read: Callable[[str], Mapping[str, Any]]) -> None:
        """`read` runs in a thread; it may block and raise AnalyzerError."""
        self._read = read
        self._slots = asyncio.Semaphore(READS_MAX)
        self._running: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def get(self, caller: str) -> Mapping[str, Any]:
        """Returns the document. Raises HttpProblem if too many wait, TimeoutError, AnalyzerError."""
        running = self._running.get(caller)
        if running is None:
            if len(self._running) >= WAITING_MAX:
                detail = "Too many requests about callers wait at the moment."
                raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON)
            running = self._running[caller] = asyncio.ensure_future(self._read_in_turn(caller))
            running.add_done_callback(consume_exception)
            running.add_done_callback(lambda _: self._running.pop(caller))
        return await asyncio.wait_for(asyncio.shield(running), TIMEOUT_S)

    async def _read_in_turn(self, caller: str) -> Mapping[str, Any]:
        async with self._slots:
            return await run_in_thread(partial(self._read, caller))


def add_callers_endpoint(
    app: FastAPI, read: Callable[[str], Mapping[str, Any]], authenticator: Authenticator
) -> None:
    """Adds the endpoint to `app`, for tokens with the scope `callers`.

    `read` returns the document of a caller. It runs in a thread, and may block and raise AnalyzerError.
    """
    add_problem_handlers(app)
    reads = CallerReads(read)

    async def me(request: Request) -> Response:
        """The use, the limits and the locks of the caller that the header names."""
        await authenticator.require("callers", request)
        caller = _caller(request)
        try:
            document = await reads.get(caller)
        except (AnalyzerError, TimeoutError) as error:
            detail = "The use of callers cannot be read at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error
        headers = ANSWER_HEADERS | {"etag": etag_of(document)}
        if headers["etag"] in etags_of(request):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(json.dumps(document), headers=headers, media_type="application/json")

    app.add_route(PATH, me, methods=["GET"])


def etag_of(document: Mapping[str, Any]) -> str:
    """Returns the entity tag of a document: weak, because two equal ones differ in their time."""
    content = json.dumps({name: value for name, value in document.items() if name != "now"})
    return f'W/"{hashlib.sha256(content.encode()).hexdigest()[:16]}"'


def etags_of(request: Request) -> list[str]:
    """Returns the entity tags of the answers that the client has."""
    return [etag.strip() for etag in request.headers.get("if-none-match", "").split(",")]


def _caller(request: Request) -> str:
    """Returns the caller that the request names. Raises HttpProblem unless it names exactly one.

    An application that forwards its client's headers may send two, of which the client wrote one.
    """
    headers = request.headers.getlist(CALLER_FIELD)
    if len(headers) == 1 and headers[0].isascii():
        try:
            caller = unquote(headers[0], errors="strict")
        except UnicodeDecodeError:
            caller = ""
        if is_caller(caller):
            return caller
    detail = (
        f"Send one header {CALLER_FIELD} with the caller's name and its kind, percent-encoded, for example "
        "api_key:acme."
    )
    raise HttpProblem(HTTPStatus.BAD_REQUEST, detail)
