"""`GET /v1/events`: server-sent events that say what has changed, so that a page asks again for that alone.

Events have no names of callers. One read a second serves all clients of a process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from analyzer.faces.authentication import RETRY_SOON
from analyzer.faces.signals.signal_table import signal_fields, standing_signals
from analyzer.faces.signals.status import installation_status
from analyzer.kernel.database.audit_log import newest_entry
from analyzer.kernel.database.engine import Engine
from analyzer.kernel.database.revisions import head
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tokens import TokenScope
from analyzer.server.problems import HttpProblem, add_problem_handlers
from analyzer.server.single_flight import SingleFlight

PATH = "/v1/events"
SCOPE: TokenScope = "view"
CLIENTS_MAX = 50
EVERY_S = 1.0
SILENT_MAX = 10  # reads without an event, after which a comment keeps the connection open
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

EventData = dict[str, dict[str, Any]]  # the data of each event, by its name


def installation_state(engine: Engine) -> EventData:
    """Returns the present data of each event. Raises StoreAway."""
    status = installation_status(engine, head())
    entry = newest_entry(engine)
    return {
        "locks": {"version": status.feed_version, "active": status.active_locks},
        "signals": {
            "items": [signal_fields(signal, has_details=False) for signal in standing_signals(engine)]
        },
        "audit": {"newest": entry},
    }


class Permissions(Protocol):
    """Permission to follow the events: by a token, or by the session of a browser."""

    async def require(self, scope: TokenScope, request: Request) -> str:
        """Returns the name of the token. Raises HttpProblem unless it may do what `scope` permits."""

    async def allows(self, scope: TokenScope, request: Request) -> bool:
        """Whether the request still may do what `scope` permits."""


def add_event_stream(
    app: FastAPI, read: Callable[[], EventData], authenticator: Permissions, path: str = PATH
) -> None:
    """Adds the stream to `app`. `read` runs in a thread; it may block and raise AnalyzerError."""
    add_problem_handlers(app)
    reader = SingleFlight(read, EVERY_S)
    clients = 0

    async def events(request: Request) -> Response:
        """Each event once at the beginning, then whenever its data changes."""
        await authenticator.require(SCOPE, request)
        if clients >= CLIENTS_MAX:
            detail = f"{CLIENTS_MAX} clients follow the events, the maximum."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON)
        return StreamingResponse(counted(request), headers=HEADERS, media_type="text/event-stream")

    async def counted(request: Request) -> AsyncIterator[bytes]:
        nonlocal clients
        clients += 1
        try:
            async for event in _events(reader, request, authenticator):
                yield event
        finally:
            clients -= 1

    app.add_route(path, events, methods=["GET"])


async def _events(
    reader: SingleFlight[EventData], request: Request, authenticator: Permissions
) -> AsyncIterator[bytes]:
    """Yields what changes, until the token is not valid any more."""
    sent: EventData = {}
    silent = 0
    while await authenticator.allows(SCOPE, request):
        try:
            present = await reader.get()
        except (AnalyzerError, TimeoutError):
            present = sent  # a client sees the outage at /readyz
        changed = {name: data for name, data in present.items() if sent.get(name) != data}
        silent = 0 if changed else silent + 1
        for name, data in changed.items():
            yield f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
        if silent >= SILENT_MAX:
            silent = 0
            yield b": nothing has changed\n\n"
        sent = present
        await asyncio.sleep(EVERY_S)
