"""`PUT /v1/gates/{instance}`: what gates tell of themselves, written down some time later, all at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from analyzer.errors import AnalyzerError
from analyzer.web.authentication import Authenticator
from analyzer.web.problems import HttpProblem, add_problem_handlers
from analyzer.web.single_flight import run_in_thread
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.telemetry.status_json import TOLD_BYTES_MAX, load

log = logging.getLogger(__name__)

PENDING_MAX = 5_000  # that wait to be written; others tell again in a minute
BODY_S = 5.0  # a gate itself gives up after one
CLOSE = {"connection": "close"}  # the rest of it may still come
WRITE_EVERY_S = 1.0
ROWS_PER_S = 500  # at most: a fleet must not keep the database from counting


class PendingStatuses:
    """What gates told last and nobody wrote down yet; all methods belong to one event loop.

    Nobody who tells waits for the database. What cannot be written is forgotten: it is told again.
    """

    def __init__(self, keep: Callable[[Collection[GateStatus]], None]) -> None:
        self._keep = keep  # may take long, may raise
        self._waiting: dict[str, GateStatus] = {}
        self._writing: asyncio.Task[None] | None = None
        self._failed = False

    def add(self, told: GateStatus) -> bool:
        """Whether there is room for it. Of one gate the newest stays."""
        before = self._waiting.get(told.instance)
        if before is None and len(self._waiting) >= PENDING_MAX:
            return False
        if before is None or before.number < told.number:
            self._waiting[told.instance] = told
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())
        return True

    async def _write(self) -> None:
        pause_s = WRITE_EVERY_S
        while self._waiting:
            await asyncio.sleep(pause_s)
            told, self._waiting = list(self._waiting.values()), {}
            try:
                await run_in_thread(partial(self._keep, told))
                self._failed = False
            except AnalyzerError as away:
                if not self._failed:
                    log.warning("what gates tell of themselves cannot be written down: %s", away)
                self._failed = True
            pause_s = max(WRITE_EVERY_S, len(told) / ROWS_PER_S)


def add_gates_endpoint(app: FastAPI, told: PendingStatuses, bearers: Authenticator) -> None:
    """Have `app` hear the gates of those who may read the feed."""
    add_problem_handlers(app)

    @app.put("/v1/gates/{instance}")
    async def gates(instance: str, request: Request) -> Response:
        """204 when it was heard; it is in the database within seconds, or told again."""
        await bearers.require("read", request)
        heard = _read(await _body(request))
        if heard.instance != instance:
            raise HttpProblem(HTTPStatus.BAD_REQUEST, "This is of another instance than the address says.")
        if not told.add(heard):
            why = "Too many gates tell of themselves at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, why, {"retry-after": "60"})
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _read(body: bytes) -> GateStatus:
    try:
        return load(body)
    except SourceError as wrong:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, str(wrong)) from wrong


async def _body(request: Request) -> bytes:
    """The whole of it. Who sends it slowly, or goes in between, is let go."""
    pieces = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                pieces += piece
                if len(pieces) > TOLD_BYTES_MAX:
                    why = f"This has more than {TOLD_BYTES_MAX} bytes."
                    raise HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
    except (TimeoutError, ClientDisconnect) as half:
        raise HttpProblem(HTTPStatus.REQUEST_TIMEOUT, "It did not come in time.", CLOSE) from half
    return bytes(pieces)
