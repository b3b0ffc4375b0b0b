"""The request log of an ASGI application: one class around it, and around its guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gatekeeper.adapters.admission_control import NOTES_STATE_KEY, make_exemption
from gatekeeper.adapters.asgi import API_KEY, App, Extractor, Message, Receive, Scope, Send, path_of, peer
from gatekeeper.adapters.route_patterns import resource_of
from gatekeeper.clock import SYSTEM_CLOCK, Clock
from gatekeeper.requestlog.background_writer import LogSink
from gatekeeper.requestlog.lifespan import live
from gatekeeper.requestlog.log_record import PATH_CHARS_MAX, VERDICT, LogEntry, RequestNotes
from gatekeeper.requestlog.middleware import BUFFER, Extractors, LogMiddleware

HEADER = VERDICT.encode()
BEGINS = {"http.response.start", "websocket.http.response.start", "websocket.accept"}
BODIES = {"http.response.body", "websocket.http.response.body"}
ENDS = {*BODIES, "http.response.pathsend", "websocket.accept", "websocket.close"}

WENT_AWAY = 499  # as nginx has it: whoever asked did not wait for the answer
FAILED = 500  # what servers answer for an application that raised


class RequestLog(LogMiddleware):
    """`app`, with a record of each request in `to`: the path of a file, a `KafkaSink`, or any `LogSink`.

    Put it outside of the guard, so that it sees what is refused:

        app = RequestLog(Guard(api, gate, burst), to=Path("/var/log/shop/requests.log"))

    A record has the caller, tenant and address that the guard asked for; where no guard was asked, what the
    extractors say, which are those of `gatekeeper.adapters.asgi`. The resource is what `resource` says, else
    what the guard asked for, else the route that Starlette or FastAPI found.

    A response is logged when its last byte is handed to the server, a WebSocket when its handshake is
    answered. Paths in `exempt` are not logged. At most `buffer` records wait; more are dropped, and counted.
    The application may add fields: `request.state.request_log.add(tokens=812)`.

    Raises ValueError for a setting that cannot be.
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
        self._is_exempt = make_exemption(exempt, path_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(self._app, scope, receive, send, self.close)
        elif scope["type"] not in ("http", "websocket") or self._is_exempt(scope):
            await self._app(scope, receive, send)
        else:
            await self._logged(scope, receive, send)

    async def _logged(self, scope: Scope, receive: Receive, send: Send) -> None:
        note = RequestNotes()
        scope = {**scope, "state": {**scope.get("state", {}), NOTES_STATE_KEY: note}}
        answer = LoggedResponse(self, scope, note, send)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            answer.end(FAILED)
            raise
        except BaseException:  # cancelled
            answer.end(WENT_AWAY)
            raise
        answer.end(FAILED)


class LoggedResponse:
    """One answer on its way to the server."""

    __slots__ = (
        *("_began_s", "_bytes", "_ended", "_length", "_log"),
        *("_note", "_scope", "_send", "_status", "_verdict"),
    )

    def __init__(self, log: RequestLog, scope: Scope, note: RequestNotes, send: Send) -> None:
        self._log = log
        self._scope = scope
        self._note = note
        self._send = send
        self._status = self._bytes = self._length = 0
        self._verdict = ""
        self._ended = False
        self._began_s = log.clock.uptime_s()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in BEGINS:  # noted first: who has gone away makes sending fail
            self._begin(message.get("status", 101), message.get("headers", ()))
        await self._send(message)
        if kind in BODIES:
            self._bytes += len(message.get("body", b""))
        elif kind == "http.response.pathsend":  # the server sends a file
            self._bytes = self._length
        if kind in ENDS and not message.get("more_body", False):
            self.end(403)  # of a WebSocket that was closed before it was accepted

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status = status
        for name, value in headers:
            if name == HEADER:
                self._verdict = value.decode("latin-1")
            elif name == b"content-length" and value.isdigit():
                self._length = int(value)

    def end(self, status: int) -> None:
        """Log it, if that was not done; `status` is the one to log where none was sent."""
        if self._ended:
            return
        self._ended = True
        log, scope = self._log, self._scope
        log.put(
            LogEntry(
                ended_ns=log.clock.wall_ns(),
                duration_ns=round((log.clock.uptime_s() - self._began_s) * 1e9),
                status=self._status or status,
                bytes=self._bytes,
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"][:PATH_CHARS_MAX],
                who=log._extractors.who(scope, self._note.who, resource_of),
                verdict=self._verdict,
                decision=self._note.decision,
                more=self._note.more,
            )
        )
