"""Locks over HTTP, from `gatelock serve` or `gatelock run`. Standard library only."""

from __future__ import annotations

import gzip
import http.client
import io
import logging
import os
import re
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from gatekeeper.feed import feed_json
from gatekeeper.model import Cursor, GateStatus, SourceError, Update
from gatekeeper.sources.timed_connection import PIECE_BYTES, DeadlineSocket, parse_server_url

log = logging.getLogger("gatekeeper")

WAIT_S = 5.0  # that the server may keep us waiting for news; nothing else depends on it
TIMEOUT_S = 5.0  # for everything else together: name, connection, question, the whole answer
CONNECT_S = 3.0
REPORT_S = 1.0  # for telling of ourselves: nothing depends on it, and the next question waits meanwhile
ANSWER_BYTES_MAX = 64 << 20  # some 200,000 locks, also when it came compressed
TOKEN_BYTES_MAX = 4 << 10
SHOWN_MAX = 200  # characters of what a server says that a message repeats
READ_AT_ONCE_BYTES = 8 << 10  # some 25 locks, in half a millisecond; then requests may go on
PAUSE_S = 1e-6  # the shortest sleep that there is lets another thread have the interpreter

TOKEN_NAME, TOKEN_FILE_NAME = "GATEKEEPER_TOKEN", "GATEKEEPER_TOKEN_FILE"
AGENT = "gatekeeper"


class TryLater(SourceError):
    """The server says itself when it wants to be asked again."""

    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class HttpSource:
    """The feed that a server tells at `url`: https://gatelock:8080, with a path in front if it has one.

    `token` is what `gatelock tokens create NAME --scope read` printed, or the path of a file that holds
    it, read anew for each question; without either $GATEKEEPER_TOKEN, else the file that
    $GATEKEEPER_TOKEN_FILE names. `ca` is a PEM file with the authorities that may vouch for the server;
    without it the system's. The server keeps an answer back until there is news, up to `wait` seconds;
    0 for none of that. All the rest of a fetch takes at most `timeout` seconds, however slowly anybody
    answers.

    No redirect is followed and no proxy of the environment is used: the token goes to `url` alone.
    Raises ValueError for what cannot be.
    """

    wants_status = True  # what a gate tells is one more question on the same connection

    def __init__(
        self,
        url: str,
        token: str | Path | None = None,
        *,
        ca: Path | None = None,
        wait: float = WAIT_S,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._place = parse_server_url(url)
        if not 0 <= wait <= 60:
            raise ValueError(f"wait: expected seconds from 0 to 60, got {wait!r}")
        if not 0 < timeout <= 60:
            raise ValueError(f"timeout: expected seconds above 0, up to 60, got {timeout!r}")
        self._token = token if token is not None else _token_from_environment()
        if isinstance(self._token, str):
            self._token = _checked_token(self._token, "token")
        self._wait_s = wait
        self._timeout_s = timeout
        self.longest = wait + timeout  # seconds that a fetch may take
        self._tls = _tls_context(ca) if self._place.scheme == "https" else None
        if self._tls is None and self._token is not None and not self._place.is_here:
            log.warning("%s: the token goes over the network in the clear; better use https", url)
        self._begin()

    def _begin(self) -> None:
        """Hold nothing: at birth, and in a forked child."""
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # held for moments, by one who fetches and one who closes
        self._connection: http.client.HTTPConnection | None = None
        self._line: DeadlineSocket | None = None  # what it goes over
        self._closings = 0

    def fetch(self, since: Cursor | None) -> Update:
        with self._reaching():
            return self._fetch(since)

    def report_status(self, status: GateStatus) -> None:
        """PUT it to /v1/gates/INSTANCE, where the newest stays however often one comes. Raises SourceError,
        also for a server that does not know that address."""
        from gatekeeper.telemetry import status_json

        body = status_json.dump(status).encode()
        with self._reaching():
            path = f"{self._place.prefix}/v1/gates/{quote(status.instance, safe=':')}"
            answer, said = self._asked("PUT", path, min(REPORT_S, self._timeout_s), body)
            if answer.status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
                raise _refusal(answer, said)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Say of whatever goes wrong inside where it did, and begin anew after it. Raises SourceError."""
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        try:
            yield
        except SourceError as error:
            self._hang_up()
            error.args = (f"{self._place.shown}: {error}",)
            raise
        except (OSError, http.client.HTTPException, zlib.error, EOFError) as error:
            self._hang_up()
            raise SourceError(f"{self._place.shown}: {_explain(error)}") from error

    def close(self) -> None:
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        with self._mutex:
            self._closings += 1
            line = self._line
        if line is not None:
            line.cut()  # whoever reads from it is told at once
        self._hang_up()

    def _leave_to_the_parent(self) -> None:
        inherited = self._connection
        self._begin()
        if inherited is not None:
            inherited.close()  # our handle of it; the connection goes on

    def _hang_up(self) -> None:
        with self._mutex:
            connection, self._connection, self._line = self._connection, None, None
        if connection is not None:
            connection.close()

    def _fetch(self, since: Cursor | None) -> Update:
        if since is not None and since.version < 0:
            since = None  # no server has such a version
        wait_s = 0.0 if since is None else self._wait_s
        path = self._place.path + _query(since, wait_s)
        return _parse_answer(*self._asked("GET", path, wait_s + self._timeout_s))

    def _asked(
        self, method: str, path: str, longest_s: float, content: bytes | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The whole answer, within `longest_s` seconds. What is asked may come there twice."""
        closings, end_s = self._closings, time.monotonic() + longest_s
        headers = self._headers() | ({} if content is None else {"content-type": "application/json"})
        for attempt in (1, 2):
            kept = self._connection is not None
            connection = self._connected(end_s, closings)
            try:
                connection.request(method, path, content, headers)
                answer = connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self._hang_up()
                # The server may close a connection that was idle; that is found out by using it.
                if attempt == 1 and kept and closings == self._closings:
                    continue
                raise
            body = _read_body(answer)
            if answer.will_close:
                self._hang_up()
            return answer, body
        raise SourceError("it hangs up again and again")

    def _connected(self, end_s: float, closings: int) -> http.client.HTTPConnection:
        connection, line = self._connection, self._line
        if connection is None or line is None:
            sock = self._place.connect(min(end_s, time.monotonic() + CONNECT_S), self._tls)
            connection = http.client.HTTPConnection(self._place.host, self._place.port)
            connection.auto_open = 0
            connection.sock = line = DeadlineSocket(sock)
            with self._mutex:
                if closings != self._closings:
                    sock.close()
                    raise SourceError("it was closed meanwhile")
                self._connection, self._line = connection, line
        line.end_s = end_s
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": AGENT}
        token = _read_token(self._token) if isinstance(self._token, Path) else self._token
        return headers if token is None else headers | {"authorization": f"Bearer {token}"}


class BoundedStream(io.RawIOBase):
    """A stream that ends with an error when it does not end in time, read with many breaths between."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = ANSWER_BYTES_MAX

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._left = ANSWER_BYTES_MAX
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise SourceError(f"unpacked, the answer has more than {ANSWER_BYTES_MAX} bytes")
        buffer[: len(piece)] = piece
        time.sleep(PAUSE_S)
        return len(piece)


def _read_body(answer: http.client.HTTPResponse) -> bytes:
    """The whole body as it came, of a refusal only its beginning. Raises SourceError for half of one."""
    most = ANSWER_BYTES_MAX if answer.status == HTTPStatus.OK else PIECE_BYTES
    pieces, size = [], 0
    while piece := answer.read(PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise SourceError(f"the answer ({answer.status}) has more than {most} bytes")
    if answer.length:
        raise SourceError(f"half an answer: {answer.length} bytes of it are missing")
    return b"".join(pieces)


def _parse_answer(answer: http.client.HTTPResponse, body: bytes) -> Update:
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
            stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]  # as good as one
        case coding:
            raise SourceError(f"expected gzip or nothing, got an answer packed as {coding!r:.60}")
    return feed_json.read(io.BufferedReader(BoundedStream(stream), READ_AT_ONCE_BYTES))


def _refusal(answer: http.client.HTTPResponse, body: bytes) -> SourceError:
    said = f"{answer.status} {answer.reason}".strip()[:SHOWN_MAX]
    if 300 <= answer.status < 400:
        to = answer.getheader("location", "")[:SHOWN_MAX]
        return SourceError(f"{said}: it sends us on to {to!r}; name that address itself")
    with suppress(SourceError):
        detail = feed_json.parse_object(body, "answer").text("detail", "")
        said = f"{said}: {' '.join(detail.split())[:SHOWN_MAX]}" if detail.isprintable() else said
    later_s = _retry_after_s(answer.getheader("retry-after", ""))
    return SourceError(said) if later_s is None else TryLater(said, later_s)


def _retry_after_s(header: str) -> float | None:
    if re.fullmatch(r"\d{1,9}", header):
        return float(header)
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    return None


def _query(since: Cursor | None, wait_s: float) -> str:
    asked: dict[str, object] = {} if since is None else {"since": since.version, "mark": since.mark}
    if wait_s:
        asked["wait"] = f"{wait_s:g}"
    return f"?{urlencode(asked)}" if asked else ""


def _tls_context(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ValueError(f"ca: {ca} holds no certificates in PEM: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _token_from_environment() -> str | Path | None:
    if token := os.environ.get(TOKEN_NAME):
        return token
    file = os.environ.get(TOKEN_FILE_NAME)
    return Path(file) if file else None


def _read_token(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(TOKEN_BYTES_MAX)
        return _checked_token(raw.decode("latin-1").strip(), str(file))
    except OSError as error:
        raise SourceError(f"the token's file {file}: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(str(error)) from error


def _checked_token(token: str, where: str) -> str:
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError(f"{where}: expected a token, one word in ASCII")  # without showing it
    return token


def _explain(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it hung up without an answer"
    if isinstance(error, http.client.HTTPException):
        return f"no HTTP answer: {error!r:.100}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
