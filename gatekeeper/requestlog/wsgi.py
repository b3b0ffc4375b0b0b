"""Request log of WSGI applications (PEP 3333): one class around the application and its guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gatekeeper.adapters.admission_control import NOTES_ENVIRON_KEY, make_exemption
from gatekeeper.adapters.refusal_response import VERDICT
from gatekeeper.adapters.route_patterns import pattern_of_flask
from gatekeeper.adapters.wsgi import (
    API_KEY,
    App,
    Environ,
    Extractor,
    StartResponse,
    close_body,
    full_path,
    peer,
)
from gatekeeper.clock import SYSTEM_CLOCK, Clock
from gatekeeper.requestlog.background_writer import LogSink
from gatekeeper.requestlog.log_record import PATH_CHARS_MAX, LogEntry, RequestNotes
from gatekeeper.requestlog.middleware import BUFFER, Extractors, LogMiddleware

__all__ = ["RequestLog"]

FAILED = 500  # the response of servers for an application that raised


class RequestLog(LogMiddleware):
    """Wraps a WSGI application and logs one record per request.

    Put it around the guard, so that it also logs denied requests:

        app.wsgi_app = RequestLog(app.wsgi_app, to=Path("/var/log/shop/requests.log"))       # Flask
        application = RequestLog(get_wsgi_application(), to=...)                              # Django

    A record has the caller, tenant and address that the guard checked; without a guard, those that the
    extractors of `gatekeeper.adapters.wsgi` find. The resource is what `resource` returns, otherwise the
    guard's, otherwise the rule that Flask matched.

    A response is logged when the server closes its body. The application may add fields:
    `environ["gatelock.request_log"].add(tokens=812)`.

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
        >>> import tempfile
        >>> from pathlib import Path
        >>> def app(environ, start_response):
        ...     start_response("200 OK", [])
        ...     return [b"hello"]
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "requests.log"
        >>> log = RequestLog(app, to=file)
        >>> environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_API_KEY": "acme"}
        >>> log(environ, lambda status, headers: None).close()  # a server reads the body first
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
        exempt: Iterable[str] | Callable[[Environ], bool] = (),
        buffer: int = BUFFER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(to, buffer, clock)
        self._app = app
        self._extractors = Extractors(caller, address, tenant, resource)
        self._is_exempt = make_exemption(exempt, full_path)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._is_exempt(environ):
            return self._app(environ, start_response)
        environ[NOTES_ENVIRON_KEY] = RequestNotes()
        response = LoggedResponse(self, environ, start_response)
        try:
            body = self._app(environ, response.start)
        except BaseException:
            response.end()
            raise
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            response.bytes = response.length
            # Logged now, and the body stays unwrapped, so that the server may send the file by itself.
            response.end()
            return body
        return LoggedBody(body, response)


class LoggedResponse:
    """Observes one response on its way to the server, and logs it when it is complete."""

    __slots__ = (
        *("_environ", "_has_ended", "_log", "_route", "_start_response", "_started_s", "_status", "_verdict"),
        *("bytes", "length"),
    )

    def __init__(self, log: RequestLog, environ: Environ, start_response: StartResponse) -> None:
        self._log = log
        self._environ = environ
        self._start_response = start_response
        self._status = self.bytes = 0
        self.length = 0  # of the body, if the application declares it
        self._verdict = self._route = ""
        self._has_ended = False
        self._started_s = log.clock.uptime_s()

    def start(self, status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
        self._status = int(status[:3])
        self._route = _flask_route(self._environ)  # now: Flask drops it before the response is complete
        for name, value in headers:
            if name.lower() == VERDICT:
                self._verdict = value
            elif name.lower() == "content-length" and value.isdecimal():
                self.length = int(value)
        write = self._start_response(status, headers, *error)

        def write_counted(chunk: bytes) -> object:
            self.bytes += len(chunk)
            return write(chunk)

        return write_counted

    def end(self) -> None:
        """Logs the response, once."""
        if self._has_ended:
            return
        self._has_ended = True
        log, environ, notes = self._log, self._environ, self._environ[NOTES_ENVIRON_KEY]
        log.put(
            LogEntry(
                ended_ns=log.clock.wall_ns(),
                duration_ns=round((log.clock.uptime_s() - self._started_s) * 1e9),
                status=self._status or FAILED,
                bytes=self.bytes,
                method=environ["REQUEST_METHOD"],
                path=full_path(environ)[:PATH_CHARS_MAX],
                identity=log._extractors.identify(environ, notes.identity, lambda _: self._route),
                verdict=self._verdict,
                decision=notes.decision,
                fields=notes.fields,
            )
        )


class LoggedBody:
    """A response's body that counts its bytes. The server ends the response by `close`."""

    def __init__(self, body: Iterable[bytes], response: LoggedResponse) -> None:
        self._body = body
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._body:
            self._response.bytes += len(chunk)
            yield chunk

    def close(self) -> None:
        try:
            close_body(self._body)
        finally:
            self._response.end()


def _flask_route(environ: Environ) -> str:
    """Returns the rule that Flask matched, if Flask handles the request."""
    rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
    return "" if rule is None else pattern_of_flask(rule.rule)
