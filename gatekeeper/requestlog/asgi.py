"""Request log of ASGI applications: one class around the application and its guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from gatekeeper.adapters.admission_control import NOTES_STATE_KEY, make_exemption
from gatekeeper.adapters.asgi import (
    API_KEY,
    RESPONSE_STARTS,
    App,
    Extractor,
    Message,
    Receive,
    Scope,
    Send,
    peer,
    scope_path,
)
from gatekeeper.adapters.refusal_response import VERDICT_BYTES
from gatekeeper.adapters.route_patterns import route_resource
from gatekeeper.clock import SYSTEM_CLOCK, Clock
from gatekeeper.requestlog.background_writer import LogSink
from gatekeeper.requestlog.log_record import PATH_CHARS_MAX, LogEntry, RequestNotes
from gatekeeper.requestlog.middleware import BUFFER, Extractors, LogMiddleware

__all__ = ["RequestLog"]

BODIES = {"http.response.body", "websocket.http.response.body"}
ENDS = {*BODIES, "http.response.pathsend", "websocket.accept", "websocket.close"}
NOTED_AFTERWARDS = BODIES | ENDS

CLIENT_DISCONNECTED = 499  # as in nginx: the client closed the connection before the response
FAILED = 500  # the response of servers for an application that raised


class RequestLog(LogMiddleware):
    """Wraps an ASGI application and logs one record per request.

    Put it around the guard, so that it also logs denied requests. A record has the caller, tenant and address
    that the guard checked; without a guard, those that the extractors of `gatekeeper.adapters.asgi` find. The
    resource is what `resource` returns, otherwise the guard's, otherwise the route that Starlette or FastAPI
    matched.

    A response is logged when its last byte is given to the server, a WebSocket when its handshake is
    answered. The application may add fields: `request.state.request_log.add(tokens=812)`.

    Args:
        app: The application, with its guard.
        to: Path of a file, a `KafkaSink`, or another LogSink.
        caller: Without a guard: returns the caller's typed name, or "". By default from the header X-API-Key.
        address: Without a guard: returns the client's address; by default the other end of the connection.
        tenant: Without a guard: returns the tenant.
        resource: Returns the route pattern, where neither the framework nor the guard knows it.
        exempt: Paths that are not logged, exact, or all below one that ends in `/*`; or a function that
            returns whether a request is exempt.
        buffer: Records that wait at most, about 1 KB each; more are dropped, and counted in `dropped`.
        clock: Time and threads; tests pass a `gatekeeper.testing.ManualClock`.

    Raises:
        ValueError: `buffer` is below 1.
        TypeError: `exempt` is one string instead of several, or `to` is neither a path nor a LogSink.

    Example:
        >>> import asyncio, tempfile
        >>> from pathlib import Path
        >>> async def app(scope, receive, send):
        ...     await send({"type": "http.response.start", "status": 200, "headers": []})
        ...     await send({"type": "http.response.body", "body": b"hello"})
        >>> async def send(message): ...
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "requests.log"
        >>> log = RequestLog(app, to=file)
        >>> scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-api-key", b"acme")]}
        >>> asyncio.run(log(scope, None, send))
        >>> log.close(), log.written, file.read_text().count("acme")
        (None, 1, 1)
        >>> folder.cleanup()
    """

    def __init__(
        self,
        app: App,
        to: Path | str | LogSink,
        *,
        caller: Extractor = API_KEY,
        address: Extractor = peer,
        tenant: Extractor | None = None,
        resource: Extractor | None = None,
        exempt: Iterable[str] | Callable[[Scope], bool] = (),
        buffer: int = BUFFER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(to, buffer, clock)
        self._app = app
        self._extractors = Extractors(caller, address, tenant, resource)
        self._is_exempt = make_exemption(exempt, scope_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await run_lifespan(self._app, scope, receive, send, self.close)
        elif scope["type"] not in ("http", "websocket") or self._is_exempt(scope):
            await self._app(scope, receive, send)
        else:
            await self._log_request(scope, receive, send)

    async def _log_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        notes = RequestNotes()
        scope = {**scope, "state": {**scope.get("state", {}), NOTES_STATE_KEY: notes}}
        response = LoggedResponse(self, scope, notes, send)
        try:
            await self._app(scope, receive, response.send)
        except Exception:
            response.end(FAILED)
            raise
        except BaseException:  # CancelledError
            response.end(CLIENT_DISCONNECTED)
            raise
        response.end(FAILED)


class LoggedResponse:
    """Observes one response on its way to the server, and logs it when it is complete."""

    __slots__ = (
        *("_bytes", "_has_ended", "_length", "_log", "_notes"),
        *("_scope", "_send", "_started_s", "_status", "_verdict"),
    )

    def __init__(self, log: RequestLog, scope: Scope, notes: RequestNotes, send: Send) -> None:
        self._log = log
        self._scope = scope
        self._notes = notes
        self._send = send
        self._status = self._bytes = self._length = 0
        self._verdict = ""
        self._has_ended = False
        self._started_s = log.clock.uptime_s()

    def send(self, message: Message) -> Awaitable[None]:
        """Sends `message`, and notes what the log needs of it."""
        kind = message["type"]
        status = RESPONSE_STARTS.get(kind)
        if status is not None and not self._status:
            # Noted before it is sent: sending fails if the client has disconnected.
            self._start(message.get("status", status), message.get("headers", ()))
        # A coroutine around the server's costs as much as the rest, and most starts need nothing afterwards.
        return self._send_and_note(kind, message) if kind in NOTED_AFTERWARDS else self._send(message)

    async def _send_and_note(self, kind: str, message: Message) -> None:
        await self._send(message)
        if kind in BODIES:
            self._bytes += len(message.get("body", b""))
        elif kind == "http.response.pathsend":  # the server sends a file
            self._bytes = self._length
        if kind in ENDS and not message.get("more_body", False):
            self.end(FAILED)

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status = status
        for name, value in headers:
            if name == VERDICT_BYTES:
                self._verdict = value.decode("latin-1")
            elif name == b"content-length" and value.isdigit():
                self._length = int(value)

    def end(self, status: int) -> None:
        """Logs the response, once. `status` stands in if none was sent."""
        if self._has_ended:
            return
        self._has_ended = True
        log, scope = self._log, self._scope
        log.put(
            LogEntry(
                ended_ns=log.clock.wall_ns(),
                duration_ns=round((log.clock.uptime_s() - self._started_s) * 1e9),
                status=self._status or status,
                bytes=self._bytes,
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"][:PATH_CHARS_MAX],
                identity=log._extractors.identify(scope, self._notes.identity, route_resource),
                verdict=self._verdict,
                decision=self._notes.decision,
                fields=self._notes.fields,
            )
        )


async def run_lifespan(
    app: App, scope: Scope, receive: Receive, send: Send, close: Callable[[], None]
) -> None:
    """Runs the lifespan of `app`, and calls `close` before the server learns that the shutdown is complete.

    The shutdown is the last moment to write waiting records: some servers then end by a signal and run
    nothing more. For an application without lifespan support (Django raises, others return) this function
    answers the server, which would not send the shutdown otherwise.
    """
    has_received = False

    async def receive_noted() -> Message:
        nonlocal has_received
        has_received = True
        return await receive()

    async def send_after_close(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown"):
            close()
        await send(message)

    try:
        await app(scope, receive_noted, send_after_close)
    except Exception:
        if has_received:
            raise
    if not has_received:
        await _answer_lifespan(receive, send, close)


async def _answer_lifespan(receive: Receive, send: Send, close: Callable[[], None]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "lifespan.startup.complete"})
