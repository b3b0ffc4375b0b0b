"""A connection to the API: one request at a time, with a deadline for everything, and errors as sentences."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from gatekeeper.sources.server_access import (
    checked_token,
    failure_in_words,
    read_token,
    tls_context,
    token_from_environment,
)
from gatekeeper.sources.timed_connection import CHUNK_BYTES, DeadlineSocket, parse_server_url

__all__ = ["ApiConnection", "ApiError", "ConfirmationNeeded", "ServerAway"]

TOKEN_NAME, TOKEN_FILE_NAME = "GATELOCK_TOKEN", "GATELOCK_TOKEN_FILE"
TIMEOUT_S = 30.0  # of a request: the server gives up after 15
ANSWER_BYTES_MAX = 16 << 20  # the server's answers have at most 8 MiB
PAGE_ROWS = 1_000
TRIES = 3  # of a request that reads, while the server is busy
RETRY_MAX_S = 10.0  # of a wait that the server asks for
SHOWN_MAX = 200  # characters of another answer than problem details


class ApiError(Exception):
    """A refusal by the server.

    Attributes:
        status: The HTTP status.
        detail: The server's sentence.

    Example:
        >>> error = ApiError(422, "`for`: write a length such as 30m, 12h or 7d.")
        >>> error.status, str(error)
        (422, '`for`: write a length such as 30m, 12h or 7d.')
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ConfirmationNeeded(ApiError):
    """A refusal of an act that cannot be undone, until it is asked for with `confirmed=True`.

    Example:
        >>> ConfirmationNeeded(409, "This clears 12 locks.").status
        409
    """


class ServerAway(Exception):
    """The server cannot be reached, or its answer is unusable. An act may have been done.

    Example:
        >>> str(ServerAway("https://gatelock.example:8321: connection refused"))
        'https://gatelock.example:8321: connection refused'
    """


class ApiConnection:
    """A connection to a Gatelock server, for one thread at a time; others wait.

    Redirects are not followed and proxies from the environment are not used, so that the token goes to `url`
    alone. A request that reads is repeated while the server is busy; an act is sent once.

    Args:
        url: `https://HOST:PORT`, followed by the path under which a reverse proxy serves Gatelock, if any.
        token: The token, or the path of a file that holds it. By default $GATELOCK_TOKEN, otherwise the file
            that $GATELOCK_TOKEN_FILE names; without any, the server says what this machine may read.
        ca: A PEM file with the certificate authorities to trust; by default those of the system.
        timeout: Seconds for a request and its whole answer.

    Raises:
        ValueError: The URL is malformed, or the token or `ca` cannot be used.

    Example:
        >>> connection = ApiConnection("https://gatelock.example:8321", token="gatelock_secret")
        >>> connection.url
        'https://gatelock.example:8321'
    """

    def __init__(
        self,
        url: str,
        token: str | Path | None = None,
        *,
        ca: Path | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._server = parse_server_url(url)
        self._token = _token(token)
        self._timeout_s = timeout
        self._tls = tls_context(ca) if self._server.scheme == "https" else None
        self._mutex = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None

    @property
    def url(self) -> str:
        """The server."""
        return self._server.display_name.removesuffix(":443")

    @property
    def is_unencrypted(self) -> bool:
        """Whether the token crosses a network in clear."""
        return self._tls is None and self._token is not None and not self._server.is_local

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; a later request opens a new one."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def read(self, path: str, values: Mapping[str, object]) -> dict[str, Any]:
        """Returns the answer of a GET with these values; None is left out. Raises ApiError, ServerAway."""
        query = {name: _text(value) for name, value in values.items() if value is not None}
        target = f"{path}?{urlencode(query)}" if query else path
        for tried in range(1, TRIES + 1):
            status, document, retry_s = self._ask("GET", target, None)
            if status != HTTPStatus.SERVICE_UNAVAILABLE or tried == TRIES or retry_s is None:
                break
            time.sleep(min(retry_s, RETRY_MAX_S))
        return self._checked(status, document)

    def pages(self, path: str, values: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yields the pages of a list, each with its `items`. Raises ApiError, ServerAway."""
        cursor = None
        while True:
            page = self.read(path, {**values, "limit": values.get("limit") or PAGE_ROWS, "cursor": cursor})
            yield page
            cursor = page.get("next")
            if cursor is None:
                return

    def rows(self, path: str, values: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yields the rows of a list, page by page. Raises ApiError, ServerAway."""
        for page in self.pages(path, values):
            yield from page["items"]

    def act(self, path: str, values: Mapping[str, object]) -> dict[str, Any]:
        """Returns the answer of a POST with these values; None is left out. It is sent once.

        Raises ApiError, ConfirmationNeeded, ServerAway.
        """
        body = json.dumps({name: value for name, value in values.items() if value is not None}).encode()
        status, document, _ = self._ask("POST", path, body)
        return self._checked(status, document)

    def _checked(self, status: int, document: Any) -> dict[str, Any]:
        if status == HTTPStatus.OK and isinstance(document, dict):
            return document
        detail = document.get("detail") if isinstance(document, dict) else None
        text = str(detail or f"{status} without problem details: {str(document)[:SHOWN_MAX]}")
        is_unconfirmed = status == HTTPStatus.CONFLICT and '"confirmed": true' in text
        raise (ConfirmationNeeded if is_unconfirmed else ApiError)(status, text)

    def _ask(self, method: str, target: str, body: bytes | None) -> tuple[int, Any, float | None]:
        """Returns status, document and the seconds of Retry-After. Raises ServerAway."""
        with self._mutex:
            try:
                answer = self._answer(method, f"{self._server.prefix}{target}", body)
                content = _content(answer)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise ServerAway(f"{self.url}: {failure_in_words(error)}") from error
            if answer.will_close:
                self.close()
        retry_after = answer.getheader("retry-after", "")
        retry_s = float(retry_after) if re.fullmatch(r"\d{1,6}", retry_after) else None
        try:
            return answer.status, json.loads(content), retry_s
        except ValueError:
            return answer.status, content.decode(errors="replace"), retry_s

    def _answer(self, method: str, target: str, body: bytes | None) -> http.client.HTTPResponse:
        """Sends a request. One that reads is sent again where the server had closed the idle connection."""
        end_s = time.monotonic() + self._timeout_s
        headers = {"accept": "application/json", "user-agent": "gatelock-client"}
        if body is not None:
            headers["content-type"] = "application/json"
            self.close()  # an idle connection may be closed on the way, and an act must not be sent twice
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        is_reused = self._connection is not None
        try:
            return self._sent(method, target, body, headers, end_s)
        except (http.client.RemoteDisconnected, ConnectionError):
            self.close()
            if not is_reused:
                raise
            return self._sent(method, target, body, headers, end_s)

    def _sent(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], end_s: float
    ) -> http.client.HTTPResponse:
        if self._connection is None or self._socket is None:
            self._connection = http.client.HTTPConnection(self._server.host, self._server.port)
            self._connection.auto_open = 0
            self._socket = DeadlineSocket(self._server.connect(end_s, self._tls))
            self._connection.sock = self._socket
        self._socket.end_s = end_s
        self._connection.request(method, target, body, dict(headers))
        return self._connection.getresponse()


def _content(answer: http.client.HTTPResponse) -> bytes:
    pieces, size = [], 0
    while piece := answer.read(CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    if answer.length:
        raise http.client.HTTPException(f"the answer is incomplete: {answer.length} bytes are missing")
    return b"".join(pieces)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _token(token: str | Path | None) -> str | None:
    """Returns the token: stated, in a file, or of the environment. Raises ValueError."""
    if token is None:
        token = token_from_environment(TOKEN_NAME, TOKEN_FILE_NAME)
    if isinstance(token, Path):
        return read_token(token)
    return None if token is None else checked_token(token, "the token")
