"""`PUT /v1/gates/{instance}`: status reports of gates, stored in batches some time later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

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
PENDING_BYTES_MAX = 16 << 20  # of these
BATCH_BYTES_MAX = 1 << 20  # in one statement
OWNED_S = 90.0  # after its last report an instance no longer belongs to its token
OWNERS_MAX = 10_000
BODY_S = 5.0  # a gate gives up after one second
CLOSE = {"connection": "close"}  # the rest of the body may still arrive
STORE_EVERY_S = 1.0
ROWS_PER_S = 500  # a fleet must not keep the database from storing counts


class Pending(NamedTuple):
    """A report that waits to be stored, its size as it came, and the token it came with."""

    status: GateStatus
    size: int
    token: str


class PendingStatuses:
    """The latest report of each gate, until it is stored; all methods belong to one event loop.

    A gate does not wait for the database. Reports that cannot be stored are dropped: each report contains
    everything since the gate began, so no count is lost. Beyond `PENDING_BYTES_MAX` the token with most of
    them loses its longest one: reports of honest gates are short.
    """

    def __init__(
        self, store: Callable[[Collection[GateStatus]], None], uptime_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`store` runs in a thread; it may block and raise."""
        self._store = store
        self._uptime_s = uptime_s
        self._pending: dict[str, Pending] = {}
        self._bytes: Counter[str] = Counter()  # that wait, by token
        self._owners: dict[str, tuple[str, float]] = {}  # the token of each instance, and its last report
        self._storing: asyncio.Task[None] | None = None
        self._has_failed = False

    def owns(self, token: str, instance: str) -> bool:
        """Whether a report of `instance` may come with this token: no other one reported it lately."""
        owner, last_s = self._owners.get(instance, (token, 0.0))
        return owner == token or self._uptime_s() - last_s > OWNED_S

    def add(self, status: GateStatus, size: int = 0, token: str = "") -> bool:
        """Keeps `status` unless a later report of this gate is pending; False if there is no room for it."""
        before = self._pending.get(status.instance)
        if before is None and len(self._pending) >= PENDING_MAX:
            return False
        self._owners.pop(status.instance, None)  # the last one to report stands last
        self._owners[status.instance] = token, self._uptime_s()
        if len(self._owners) > OWNERS_MAX:
            del self._owners[next(iter(self._owners))]
        if before is None or before.status.number < status.number:
            self._keep(Pending(status, size, token))
        while self._bytes.total() > PENDING_BYTES_MAX:
            self._drop_longest()
        if self._storing is None or self._storing.done():
            self._storing = asyncio.ensure_future(self._store_pending())
        return status.instance in self._pending

    def _keep(self, pending: Pending) -> None:
        self._remove(pending.status.instance)
        self._pending[pending.status.instance] = pending
        self._bytes[pending.token] += pending.size

    def _remove(self, instance: str) -> None:
        removed = self._pending.pop(instance, None)
        if removed is not None:
            self._bytes[removed.token] -= removed.size
            if self._bytes[removed.token] <= 0:
                del self._bytes[removed.token]

    def _drop_longest(self) -> None:
        most = max(self._bytes, key=self._bytes.__getitem__)
        of_token = (pending for pending in self._pending.values() if pending.token == most)
        self._remove(max(of_token, key=lambda pending: pending.size).status.instance)

    async def _store_pending(self) -> None:
        pause_s = STORE_EVERY_S
        while self._pending:
            await asyncio.sleep(pause_s)
            batch = self._next_batch()
            try:
                await run_in_thread(partial(self._store, [pending.status for pending in batch]))
                self._has_failed = False
            except AnalyzerError as error:
                if not self._has_failed:  # once for each outage
                    log.warning("cannot store the status reports of gates: %s", error)
                self._has_failed = True
            # The rest follows soon, so that one statement is short and its failure takes few reports along.
            pause_s = max(STORE_EVERY_S if not self._pending else 0.0, len(batch) / ROWS_PER_S)

    def _next_batch(self) -> list[Pending]:
        """Removes and returns the first reports that one statement may hold."""
        batch: list[Pending] = []
        size = 0
        for pending in self._pending.values():
            if batch and size + pending.size > BATCH_BYTES_MAX:
                break
            batch.append(pending)
            size += pending.size
        for pending in batch:
            self._remove(pending.status.instance)
        return batch


def add_gates_endpoint(app: FastAPI, pending: PendingStatuses, authenticator: Authenticator) -> None:
    """Adds the endpoint for status reports to `app`, for tokens with the scope `read`."""
    add_problem_handlers(app)

    @app.put("/v1/gates/{instance}")
    async def gates(instance: str, request: Request) -> Response:
        """204 when the report was accepted: it is stored within seconds, or the gate's next one is."""
        token = await authenticator.require("read", request)
        body = await _body(request)
        status = _parse(body)
        if status.instance != instance:
            detail = "`instance` in the document must be the one in the URL."
            raise HttpProblem(HTTPStatus.BAD_REQUEST, detail)
        if not pending.owns(token, instance):
            raise HttpProblem(HTTPStatus.FORBIDDEN, "This instance reports with another token.")
        if not pending.add(status, len(body), token):
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
