"""Locks over HTTP, from `gatelock serve` or `gatelock run`. Standard library only."""

from __future__ import annotations

import gzip
import http.client
import io
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from gatekeeper.caller_view import CALLER_FIELD, PATH, CallerView, parse_view
from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, GateStatus, SourceError, Update
from gatekeeper.sources.server_access import (
    checked_token,
    failure_in_words,
    read_token,
    tls_context,
    token_from_environment,
)
from gatekeeper.sources.timed_connection import CHUNK_BYTES, DeadlineSocket, parse_server_url
from gatekeeper.view.cooperative import with_pauses

__all__ = ["HttpSource", "TryLater"]

log = logging.getLogger("gatekeeper")

WAIT_S = 5.0  # the longest poll; no other time depends on it
TIMEOUT_S = 5.0  # for all the rest of a fetch: name, connection, request, whole answer
CONNECT_S = 3.0
REPORT_S = 1.0  # for reporting status, on which no decision depends and for which the next fetch waits
ANSWER_BYTES_MAX = 64 << 20  # some 200,000 locks; before and after decompression
SHOWN_MAX = 200  # characters of a server's text that a message repeats
READ_AT_ONCE_BYTES = 8 << 10  # of the decompressed answer
VIEW_CONNECTIONS_MAX = 8  # that stay open for views of callers; further ones are closed after their answer

TOKEN_NAME, TOKEN_FILE_NAME = "GATEKEEPER_TOKEN", "GATEKEEPER_TOKEN_FILE"
AGENT = "gatekeeper"
INSTANCE_FIELD = "gatelock-instance"
NO_HEADERS: Mapping[str, str] = {}


class TryLater(SourceError):
    """The server refused with a `Retry-After` header.

    Attributes:
        retry_after: Seconds until the server wants the next request.

    Example:
        >>> TryLater("503 Service Unavailable", retry_after=5.0).retry_after
        5.0
    """

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class HttpSource:
    """A LockSource that reads the lock feed from a Gatelock server.

    A `Gate` makes one from an http or https URL. A fetch is a long poll: the server answers when there is
    news, or after `wait` seconds. One connection is kept open. Redirects are not followed and proxies from
    the environment are not used, so that the token goes to `url` alone. Gates report their status to the
    server.

    Args:
        url: `https://HOST:PORT`, followed by the path under which a reverse proxy serves Gatelock, if any.
        token: The token that `gatelock upkeep tokens create NAME --scope read` printed, or the path of a file
            that holds it and is read for each request. By default $GATEKEEPER_TOKEN, otherwise the file that
            $GATEKEEPER_TOKEN_FILE names. `caller_view` needs the scope `callers`.
        ca: A PEM file with the certificate authorities to trust; by default those of the system.
        wait: Seconds that the server may hold a request until there is news, from 0 (no long poll) to 60.
        timeout: Seconds for all the rest of a fetch, above 0, up to 60.

    Raises:
        ValueError: An argument is out of its range, the URL is malformed, or `ca` holds no certificates.

    Example:
        >>> from gatekeeper import Gate
        >>> source = HttpSource("https://gatelock.example:8080", token="gatelock_secret", wait=2)
        >>> gate = Gate(source)  # connects with the first check
        >>> source.longest  # seconds that a fetch may take
        7.0
    """

    wants_status = True  # a report is one more request on the same connection

    def __init__(
        self,
        url: str,
        token: str | Path | None = None,
        *,
        ca: Path | None = None,
        wait: float = WAIT_S,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._server = parse_server_url(url)
        if not 0 <= wait <= 60:
            raise ValueError(f"wait: expected seconds from 0 to 60, got {wait!r}")
        if not 0 < timeout <= 60:
            raise ValueError(f"timeout: expected seconds above 0, up to 60, got {timeout!r}")
        self._token = token if token is not None else token_from_environment(TOKEN_NAME, TOKEN_FILE_NAME)
        if isinstance(self._token, str):
            self._token = checked_token(self._token, "token")
        self._wait_s = wait
        self._timeout_s = timeout
        self._arguments = (url, ca, wait, timeout)
        self.longest = wait + timeout
        self._tls = tls_context(ca) if self._server.scheme == "https" else None
        if self._tls is None and self._token is not None and not self._server.is_local:
            log.warning("%s: the token is sent unencrypted; use https", url)
        self._reset()

    def _reset(self) -> None:
        """Sets the state of a new process: for the constructor, and for a forked child."""
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # held for moments, by a fetch and by `close` in another thread
        self._connection: http.client.HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None  # of `_connection`
        self._instance = ""  # of a gate in this process, once it has reported
        self._closings = 0
        self._for_views: list[HttpSource] = []  # each with a connection that no thread uses at the moment

    def fetch(self, since: Cursor | None) -> Update:
        """Returns what changed after `since`, or a snapshot. Raises SourceError."""
        with self._translate_errors():
            return self._fetch(since)

    def report_status(self, status: GateStatus) -> None:
        """PUTs the status to /v1/gates/INSTANCE, where the newest one stays.

        Raises SourceError, also for a server that does not know this path.
        """
        from gatekeeper.telemetry import status_json

        body = status_json.dump(status).encode()
        self._instance = self._instance or status.instance
        with self._translate_errors():
            path = f"{self._server.prefix}/v1/gates/{quote(status.instance, safe=':')}"
            answer, content = self._request("PUT", path, min(REPORT_S, self._timeout_s), body)
            if answer.status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
                raise _refusal(answer, content)

    def caller_view(self, caller: str) -> CallerView:
        """Asks /v1/callers/me for a caller, on another connection than the poller's. Raises SourceError.

        May be called by any thread; needs a token with the scope `callers`.
        """
        if self._pid != os.getpid():
            self._leave_to_parent()
        try:
            source = self._for_views.pop()
        except IndexError:
            url, ca, wait_s, timeout_s = self._arguments
            source = HttpSource(url, self._token, ca=ca, wait=wait_s, timeout=timeout_s)
        view = source._ask_for_view(caller)
        if len(self._for_views) < VIEW_CONNECTIONS_MAX:
            self._for_views.append(source)
        else:
            source.close()
        return view

    def _ask_for_view(self, caller: str) -> CallerView:
        with self._translate_errors():
            path, headers = f"{self._server.prefix}{PATH}", {CALLER_FIELD: quote(caller, safe=":")}
            answer, body = self._request("GET", path, self._timeout_s, headers=headers)
            document = _checked_document(answer, body).read()
            return parse_view(document, _max_age_s(answer.getheader("cache-control", "")))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises SourceError, with the server's URL, for any error inside; reconnects after it."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        try:
            yield
        except SourceError as error:
            self._disconnect()
            error.args = (f"{self._server.display_name}: {error}",)
            raise
        except (OSError, http.client.HTTPException, zlib.error, EOFError) as error:
            self._disconnect()
            raise SourceError(f"{self._server.display_name}: {failure_in_words(error)}") from error

    def close(self) -> None:
        """Closes the connection; a fetch in another thread ends at once. A later fetch opens a new one."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._mutex:
            self._closings += 1
            sock = self._socket
        if sock is not None:
            sock.shut_down()
        self._disconnect()
        idle, self._for_views = self._for_views, []
        for source in idle:
            source.close()

    def _leave_to_parent(self) -> None:
        inherited, idle = self._connection, self._for_views
        self._reset()
        if inherited is not None:
            inherited.close()  # this process's descriptor; the parent's connection stays open
        for source in idle:
            source.close()

    def _disconnect(self) -> None:
        with self._mutex:
            connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def _fetch(self, since: Cursor | None) -> Update:
        if since is not None and since.version < 0:
            since = None  # no server has such a version
        wait_s = 0.0 if since is None else self._wait_s
        path = self._server.locks_path + _query(since, wait_s)
        return _parse_answer(*self._request("GET", path, wait_s + self._timeout_s))

    def _request(
        self,
        method: str,
        path: str,
        longest_s: float,
        content: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer and its whole body, within `longest_s` seconds. The server may get the request twice."""
        closings, end_s = self._closings, time.monotonic() + longest_s
        sent = self._headers() | dict(headers)
        if content is not None:
            sent["content-type"] = "application/json"
        for attempt in (1, 2):
            reused = self._connection is not None
            connection = self._connected(end_s, closings)
            try:
                connection.request(method, path, content, sent)
                answer = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self._disconnect()
                # A server may have closed an idle connection, which shows only when it is used.
                if attempt == 1 and reused and closings == self._closings:
                    continue
                raise
            body = _read_body(answer)
            if answer.will_close:
                self._disconnect()
            return answer, body
        raise SourceError("the server closes each connection")

    def _connected(self, end_s: float, closings: int) -> http.client.HTTPConnection:
        connection, timed = self._connection, self._socket
        if connection is None or timed is None:
            sock = self._server.connect(min(end_s, time.monotonic() + CONNECT_S), self._tls)
            connection = http.client.HTTPConnection(self._server.host, self._server.port)
            connection.auto_open = 0
            connection.sock = timed = DeadlineSocket(sock)
            with self._mutex:
                if closings != self._closings:
                    sock.close()
                    raise SourceError("the source was closed")
                self._connection, self._socket = connection, timed
        timed.end_s = end_s
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": AGENT}
        if self._instance:
            headers[INSTANCE_FIELD] = self._instance  # names the gate to operators if it is refused
        token = self._token
        if isinstance(token, Path):
            try:
                token = read_token(token)
            except ValueError as error:
                raise SourceError(str(error)) from error
        return headers if token is None else headers | {"authorization": f"Bearer {token}"}


class BoundedStream(io.RawIOBase):
    """A stream that raises SourceError beyond ANSWER_BYTES_MAX."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = ANSWER_BYTES_MAX

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = io.SEEK_SET, /) -> int:
        self._left = ANSWER_BYTES_MAX
        return self._stream.seek(offset, origin)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise SourceError(f"decompressed, the answer has more than {ANSWER_BYTES_MAX} bytes")
        buffer[: len(piece)] = piece
        return len(piece)

    def readall(self) -> bytes:
        """The rest of the stream, read with pauses. A reader of lines pauses by itself."""
        return b"".join(with_pauses(iter(partial(self.read, READ_AT_ONCE_BYTES), b"")))


def _read_body(answer: http.client.HTTPResponse) -> bytes:
    """The whole body as it was sent. Raises SourceError if it is too long or incomplete."""
    most = ANSWER_BYTES_MAX if answer.status == HTTPStatus.OK else CHUNK_BYTES
    pieces, size = [], 0
    while piece := answer.read(CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise SourceError(f"the answer ({answer.status}) has more than {most} bytes")
    if answer.length:
        raise SourceError(f"the answer is incomplete: {answer.length} bytes are missing")
    return b"".join(pieces)


def _parse_answer(answer: http.client.HTTPResponse, body: bytes) -> Update:
    return feed_json.read(io.BufferedReader(_checked_document(answer, body), READ_AT_ONCE_BYTES))


def _checked_document(answer: http.client.HTTPResponse, body: bytes) -> BoundedStream:
    """The JSON of an answer, decompressed. Raises SourceError for a refusal and for another content."""
    if answer.status != HTTPStatus.OK:
        raise _refusal(answer, body)
    kind = answer.headers.get_content_type()
    if kind != "application/json":
        raise SourceError(f"expected application/json, got {kind!r:.60}; is this a Gatelock server?")
    stream: BinaryIO = io.BytesIO(body)
    match answer.getheader("content-encoding", "identity").lower():
        case "identity":
            pass
        case "gzip":
            stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]  # is similar enough
        case coding:
            raise SourceError(f"expected gzip or no content-encoding, got {coding!r:.60}")
    return BoundedStream(stream)


def _max_age_s(cache_control: str) -> float:
    """The `max-age` of an answer; 0 if it has none."""
    match = re.search(r"(?:^|[\s,])max-age=(\d{1,9})", cache_control)
    return float(match[1]) if match else 0.0


def _refusal(answer: http.client.HTTPResponse, body: bytes) -> SourceError:
    message = f"{answer.status} {answer.reason}".strip()[:SHOWN_MAX]
    if 300 <= answer.status < 400:
        location = answer.getheader("location", "")[:SHOWN_MAX]
        return SourceError(f"{message}: redirects to {location!r}; configure that address")
    with suppress(SourceError):
        detail = feed_json.parse_object(body, "answer").text("detail", "")
        if detail.isprintable():
            message = f"{message}: {' '.join(detail.split())[:SHOWN_MAX]}"
    retry_after_s = _retry_after_s(answer.getheader("retry-after", ""))
    return SourceError(message) if retry_after_s is None else TryLater(message, retry_after_s)


def _retry_after_s(header: str) -> float | None:
    if re.fullmatch(r"\d{1,9}", header):
        return float(header)
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    return None


def _query(since: Cursor | None, wait_s: float) -> str:
    parameters: dict[str, object] = {} if since is None else {"since": since.version, "mark": since.mark}
    if wait_s:
        parameters["wait"] = f"{wait_s:g}"
    return f"?{urlencode(parameters)}" if parameters else ""
