"""The request log of a WSGI application (PEP 3333): one class around it, and around its guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gatekeeper.adapters.admission_control import NOTES_ENVIRON_KEY, make_exemption
from gatekeeper.adapters.route_patterns import pattern_of_flask
from gatekeeper.adapters.wsgi import (
    API_KEY,
    App,
    Environ,
    Extractor,
    StartResponse,
    close_body,
    full_path_of,
    peer,
)
from gatekeeper.clock import SYSTEM_CLOCK, Clock
from gatekeeper.requestlog.background_writer import LogSink
from gatekeeper.requestlog.log_record import PATH_CHARS_MAX, VERDICT, LogEntry, RequestNotes
from gatekeeper.requestlog.middleware import BUFFER, Extractors, LogMiddleware

FAILED = 500  # what servers answer for an application that raised


class RequestLog(LogMiddleware):
    """`app`, with a record of each request in `to`; as the request log for ASGI.

        app.wsgi_app = RequestLog(app.wsgi_app, to=Path("/var/log/shop/requests.log"))       # Flask
        application = RequestLog(get_wsgi_application(), to=...)                              # Django

    The route is what the guard asked for, or what Flask found. A response is logged when the server has taken
    the last of it. The application may add fields: `environ["gatelock.request_log"].add(tokens=812)`.

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
        exempt: Iterable[str] | Callable[[Environ], bool] = (),
        buffer: int = BUFFER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(to, buffer, clock)
        self._app = app
        self._extractors = Extractors(caller, address, tenant, resource)
        self._is_exempt = make_exemption(exempt, full_path_of)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._is_exempt(environ):
            return self._app(environ, start_response)
        environ[NOTES_ENVIRON_KEY] = RequestNotes()
        answer = LoggedResponse(self, environ, start_response)
        try:
            body = self._app(environ, answer.start)
        except BaseException:
            answer.end()
            raise
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            answer.bytes = answer.length
            answer.end()  # so that the server may still send the file by itself
            return body
        return LoggedBody(body, answer)


class LoggedResponse:
    """One answer on its way to the server."""

    __slots__ = (
        *("_began_s", "_ended", "_environ", "_log", "_route", "_start_response", "_status", "_verdict"),
        *("bytes", "length"),
    )

    def __init__(self, log: RequestLog, environ: Environ, start_response: StartResponse) -> None:
        self._log = log
        self._environ = environ
        self._start_response = start_response
        self._status = self.bytes = 0
        self.length = 0  # of the body, if the application has told it
        self._verdict = self._route = ""
        self._ended = False
        self._began_s = log.clock.uptime_s()

    def start(self, status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
        self._status = int(status[:3])
        self._route = _route(self._environ)  # Flask has forgotten it when the response is over
        for name, value in headers:
            if name.lower() == VERDICT:
                self._verdict = value
            elif name.lower() == "content-length" and value.isdecimal():
                self.length = int(value)
        write = self._start_response(status, headers, *error)

        def writing(piece: bytes) -> object:
            self.bytes += len(piece)
            return write(piece)

        return writing

    def end(self) -> None:
        """Log it, if that was not done."""
        if self._ended:
            return
        self._ended = True
        log, environ, note = self._log, self._environ, self._environ[NOTES_ENVIRON_KEY]
        log.put(
            LogEntry(
                ended_ns=log.clock.wall_ns(),
                duration_ns=round((log.clock.uptime_s() - self._began_s) * 1e9),
                status=self._status or FAILED,
                bytes=self.bytes,
                method=environ["REQUEST_METHOD"],
                path=full_path_of(environ)[:PATH_CHARS_MAX],
                who=log._extractors.who(environ, note.who, lambda _: self._route),
                verdict=self._verdict,
                decision=note.decision,
                more=note.more,
            )
        )


class LoggedBody:
    """The pieces of a response, counted; it is over when the server says so."""

    def __init__(self, body: Iterable[bytes], answer: LoggedResponse) -> None:
        self._body = body
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            self._answer.bytes += len(piece)
            yield piece

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._answer.end()


def _route(environ: Environ) -> str:
    """The rule that Flask has matched, if it is Flask that answers."""
    rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
    return "" if rule is None else pattern_of_flask(rule.rule)
