"""The part of a request log that ASGI and WSGI share: its writer, counters, and names of the request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from gatekeeper.adapters.admission_control import RequestIdentity
from gatekeeper.clock import Clock
from gatekeeper.requestlog.background_writer import CLOSE_S, BackgroundWriter, LogSink
from gatekeeper.requestlog.file import FileSink
from gatekeeper.requestlog.log_record import LogEntry

BUFFER = 10_000  # records: a few seconds of a busy process, about 10 MB
CLOSE_TIMEOUT_S = 2.0  # within the time that servers allow an application for its shutdown

R = TypeVar("R")

logger = logging.getLogger("gatekeeper")


class LogMiddleware:
    """Base of the request logs: creates the writer, and reports its state."""

    def __init__(self, to: Path | str | LogSink, buffer: int, clock: Clock) -> None:
        self.clock = clock
        if not isinstance(to, Path | str) and not callable(getattr(to, "write", None)):
            raise TypeError(f"to: expected the path of a file, or a LogSink, got {to!r:.80}")
        sink = FileSink(to) if isinstance(to, Path | str) else to
        self._writer = BackgroundWriter(sink, buffer=buffer, clock=clock)
        self.put: Callable[[LogEntry], None] = self._writer.put

    @property
    def written(self) -> int:
        """Records that this process has written: to the file, or with Kafka's acknowledgement."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Records of this process that are missing in the log: the buffer was full, or the sink lost them."""
        return self._writer.dropped

    @property
    def waiting(self) -> int:
        """Records that are neither written nor dropped yet."""
        return self._writer.waiting

    @property
    def healthy(self) -> bool:
        """Whether records are being written, and none was dropped in the last minute."""
        return self._writer.healthy

    def flush(self, timeout: float = CLOSE_S) -> bool:
        """Writes waiting records now; returns whether none is left.

        For serverless functions, which are frozen between requests.

        Args:
            timeout: Seconds, plus the time of the sink's last attempt.
        """
        return self._writer.flush(timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Writes waiting records and stops the writer. A later request starts it again.

        Args:
            timeout: Seconds after which records that are still waiting are left.
        """
        self._writer.close(timeout)


class Extractors(Generic[R]):
    """Functions that read a request's names, for the log."""

    def __init__(
        self,
        caller: Callable[[R], str],
        address: Callable[[R], str],
        tenant: Callable[[R], str] | None,
        resource: Callable[[R], str] | None,
    ) -> None:
        self._caller = caller
        self._address = address
        self._tenant = tenant
        self._resource = resource

    def identify(
        self, request: R, checked: RequestIdentity | None, route_of: Callable[[R], str]
    ) -> RequestIdentity:
        """Returns the names under which a request is logged.

        Those that its guard `checked`; without a guard, those that the extractors find. The resource is the
        extractor's, otherwise the guard's, otherwise that of `route_of`.
        """
        identity = checked or RequestIdentity(
            caller=extract(self._caller, request),
            address=extract(self._address, request),
            tenant=extract(self._tenant, request),
        )
        resource = extract(self._resource, request) or identity.resource or route_of(request)
        return identity if resource == identity.resource else identity._replace(resource=resource)


def extract(extractor: Callable[[R], str] | None, request: R) -> str:
    """Returns the extractor's result; "" if it raises, because a log must not break requests."""
    if extractor is None:
        return ""
    try:
        return extractor(request)
    except Exception:  # the application's function may raise anything
        logger.debug("request log: extractor %r failed", extractor, exc_info=True)
        return ""
