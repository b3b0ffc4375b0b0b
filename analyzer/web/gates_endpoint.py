"""`PUT /v1/gates/{instance}`: status reports of gates, stored in batches some time later."""

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
from gatekeeper.telemetry.status_json import STATUS_BYTES_MAX, load

log = logging.getLogger(__name__)

PENDING_MAX = 5_000  # reports that wait to be stored; a refused gate reports again in a minute
BODY_S = 5.0  # a gate gives up after one second
CLOSE = {"connection": "close"}  # the rest of the body may still arrive
STORE_EVERY_S = 1.0
ROWS_PER_S = 500  # a fleet must not keep the database from storing counts


class PendingStatuses:
    """The latest report of each gate, until it is stored; all methods belong to one event loop.

    A gate does not wait for the database. Reports that cannot be stored are dropped: each report contains
    everything since the gate began, so no count is lost.
    """

    def __init__(self, store: Callable[[Collection[GateStatus]], None]) -> None:
        """`store` runs in a thread; it may block and raise."""
        self._store = store
        self._pending: dict[str, GateStatus] = {}
        self._storing: asyncio.Task[None] | None = None
        self._has_failed = False

    def add(self, status: GateStatus) -> bool:
        """Keeps `status` unless a later report of this gate is pending; False if too many gates wait."""
        before = self._pending.get(status.instance)
        if before is None and len(self._pending) >= PENDING_MAX:
            return False
        if before is None or before.number < status.number:
            self._pending[status.instance] = status
        if self._storing is None or self._storing.done():
            self._storing = asyncio.ensure_future(self._store_pending())
        return True

    async def _store_pending(self) -> None:
        pause_s = STORE_EVERY_S
        while self._pending:
            await asyncio.sleep(pause_s)
            statuses, self._pending = list(self._pending.values()), {}
            try:
                await run_in_thread(partial(self._store, statuses))
                self._has_failed = False
            except AnalyzerError as error:
                if not self._has_failed:  # once for each outage
                    log.warning("cannot store the status reports of gates: %s", error)
                self._has_failed = True
            pause_s = max(STORE_EVERY_S, len(statuses) / ROWS_PER_S)


def add_gates_endpoint(app: FastAPI, pending: PendingStatuses, authenticator: Authenticator) -> None:
    """Adds the endpoint for status reports to `app`, for tokens with the scope `read`."""
    add_problem_handlers(app)

    @app.put("/v1/gates/{instance}")
    async def gates(instance: str, request: Request) -> Response:
        """204 when the report was accepted: it is stored within seconds, or the gate's next one is."""
        await authenticator.require("read", request)
        status = _parse(await _body(request))
        if status.instance != instance:
            detail = "`instance` in the document must be the one in the URL."
            raise HttpProblem(HTTPStatus.BAD_REQUEST, detail)
        if not pending.add(status):
            detail = "Too many gates report their status at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "60"})
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _parse(body: bytes) -> GateStatus:
    try:
        return load(body)
    except SourceError as error:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, str(error)) from error


async def _body(request: Request) -> bytes:
    """Returns the body. Raises HttpProblem if it is too long, too slow, or the client disconnects."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > STATUS_BYTES_MAX:
                    detail = f"The document must have at most {STATUS_BYTES_MAX} bytes."
                    raise HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    except (TimeoutError, ClientDisconnect) as incomplete:
        detail = f"The document was not complete after {BODY_S:g} seconds."
        raise HttpProblem(HTTPStatus.REQUEST_TIMEOUT, detail, CLOSE) from incomplete
    return bytes(body)
